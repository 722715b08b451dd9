"""What a server on a CPU runs with unless told otherwise, so that `--model-path` alone serves."""

import logging
import os
from pathlib import Path
from typing import Any

from sglang_dualpath.platform.attention import registration

logger = logging.getLogger(__name__)

PAGE_TOKENS = 64
MAX_TOTAL_TOKENS = 65_536
"""Tokens the KV pool holds at most; its memory is touched only as they are used."""

MEM_FRACTION = 0.5
"""Of the memory free at start, for weights and KV; the pool is bounded by MAX_TOTAL_TOKENS first."""

BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
"""Any of them in /proc/cpuinfo."""

MAX_RUNNING_REQUESTS = 32
CHUNKED_PREFILL_TOKENS = 2_048

_IF_NOT_GIVEN: dict[str, Any] = {
    "device": "cpu",
    "sampling_backend": "pytorch",
    "page_size": PAGE_TOKENS,
    "max_total_tokens": MAX_TOTAL_TOKENS,
    "mem_fraction_static": MEM_FRACTION,
    "max_running_requests": MAX_RUNNING_REQUESTS,
    "chunked_prefill_size": CHUNKED_PREFILL_TOKENS,
}

# Switches that do not work, or only burn a core, on a CPU; upstream cannot tell their 'off' from 'not given'.
_ALWAYS: dict[str, Any] = {
    "disable_overlap_schedule": True,
    "sleep_on_idle": True,
    "disable_cuda_graph": True,
}


def fill_in(server_args: Any) -> None:
    """Assign the defaults to upstream's `ServerArgs`; a flag that was given stands."""
    if server_args.attention_backend in (None, "intel_amx"):
        # The latter is upstream's pick for any x86-64 CPU, and needs kernels that this platform does without.
        server_args.attention_backend = registration.DEFAULT_BACKEND
    for name, value in _IF_NOT_GIVEN.items():
        if getattr(server_args, name) is None:
            setattr(server_args, name, value)
    for name, value in _ALWAYS.items():
        setattr(server_args, name, value)
    if server_args.dtype == "auto":
        server_args.dtype = usual_dtype(server_args.model_path)
    _fill_in_disaggregation(server_args)


def _fill_in_disaggregation(server_args: Any) -> None:
    if server_args.disaggregation_mode == "null":
        return
    if server_args.disaggregation_mode == "decode" and server_args.disaggregation_decode_retraction_backup is None:
        server_args.disaggregation_decode_retraction_backup = "cpu_tensor"
    if server_args.disaggregation_ib_device is None:
        # What upstream's backend name `mooncake_tcp` stands for; by now that name has been resolved already.
        os.environ.setdefault("MC_FORCE_TCP", "1")


def usual_dtype(model_path: str) -> str:
    """What `--dtype auto` stands for on this CPU.

    Upstream's own choice halves a float32 checkpoint to float16, which a CPU computes slower than either, and keeps bfloat16,
    which one without instructions for it computes several times slower than float32.
    """
    if _is_checkpoint_float32(model_path):
        return "float32"
    if not computes_bfloat16():
        logger.info("this CPU has no instructions for bfloat16: computing in float32 (--dtype bfloat16 overrides)")
        return "float32"
    return "auto"


def computes_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU multiplies bfloat16 by itself."""
    try:
        flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    except OSError:
        return False
    return not BFLOAT16_FLAGS.isdisjoint(flags.split())


def _is_checkpoint_float32(model_path: str) -> bool:
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(model_path)
    except OSError:
        return False  # upstream reports a model that cannot be found, and better
    return config.get("dtype", config.get("torch_dtype", "float32")) == "float32"
