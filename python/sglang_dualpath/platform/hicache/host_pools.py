"""In place of upstream's copies between host and device pools, for each of its `--hicache-io-backend` values."""

from typing import Any

import torch

from sglang_dualpath.platform.hicache.pages import copy_pages, device_pages, layer_pages, page_numbers


def without_pinning(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before `HostKVCache.__init__`: there is no device to pin host memory for."""
    return args, kwargs | {"pin_memory": False}


def load_mha_layer(
    original: Any,
    self: Any,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    layer_id: int,
    io_backend: str,
    *,
    is_draft: bool = False,
) -> None:
    """Around `MHATokenToKVPoolHost.load_to_device_per_layer`: one layer's pages, host to device."""
    if not is_draft and not 0 <= layer_id < self.target_layer_num:
        return
    host_pages = page_numbers(host_indices, self.page_size)
    pages = page_numbers(device_indices, self.page_size)
    pairs = ((self.device_k_buffers[layer_id], self.k_buffer), (self.device_v_buffers[layer_id], self.v_buffer))
    for device_buffer, host_buffer in pairs:
        host_layer = layer_pages(host_buffer, self.layout, layer_id, self.page_size)
        copy_pages(device_pages(device_buffer, self.page_size), pages, host_layer, host_pages)


def back_up_mha(
    original: Any,
    self: Any,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    io_backend: str,
) -> None:
    """Around `MHATokenToKVPoolHost.backup_from_device_all_layer`: all layers' pages, device to host."""
    host_pages = page_numbers(host_indices, self.page_size)
    pages = page_numbers(device_indices, self.page_size)
    for device_buffers, host_buffer in ((self.device_k_buffers, self.k_buffer), (self.device_v_buffers, self.v_buffer)):
        for layer, device_buffer in enumerate(device_buffers):
            host_layer = layer_pages(host_buffer, self.layout, layer, self.page_size)
            copy_pages(host_layer, host_pages, device_pages(device_buffer, self.page_size), pages)


def load_mla_layer(
    original: Any,
    self: Any,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    layer_id: int,
    io_backend: str,
    *,
    is_draft: bool = False,
) -> None:
    """Around `MLATokenToKVPoolHost.load_to_device_per_layer`: one layer's latent pages, host to device."""
    _refuse_sharded(self)
    if not is_draft and layer_id not in self._target_layer_indices:
        return
    device_buffer = self.device_kv_buffers[self._buffer_index_by_layer[layer_id]]
    host_layer = layer_pages(self.kv_buffer, self.layout, self._host_layer_by_controller[layer_id], self.page_size)
    copy_pages(
        device_pages(device_buffer, self.page_size),
        page_numbers(device_indices, self.page_size),
        host_layer,
        page_numbers(host_indices, self.page_size),
    )


def back_up_mla(
    original: Any,
    self: Any,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    io_backend: str,
) -> None:
    """Around `MLATokenToKVPoolHost.backup_from_device_all_layer`: all layers' latent pages, device to host."""
    _refuse_sharded(self)
    host_pages = page_numbers(host_indices, self.page_size)
    pages = page_numbers(device_indices, self.page_size)
    for layer, device_buffer in enumerate(self.device_kv_buffers):
        host_layer = layer_pages(self.kv_buffer, self.layout, layer, self.page_size)
        copy_pages(host_layer, host_pages, device_pages(device_buffer, self.page_size), pages)


def _refuse_sharded(pool: Any) -> None:
    if pool._is_dummy or pool.dcp_size > 1 or pool._layer_shard_enabled:
        raise NotImplementedError("--enable-hierarchical-cache on a CPU does not do --dcp-size > 1 or sharded layers")
