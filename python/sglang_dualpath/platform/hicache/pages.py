"""Host pool layouts as pages, and copies between them and the pools that the model computes on."""

import torch

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
"""Upstream's `--hicache-mem-layout` values that hold plain rows."""


def layer_pages(buffer: torch.Tensor, layout: str, layer: int, page_tokens: int) -> torch.Tensor:
    """One layer of a host buffer (the keys', the values' or the latent one) as [pages, page_tokens, heads, dim], a view.

    The buffer is what upstream's `init_kv_buffer` allocates for the layout. Raises ValueError for another layout.
    """
    if layout == "layer_first":
        return buffer[layer].unflatten(0, (-1, page_tokens))
    if layout == "page_first":
        return buffer.unflatten(0, (-1, page_tokens))[:, :, layer]
    if layout == "page_first_direct":
        return buffer[:, layer]
    if layout == "page_head":
        return buffer[:, :, :, layer].transpose(1, 2)
    raise ValueError(f"--hicache-mem-layout {layout} is not available on a CPU; use one of {', '.join(LAYOUTS)}")


def device_pages(buffer: torch.Tensor, page_tokens: int) -> torch.Tensor:
    """One layer of a computing pool, [slots, heads, dim], as [pages, page_tokens, heads, dim], a view."""
    return buffer.unflatten(0, (-1, page_tokens))


def page_numbers(slots: torch.Tensor, page_tokens: int) -> torch.Tensor:
    """The pages of a list of slots that are whole pages, in order. Raises ValueError where they cannot be."""
    if slots.numel() % page_tokens:
        raise ValueError(f"{slots.numel()} slots are no whole pages of {page_tokens} tokens")
    return slots[::page_tokens].to(torch.int64) // page_tokens


def copy_pages(
    destination: torch.Tensor, destination_pages: torch.Tensor, source: torch.Tensor, source_pages: torch.Tensor
) -> None:
    """Copy pages between two page views of one layer."""
    destination[destination_pages] = source[source_pages]
