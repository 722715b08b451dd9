"""Upstream's transfer classes between CPUs."""

from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

from sglang_dualpath.platform.transfer import transfer_class


class Backend(Enum):
    MOONCAKE = auto()
    NIXL = auto()


class Kind(Enum):
    MANAGER = auto()
    SENDER = auto()


class Manager:
    def __init__(self, args: Any, mode: str, *, is_mla_backend: bool = False) -> None:
        self.args, self.mode, self.is_mla_backend = args, mode, is_mla_backend


def test_a_sender_gets_plain_page_indices() -> None:
    class Sender:
        supports_host_tensor_indices = True

    assert transfer_class(Sender, Backend.MOONCAKE, Kind.SENDER) is Sender
    assert Sender.supports_host_tensor_indices is False


def test_a_nixl_manager_knows_its_buffers_as_dram() -> None:
    manager_class = transfer_class(Manager, Backend.NIXL, Kind.MANAGER)
    manager = manager_class(SimpleNamespace(kv_data_ptrs=[1, 2, 3]), "prefill", is_mla_backend=True)
    assert isinstance(manager, Manager)
    assert manager.args.kv_data_mem_kinds == ["DRAM", "DRAM", "DRAM"]
    assert (manager.mode, manager.is_mla_backend) == ("prefill", True)


def test_pools_that_upstream_takes_for_vram_are_dram_too() -> None:
    manager_class = transfer_class(Manager, Backend.NIXL, Kind.MANAGER)
    args = SimpleNamespace(kv_data_ptrs=[1, 2], kv_data_mem_kinds=["VRAM", "DRAM"])
    assert manager_class(args, "decode").args.kv_data_mem_kinds == ["DRAM", "DRAM"]


def test_the_same_class_every_time() -> None:
    assert transfer_class(Manager, Backend.NIXL, Kind.MANAGER) is transfer_class(Manager, Backend.NIXL, Kind.MANAGER)


def test_other_classes_are_left_alone() -> None:
    assert transfer_class(Manager, Backend.MOONCAKE, Kind.MANAGER) is Manager
