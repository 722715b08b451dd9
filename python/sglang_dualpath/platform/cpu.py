"""The platform class: how upstream runs on a plain x86-64 (or ARM) CPU, with defaults that need no dozen flags."""

import os
from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

PAGE_TOKENS = 64
MAX_TOTAL_TOKENS = 65_536
"""Tokens the KV pool holds at most unless told otherwise; memory is touched only as they are used."""

MEM_FRACTION = 0.2
MAX_RUNNING_REQUESTS = 32
CHUNKED_PREFILL_TOKENS = 2_048


class PlainCpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Upstream's own CPU engine needs its CPU kernels; this one needs torch alone."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        """Torch's own attention."""
        return "torch_native"

    def get_device(self, device_id: int = 0) -> str:
        """The one device, as upstream's argument resolution wants it of out-of-tree platforms: a name."""
        return "cpu"

    def is_pin_memory_available(self, device: Any = None) -> bool:
        """There is no device to pin memory for."""
        return False

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Fill in what the user left open; a flag that was given stands."""
        defaults: dict[str, Any] = {
            "device": "cpu",
            "sampling_backend": "pytorch",
            "page_size": PAGE_TOKENS,
            "max_total_tokens": MAX_TOTAL_TOKENS,
            "mem_fraction_static": MEM_FRACTION,
            "max_running_requests": MAX_RUNNING_REQUESTS,
            "chunked_prefill_size": CHUNKED_PREFILL_TOKENS,
            "attention_backend": self.get_default_attention_backend(),
        }
        for name, value in defaults.items():
            if getattr(server_args, name) is None:
                setattr(server_args, name, value)
        # Switches whose 'off' cannot be told from 'not given', and which do not work, or only burn a core, on a CPU.
        server_args.disable_overlap_schedule = True
        server_args.sleep_on_idle = True
        server_args.disable_cuda_graph = True
        if server_args.disaggregation_mode == "decode" and server_args.disaggregation_decode_retraction_backup is None:
            server_args.disaggregation_decode_retraction_backup = "cpu_tensor"
        if server_args.disaggregation_mode != "null":
            # What upstream's `mooncake_tcp` stands for; by now its name has been resolved already.
            os.environ.setdefault("MC_FORCE_TCP", "1")
