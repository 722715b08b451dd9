"""The knobs of all policies."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Each policy uses those it names."""

    seed: int = 0
    """Of everything that is left to chance."""
    ttft_slo_s: float = 4.0
    """Longest time to the first token that still meets the objective."""
    virtual_nodes: int = 40
    """Of an engine on a hash ring."""
    popularity_window: int = 200
    """Requests over which a prefix's traffic share is taken."""
    popularity_min_samples: int = 20
    split_factor: float = 2.0
    """A prefix is split above this many average engines' shares of the traffic."""
    shrink_factor: float = 1.0
    """And shrinks back below this many."""
    cache_threshold: float = 0.3
    """Least matching share of a prompt for which the engine that holds it is taken (cache_aware)."""
    balance_abs_threshold: int = 64
    """Requests between the most and the least loaded engine above which balance goes first (cache_aware)."""
    balance_rel_threshold: float = 1.5
    """And their ratio (cache_aware)."""
