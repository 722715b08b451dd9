"""Which rows of a batch and which pages of the pool belong to which sequence: computed once a forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from sglang_dualpath.platform.attention.kernel import CausalMasks


@dataclass(slots=True)
class SequenceSpan:
    """One sequence of a batch: its rows [first_row, stop_row) of the query, and where all its tokens lie.

    pages [n_pages] int64 in token order, the last one filled in part; `page_run` is the first of them where they are
    consecutive, so that the tokens can be read in place.
    """

    first_row: int
    stop_row: int
    tokens: int
    pages: torch.Tensor
    page_run: int | None
    masks: dict[int | None, CausalMasks] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many of the newest tokens are computed."""
        return self.stop_row - self.first_row

    def causal_masks(self, window: int | None) -> CausalMasks:
        """The masks for layers that see `window` tokens back (None: all)."""
        if window not in self.masks:
            self.masks[window] = CausalMasks(window)
        return self.masks[window]

    def gather(self, pool: torch.Tensor, page_tokens: int) -> torch.Tensor:
        """This sequence's tokens of one layer's pool, [slots, heads, dim] -> [tokens, heads, dim]; a view if it can."""
        if self.page_run is not None:
            first = self.page_run * page_tokens
            return pool[first : first + self.tokens]
        slots, heads, dim = pool.shape
        by_page = pool[: slots // page_tokens * page_tokens].view(-1, page_tokens * heads * dim)
        return by_page.index_select(0, self.pages).view(-1, heads, dim)[: self.tokens]


def spans_of_batch(
    slots_of_requests: torch.Tensor,
    request_indices: Sequence[int],
    tokens_of_requests: Sequence[int],
    rows_of_requests: Sequence[int],
    page_tokens: int,
) -> list[SequenceSpan]:
    """The spans of a batch, in its order.

    slots_of_requests [requests, tokens]: the pool slot of each token (upstream's `req_to_token`). Slots of a page are
    consecutive and start at a multiple of `page_tokens`, which upstream's paged allocators guarantee.
    """
    spans = []
    first_row = 0
    for request, tokens, rows in zip(request_indices, tokens_of_requests, rows_of_requests, strict=True):
        pages = slots_of_requests[request, :tokens:page_tokens].to(torch.int64) // page_tokens
        first, last = int(pages[0]), int(pages[-1])
        consecutive = last - first == len(pages) - 1 and bool((pages[1:] - pages[:-1] == 1).all())
        spans.append(SequenceSpan(first_row, first_row + rows, tokens, pages, first if consecutive else None))
        first_row += rows
    return spans
