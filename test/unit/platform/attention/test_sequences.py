"""Finding the sequences of a batch in a paged pool."""

import pytest
import torch
from sglang_dualpath.platform.attention.sequences import spans_of_batch

PAGE_TOKENS = 4


def slots_of(pages: list[int]) -> list[int]:
    return [page * PAGE_TOKENS + offset for page in pages for offset in range(PAGE_TOKENS)]


@pytest.fixture
def request_slots() -> torch.Tensor:
    """Request 0 has pages 5, 2, 9; request 1 the consecutive ones 3, 4; request 2 page 7."""
    slots = torch.zeros(3, 12, dtype=torch.int32)
    slots[0] = torch.tensor(slots_of([5, 2, 9]))
    slots[1, :8] = torch.tensor(slots_of([3, 4]))
    slots[2, :4] = torch.tensor(slots_of([7]))
    return slots


def test_rows_follow_each_other_in_the_order_of_the_batch(request_slots: torch.Tensor) -> None:
    spans = spans_of_batch(request_slots, [2, 0, 1], [3, 10, 8], [3, 2, 1], PAGE_TOKENS)
    assert [(span.first_row, span.stop_row, span.rows, span.tokens) for span in spans] == [
        (0, 3, 3, 3),
        (3, 5, 2, 10),
        (5, 6, 1, 8),
    ]


def test_pages_are_in_token_order(request_slots: torch.Tensor) -> None:
    spans = spans_of_batch(request_slots, [0, 1, 2], [9, 8, 1], [1, 1, 1], PAGE_TOKENS)
    assert [span.pages.tolist() for span in spans] == [[5, 2, 9], [3, 4], [7]]
    assert [span.page_run for span in spans] == [None, 3, 7]


@pytest.mark.parametrize(("request_index", "tokens"), [(0, 9), (0, 12), (1, 8), (1, 5), (2, 1)])
def test_gathered_tokens_are_those_of_the_slots(request_slots: torch.Tensor, request_index: int, tokens: int) -> None:
    pool = torch.arange(10 * PAGE_TOKENS * 2 * 3).view(10 * PAGE_TOKENS, 2, 3)
    (span,) = spans_of_batch(request_slots, [request_index], [tokens], [1], PAGE_TOKENS)
    expected = pool[request_slots[request_index, :tokens].long()]
    assert torch.equal(span.gather(pool, PAGE_TOKENS), expected)


def test_consecutive_pages_are_read_in_place(request_slots: torch.Tensor) -> None:
    pool = torch.zeros(10 * PAGE_TOKENS, 2, 3)
    (span,) = spans_of_batch(request_slots, [1], [8], [1], PAGE_TOKENS)
    assert span.gather(pool, PAGE_TOKENS).data_ptr() == pool[3 * PAGE_TOKENS].data_ptr()


def test_pages_that_only_span_a_run_are_no_run() -> None:
    slots = torch.tensor([slots_of([3, 3, 5])])
    (span,) = spans_of_batch(slots, [0], [12], [1], PAGE_TOKENS)
    assert span.page_run is None


def test_layers_share_the_masks_of_their_window(request_slots: torch.Tensor) -> None:
    (span,) = spans_of_batch(request_slots, [0], [9], [3], PAGE_TOKENS)
    assert span.causal_masks(None) is span.causal_masks(None)
    assert span.causal_masks(8) is not span.causal_masks(None)
    assert span.causal_masks(8).window == 8


def test_a_batch_that_does_not_add_up_is_refused(request_slots: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="zip"):
        spans_of_batch(request_slots, [0, 1], [9], [1, 1], PAGE_TOKENS)
