"""An emulated storage NIC for upstream's HiCache file backend, so that a baseline reads under the same limit as we do.

Development only: the demo sets the variable; without it upstream's backend is left alone.
"""

import os
from functools import cache
from typing import Any

from sglang_dualpath.store.nic import NodeStorageNic

VARIABLE = "SGLANG_DUALPATH_HICACHE_NIC"
"""`NODE_ID:BYTES_PER_SECOND`."""


def is_wanted() -> bool:
    """Whether reads of this process's HiCache file backend are to be paced."""
    return VARIABLE in os.environ


def pace_read(result: Any, backend: Any, key: str, target_location: Any, target_sizes: Any = None) -> Any:
    """After `HiCacheFile.get`: return when the NIC would have let the page through."""
    if result is not None:
        _nic().acquire(result.numel() * result.element_size())
    return result


@cache
def _nic() -> NodeStorageNic:
    node_id, bandwidth = os.environ[VARIABLE].rsplit(":", 1)
    return NodeStorageNic(node_id, float(bandwidth))
