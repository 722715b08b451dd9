"""What the router was asked for."""

from dataclasses import dataclass
from pathlib import Path

from sglang_dualpath.router.core.core import QueueSettings
from sglang_dualpath.router.dry_run.replay import CountedFleet
from sglang_dualpath.router.front.access import Keys
from sglang_dualpath.router.membership.breaker import BreakerSettings
from sglang_dualpath.router.membership.health import HealthSettings
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The socket where engines report; with `curve_secret` it takes only engines that hold its public key."""

    host: str
    port: int
    curve_secret: Path | None = None


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    """The policy, and the rules beside it."""

    policy: str
    decode: str
    read_side: str
    knobs: PolicySettings
    alpha_tokens: int | None = None
    beta_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """All of it."""

    prefill: tuple[tuple[str, int | None], ...]
    decode: tuple[str, ...]
    host: str
    port: int
    n_fronts: int
    control: ControlSettings
    scheduling: SchedulingSettings
    health: HealthSettings
    breaker: BreakerSettings
    queue: QueueSettings
    keys: Keys
    request_timeout_s: float
    retries: bool
    max_payload_bytes: int
    request_id_headers: tuple[str, ...]
    shutdown_grace_s: float
    drain_timeout_s: float
    log_level: str
    log_json: bool
    otlp_endpoint: str | None
    dry_run: Path | None
    dry_run_fleet: CountedFleet
