"""A digest of the weights in memory, for engines whose weights are updated while they run (RL rollouts).

Samples of every parameter make the digest: two engines given the same update agree without a word, and blocks computed
with other weights, whatever their version was called, are never hit.
"""

import hashlib
from typing import Any

SAMPLES_A_TENSOR = 64


def weights_in_memory(model: Any) -> str:
    """The digest of a torch module's parameters: names, shapes and evenly spaced elements."""
    import torch

    state = hashlib.blake2b(digest_size=16)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            flat = parameter.detach().reshape(-1)
            count = min(SAMPLES_A_TENSOR, flat.numel())
            places = torch.linspace(0, max(flat.numel() - 1, 0), count, device=flat.device).long()
            sample = flat[places].view(torch.uint8).cpu().numpy()
            state.update(f"{name}{tuple(parameter.shape)}".encode())
            state.update(sample.tobytes())
    return state.hexdigest()
