"""What end-to-end tests say to servers."""

import random
import uuid
from dataclasses import dataclass
from typing import Any

import requests

FIRST_TOKEN, LAST_TOKEN = 300, 990
"""Ordinary tokens of the test checkpoints' vocabulary."""


def prompt(seed: int, n_tokens: int) -> list[int]:
    """Random token ids, the same for the same seed."""
    source = random.Random(seed)
    return [source.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(n_tokens)]


def plan(read_side: str) -> dict[str, Any]:
    """A read plan as a router would put it on a request."""
    return {
        "protocol_version": "1",
        "message_id": uuid.uuid4().hex,
        "actions": [
            {
                "action_id": uuid.uuid4().hex,
                "action_type": "dualpath.read_plan",
                "action_version": "1",
                "payload": {"read_side": read_side, "plan_id": uuid.uuid4().hex},
            }
        ],
    }


@dataclass(frozen=True)
class Generated:
    """One answer."""

    tokens: list[int]
    cached_tokens: int


def generate(url: str, ids: list[int], n_new: int, side: str | None = None, timeout_s: float = 120) -> Generated:
    """Greedy tokens for token ids. Raises AssertionError on an error answer."""
    body: dict[str, Any] = {
        "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": n_new, "ignore_eos": True},
    }
    if side is not None:
        body["kv_hints"] = plan(side)
    answer = requests.post(url + "/generate", json=body, timeout=timeout_s)
    assert answer.status_code == 200, answer.text
    data = answer.json()
    return Generated(data["output_ids"], data["meta_info"]["cached_tokens"])
