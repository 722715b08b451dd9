"""The platform class: how upstream runs on a plain x86-64 (or ARM) CPU."""

from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from sglang_dualpath.platform import defaults
from sglang_dualpath.platform.attention import registration
from sglang_dualpath.platform.kv_pools import kv_pool_class

# When this module is imported the command line has not been built yet: the last moment to add to its choices.
registration.offer()


class PlainCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Upstream's own CPU engine needs its CPU kernels; this one needs torch alone."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        """What attention is computed with unless the user says otherwise."""
        return registration.DEFAULT_BACKEND

    def get_device(self, device_id: int = 0) -> str:
        """The one device, as upstream's argument resolution wants it of out-of-tree platforms: a name."""
        return "cpu"

    def is_pin_memory_available(self, device: Any = None) -> bool:
        """There is no device to pin memory for."""
        return False

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        """Upstream's pools, as sparse as what is in them."""
        return kv_pool_class(kind)

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Fill in what the user left open; upstream records each assignment as a declared default."""
        defaults.fill_in(server_args)

    def init_backend(self) -> None:
        """In each worker, before its model runner is built."""
        registration.register()
