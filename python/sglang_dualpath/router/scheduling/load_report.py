"""What an engine's report means for scheduling."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One engine (data-parallel rank) at one moment."""

    engine_id: str
    node_id: str
    dual: bool
    seq: int
    tok: int
    read_q_tokens: int
    free_kv_tokens: int
    free_buffer_tokens: int
    alpha_tokens: float
    beta_tokens: float
    read_tokens_per_s: float | None = None
    compute_tokens_per_s: float | None = None
