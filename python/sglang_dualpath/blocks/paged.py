"""Rows of upstream's paged KV pools as plain bytes, and back: the one place where a token's KV changes its layout."""

from typing import Protocol

import numpy as np
import torch

from sglang_dualpath.blocks.geometry import BlockGeometry


class PagedLayers(Protocol):
    """The KV pools of one engine, layer by layer."""

    @property
    def geometry(self) -> BlockGeometry:
        """Layers and bytes a token of these pools."""
        ...

    def gather(self, layer: int, slots: torch.Tensor, out: np.ndarray) -> None:
        """Copy the rows at `slots` (int64 `[n]`) of a layer into `out` (uint8 `[n, token_bytes]`)."""
        ...

    def scatter(self, layer: int, slots: torch.Tensor, rows: np.ndarray) -> None:
        """Copy `rows` (uint8 `[n, token_bytes]`) to the slots of a layer."""
        ...

    def synchronize(self) -> None:
        """Return when the device has done all copies so far."""
        ...


class PagedMha:
    """MHA and GQA pools: a token's bytes are its K row, then its V row (upstream `MHATokenToKVPool`)."""

    def __init__(self, k_buffers: list[torch.Tensor], v_buffers: list[torch.Tensor]) -> None:
        if len(k_buffers) != len(v_buffers) or not k_buffers:
            raise ValueError(f"{len(k_buffers)} K layers and {len(v_buffers)} V layers")
        self._k = [_as_byte_rows(buffer) for buffer in k_buffers]
        self._v = [_as_byte_rows(buffer) for buffer in v_buffers]
        self._k_bytes = self._k[0].shape[1]
        self.geometry = BlockGeometry(len(self._k), self._k_bytes + self._v[0].shape[1])

    def gather(self, layer: int, slots: torch.Tensor, out: np.ndarray) -> None:
        """See `PagedLayers.gather`."""
        target = torch.from_numpy(out)
        _take(self._k[layer], slots, target[:, : self._k_bytes])
        _take(self._v[layer], slots, target[:, self._k_bytes :])

    def scatter(self, layer: int, slots: torch.Tensor, rows: np.ndarray) -> None:
        """See `PagedLayers.scatter`."""
        source = torch.from_numpy(rows)
        _put(self._k[layer], slots, source[:, : self._k_bytes])
        _put(self._v[layer], slots, source[:, self._k_bytes :])

    def synchronize(self) -> None:
        """See `PagedLayers.synchronize`."""
        _synchronize(self._k[0])


class PagedMla:
    """MLA pools: a token's bytes are its latent row, rope part included (upstream `MLATokenToKVPool`)."""

    def __init__(self, buffers: list[torch.Tensor]) -> None:
        if not buffers:
            raise ValueError("a pool without layers")
        self._rows = [_as_byte_rows(buffer) for buffer in buffers]
        self.geometry = BlockGeometry(len(self._rows), self._rows[0].shape[1])

    def gather(self, layer: int, slots: torch.Tensor, out: np.ndarray) -> None:
        """See `PagedLayers.gather`."""
        _take(self._rows[layer], slots, torch.from_numpy(out))

    def scatter(self, layer: int, slots: torch.Tensor, rows: np.ndarray) -> None:
        """See `PagedLayers.scatter`."""
        _put(self._rows[layer], slots, torch.from_numpy(rows))

    def synchronize(self) -> None:
        """See `PagedLayers.synchronize`."""
        _synchronize(self._rows[0])


def _as_byte_rows(buffer: torch.Tensor) -> torch.Tensor:
    """A pool `[slots, heads, dim]` of any dtype as uint8 `[slots, row_bytes]`, sharing memory."""
    rows = buffer.view(buffer.shape[0], -1).view(torch.uint8)
    if rows.data_ptr() != buffer.data_ptr():
        raise ValueError("a KV pool whose rows are not contiguous")
    return rows


def _take(pool: torch.Tensor, slots: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(pool.index_select(0, slots.to(pool.device, torch.int64)))


def _put(pool: torch.Tensor, slots: torch.Tensor, source: torch.Tensor) -> None:
    pool.index_copy_(0, slots.to(pool.device, torch.int64), source.to(pool.device))


def _synchronize(pool: torch.Tensor) -> None:
    if pool.device.type != "cpu":
        torch.get_device_module(pool.device).current_stream().synchronize()
