"""Two independent consistent-hash rings: each prefix has two candidate engines, and a change moves one ring segment only.

Ketama points of `uhashring`, with virtual nodes. If both rings name one engine, the second ring's next distinct one is taken
(DualMap, dual-hash-ring scaling).
"""

from collections.abc import Callable

from uhashring import HashRing

VIRTUAL_NODES = 40
"""Each stands for four ketama points."""

_SALTS = ("first", "second")


class HashRings:
    """One ring or two; see the module."""

    def __init__(self, n_rings: int = 2, virtual_nodes: int = VIRTUAL_NODES) -> None:
        self._rings = [HashRing(nodes=[], vnodes=virtual_nodes) for _ in range(n_rings)]
        self._names: set[str] = set()

    def add(self, name: str) -> None:
        """Put an engine on each ring; again does nothing."""
        if name not in self._names:
            self._names.add(name)
            for ring, salt in zip(self._rings, _SALTS, strict=False):
                ring.add_node(f"{salt} {name}")

    def remove(self, name: str) -> None:
        """Take it off."""
        if name in self._names:
            self._names.remove(name)
            for ring, salt in zip(self._rings, _SALTS, strict=False):
                ring.remove_node(f"{salt} {name}")

    def candidates(self, key: int, allowed: Callable[[str], bool]) -> list[str]:
        """The engines of a key, one a ring, distinct where there are enough that are `allowed`."""
        found: list[str] = []
        for ring, salt in zip(self._rings, _SALTS, strict=False):
            name = self._next(ring, f"{salt} {key}", salt, found, allowed)
            if name is not None:
                found.append(name)
        return found

    def _next(
        self, ring: HashRing, key: str, salt: str, taken: list[str], allowed: Callable[[str], bool]
    ) -> str | None:
        if not self._names:
            return None
        name = ring.get_node(key).removeprefix(f"{salt} ")
        if name not in taken and allowed(name):
            return str(name)
        for node in ring.range(key, size=len(self._names), unique=True):
            name = node["nodename"].removeprefix(f"{salt} ")
            if name not in taken and allowed(name):
                return str(name)
        return None
