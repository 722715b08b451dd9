"""Host buffers of each layout, as pages."""

import pytest
import torch
from sglang_dualpath.platform.hicache.pages import LAYOUTS, copy_pages, device_pages, layer_pages, page_numbers

LAYERS, PAGES, PAGE_TOKENS, HEADS, DIM = 3, 4, 2, 2, 5


def host_buffer(layout: str) -> torch.Tensor:
    """Every element tells its (layer, token, head, dim) apart, in upstream's dimensions of the layout."""
    plain = torch.arange(LAYERS * PAGES * PAGE_TOKENS * HEADS * DIM).view(LAYERS, PAGES, PAGE_TOKENS, HEADS, DIM)
    return {
        "layer_first": plain.flatten(1, 2),
        "page_first": plain.flatten(1, 2).transpose(0, 1).contiguous(),
        "page_first_direct": plain.transpose(0, 1).contiguous(),
        "page_head": plain.permute(1, 3, 2, 0, 4).contiguous(),
    }[layout]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layer_looks_the_same_in_every_layout(layout: str) -> None:
    for layer in range(LAYERS):
        pages = layer_pages(host_buffer(layout), layout, layer, PAGE_TOKENS)
        assert torch.equal(pages, layer_pages(host_buffer("layer_first"), "layer_first", layer, PAGE_TOKENS))
        assert pages.shape == (PAGES, PAGE_TOKENS, HEADS, DIM)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_writing_pages_writes_the_buffer(layout: str) -> None:
    buffer, device = host_buffer(layout), torch.zeros(3 * PAGE_TOKENS, HEADS, DIM, dtype=torch.int64)
    source = -1 - torch.arange(device.numel()).view_as(device)
    pages = layer_pages(buffer, layout, 1, PAGE_TOKENS)
    copy_pages(pages, torch.tensor([3, 0]), device_pages(source, PAGE_TOKENS), torch.tensor([1, 2]))
    copy_pages(device_pages(device, PAGE_TOKENS), torch.tensor([2, 0]), pages, torch.tensor([3, 0]))
    assert torch.equal(device[2 * PAGE_TOKENS :], source[PAGE_TOKENS : 2 * PAGE_TOKENS])
    assert torch.equal(device[:PAGE_TOKENS], source[2 * PAGE_TOKENS :])
    assert int((buffer < 0).sum()) == 2 * PAGE_TOKENS * HEADS * DIM


def test_an_unknown_layout_is_named() -> None:
    with pytest.raises(ValueError, match="--hicache-mem-layout page_unified"):
        layer_pages(torch.zeros(1), "page_unified", 0, PAGE_TOKENS)


def test_slots_of_whole_pages_become_page_numbers() -> None:
    assert page_numbers(torch.tensor([6, 7, 2, 3], dtype=torch.int32), 2).tolist() == [3, 1]


def test_slots_that_are_no_whole_pages_are_refused() -> None:
    with pytest.raises(ValueError, match="3 slots are no whole pages of 2 tokens"):
        page_numbers(torch.tensor([0, 1, 2]), 2)
