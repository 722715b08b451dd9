"""Blocks: n Layer Blocks end to end are a Full Block, and a span is where a layer's tokens lie in it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.blocks.geometry import BLOCK_TOKENS, BlockGeometry

geometries = st.builds(
    BlockGeometry, n_layers=st.integers(1, 6), token_bytes=st.integers(1, 40), block_tokens=st.integers(1, 16)
)


def test_a_block_is_64_tokens_as_in_the_paper() -> None:
    assert BLOCK_TOKENS == 64
    assert BlockGeometry(n_layers=2, token_bytes=3).block_tokens == 64


@given(geometries)
def test_layer_blocks_end_to_end_are_a_full_block(geometry: BlockGeometry) -> None:
    offsets = [geometry.layer_offset_bytes(layer) for layer in range(geometry.n_layers)]
    assert offsets == [layer * geometry.layer_block_bytes for layer in range(geometry.n_layers)]
    assert offsets[-1] + geometry.layer_block_bytes == geometry.full_block_bytes


@given(geometries, st.data())
def test_the_spans_of_any_cut_cover_every_byte_once(geometry: BlockGeometry, data: st.DataObject) -> None:
    covered: list[int] = []
    for layer in range(geometry.n_layers):
        cuts = sorted(data.draw(st.sets(st.integers(0, geometry.block_tokens))) | {0, geometry.block_tokens})
        for start, stop in pairwise(cuts):
            offset, length = geometry.span(layer, start, stop)
            assert length == (stop - start) * geometry.token_bytes
            covered += range(offset, offset + length)
    assert covered == list(range(geometry.full_block_bytes))


@given(geometries)
def test_a_whole_layer_is_the_span_of_all_its_tokens(geometry: BlockGeometry) -> None:
    layer = geometry.n_layers - 1
    expected = (geometry.layer_offset_bytes(layer), geometry.layer_block_bytes)
    assert geometry.span(layer, 0, geometry.block_tokens) == expected


@given(geometries, st.integers(-3, 20), st.integers(-3, 20))
def test_tokens_outside_the_block_have_no_span(geometry: BlockGeometry, start: int, stop: int) -> None:
    if 0 <= start <= stop <= geometry.block_tokens:
        assert geometry.span(0, start, stop)[1] == (stop - start) * geometry.token_bytes
    else:
        with pytest.raises(IndexError, match="tokens"):
            geometry.span(0, start, stop)


@pytest.mark.parametrize("layer", [-1, 4])
def test_a_layer_that_is_not_there_is_an_index_error(layer: int) -> None:
    with pytest.raises(IndexError, match="4 layers"):
        BlockGeometry(n_layers=4, token_bytes=1).layer_offset_bytes(layer)


@pytest.mark.parametrize("fields", [{"n_layers": 0}, {"token_bytes": 0}, {"block_tokens": 0}, {"n_layers": -1}])
def test_a_block_of_nothing_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        BlockGeometry(**{"n_layers": 1, "token_bytes": 1, **fields})
