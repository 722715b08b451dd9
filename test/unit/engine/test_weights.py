"""A digest of the weights in memory: the same update gives the same digest everywhere, another gives another."""

import pytest
import torch
from sglang_dualpath.engine.weights import weights_in_memory


def model(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A small module whose weights are the same each time."""
    generator = torch.Generator().manual_seed(0)
    built = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 1))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return built.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_equal_weights_have_one_digest_in_every_type(dtype: torch.dtype) -> None:
    assert weights_in_memory(model(dtype)) == weights_in_memory(model(dtype))


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.weight", "1.bias"])
def test_an_update_of_any_parameter_is_seen(name: str) -> None:
    updated = model()
    before = weights_in_memory(updated)
    with torch.no_grad():
        updated.get_parameter(name).add_(0.01)
    assert weights_in_memory(updated) != before


def test_the_same_values_under_other_names_or_shapes_are_other_weights() -> None:
    class Named(torch.nn.Module):
        def __init__(self, name: str, shape: tuple[int, ...]) -> None:
            super().__init__()
            self.register_parameter(name, torch.nn.Parameter(torch.ones(shape)))

    digests = {weights_in_memory(Named(*made)) for made in (("a", (2, 3)), ("b", (2, 3)), ("a", (3, 2)))}
    assert len(digests) == 3


def test_a_model_with_an_empty_parameter_has_a_digest() -> None:
    module = torch.nn.Module()
    module.register_parameter("empty", torch.nn.Parameter(torch.empty(0)))
    assert weights_in_memory(module) == weights_in_memory(module)
