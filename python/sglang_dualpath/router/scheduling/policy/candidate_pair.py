"""A prefix's two candidate engines: two rings over a key as long as its popularity asks for (DualMap)."""

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from sglang_dualpath.router.scheduling.engine import Engine
from sglang_dualpath.router.scheduling.hash_rings import HashRings
from sglang_dualpath.router.scheduling.marks import KEY_BLOCK_TOKENS
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings
from sglang_dualpath.router.scheduling.prefix_popularity import PrefixPopularity
from sglang_dualpath.router.scheduling.request import Request

MAX_KEPT = 1 << 16
"""Pairs remembered of requests that wait."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The engines of one request's prefix, at least one, and how many tokens of it were hashed."""

    engines: list[Engine]
    key_tokens: int

    def hit_tokens(self, engine: Engine, request: Request) -> int:
        """What a candidate holds of the prompt. Less than the hashed prefix is what many others hold too, and counts as
        nothing: else one that lacks a common system prompt would never be chosen for its affinity."""
        held = engine.hit_tokens(request)
        return held if held >= self.key_tokens else 0


class CandidatePairs:
    """Keeps rings and popularity in step with engines and requests; without `splits` every prefix is its first block."""

    def __init__(self, settings: PolicySettings, n_rings: int = 2, splits: bool = True) -> None:
        self._splits = splits
        self._rings = HashRings(n_rings, settings.virtual_nodes)
        self._engines: dict[str, Engine] = {}
        self._kept: dict[str, Candidates] = {}
        self._popularity = PrefixPopularity(
            settings.popularity_window,
            settings.popularity_min_samples,
            settings.split_factor,
            settings.shrink_factor,
        )

    def joined(self, engine: Engine) -> None:
        """On the rings from now on."""
        self._engines[engine.engine_id] = engine
        self._rings.add(engine.engine_id)
        self._kept.clear()

    def left(self, engine: Engine) -> None:
        """Off the rings."""
        self._engines.pop(engine.engine_id, None)
        self._rings.remove(engine.engine_id)
        self._kept.clear()

    @property
    def everyone(self) -> list[Engine]:
        """All engines on the rings."""
        return list(self._engines.values())

    def forget(self, request: Request) -> None:
        """It has its engine."""
        self._kept.pop(request.request_id, None)

    def of(self, request: Request, engines: Sequence[Engine]) -> Candidates:
        """The candidates among `engines`; a prompt shorter than a key block is hashed by its id.

        The first time, its prefix has been asked for once more. A waiting request keeps its pair, also while the popularity of
        its prefix changes, until an engine joins or leaves.
        """
        kept = self._kept.get(request.request_id)
        if kept is not None and not request.passed_over:
            return kept
        everyone = len(engines) == len(self._engines)
        if everyone and self._splits:
            self._popularity.observe(request.keys, len(self._engines))
        depth = self._popularity.depth(request.keys)
        key = request.keys[depth - 1] if depth else xxhash.xxh3_64_intdigest(request.request_id.encode())
        names = None if everyone else {engine.engine_id for engine in engines}
        found = self._rings.candidates(key, lambda name: names is None or name in names)
        pair = Candidates([self._engines[name] for name in found], depth * KEY_BLOCK_TOKENS)
        if everyone:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[request.request_id] = pair
        return pair
