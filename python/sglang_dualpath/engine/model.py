"""Which model, with which weights, this engine serves: what keeps the blocks of different models apart."""

from dataclasses import dataclass
from typing import Any

from sglang_dualpath.blocks.key import weights_revision


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """A model's name and the revision of the weights in memory, and the address peers reach this engine at."""

    name: str
    revision: str
    host: str


def model_identity(server_args: Any) -> ModelIdentity:
    """The identity of the served model.

    The revision covers the checkpoint's content and upstream's `--weight-version`; two engines that load the same files
    anywhere agree on it, and the name is the architecture's, not the path's, for the same reason.
    """
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.utils.network import get_local_ip_auto

    arguments = resolving_view(server_args)
    return ModelIdentity(
        name="sglang",
        revision=f"{weights_revision(arguments.model_path)}:{arguments.weight_version}",
        host=get_local_ip_auto(),
    )
