"""The entry point of the group `sglang.srt.plugins`, and the one file that names upstream hook targets.

Each target stands here with the parameters it is expected to have. A target that is missing or has changed, or any
import error of ours, ends the process at once: upstream itself only logs a plugin that fails, and would go on without it.
"""

import inspect
import multiprocessing
import pkgutil
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

UPSTREAM_VERSION = "0.5.23"


@dataclass(frozen=True, slots=True)
class HookTarget:
    """An upstream function or class, the parameter names expected of it, and what is attached to it, and how.

    `kind` is a member name of upstream's `HookType`.
    """

    path: str
    parameters: tuple[str, ...]
    kind: str
    hook: Callable[..., Any]


class HookMismatch(RuntimeError):
    """Upstream is not what this version was written for."""


def load() -> None:
    """Attach to upstream; called once in each SGLang process (upstream `load_plugins`)."""
    try:
        from sglang_dualpath.engine.activation import is_active

        attach(_flag_targets())
        attach(_platform_targets())
        if is_active():
            attach(_engine_targets())
            attach(_frontend_targets())
    except Exception as error:
        _stop(error)


def attach(targets: Sequence[HookTarget]) -> None:
    """Check and register hooks; upstream applies them. Raises HookMismatch."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target in targets:
        check_target(target)
        HookRegistry.register(target.path, target.hook, HookType[target.kind])


def attach_frontend() -> None:
    """In the launcher, once `--kv-path` has been seen: check all engine targets, attach to the HTTP front."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    try:
        for target in _engine_targets():
            check_target(target)
        attach(_frontend_targets())
    except Exception as error:
        _stop(error)
    HookRegistry.apply_hooks()


def check_target(target: HookTarget) -> None:
    """Compare a target's parameters with the expected ones. Raises HookMismatch naming target, expected and found."""
    try:
        found = pkgutil.resolve_name(target.path)
    except (ImportError, AttributeError) as error:
        raise HookMismatch(
            f"upstream target {target.path} is missing ({error}); expected parameters "
            f"({', '.join(target.parameters)}) as in sglang {UPSTREAM_VERSION}"
        ) from error
    names = parameters_of(found.__init__ if inspect.isclass(found) else found)
    if names != target.parameters:
        raise HookMismatch(
            f"upstream target {target.path} has changed: expected parameters ({', '.join(target.parameters)}) as in "
            f"sglang {UPSTREAM_VERSION}, found ({', '.join(names)})"
        )


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """A function's own parameter names, under whatever hooks already stand on it."""
    original = inspect.unwrap(function)
    names = tuple(inspect.signature(original).parameters)
    if inspect.ismethod(function) and not inspect.ismethod(original):
        # A hooked class method, unwrapped, shows the parameter that binding hides.
        return names[1:]
    return names


def _stop(error: BaseException) -> NoReturn:
    """End the process with one message. SystemExit passes upstream's `except Exception`."""
    if not isinstance(error, HookMismatch):
        traceback.print_exception(error)
    print(f"sglang-dualpath cannot attach to SGLang: {error}", file=sys.stderr, flush=True)
    raise SystemExit(1)


def _flag_targets() -> list[HookTarget]:
    from sglang_dualpath import flags

    server_args = "sglang.srt.server_args.ServerArgs"
    return [
        HookTarget(f"{server_args}.add_cli_args", ("parser",), "AFTER", flags.add_to_parser),
        HookTarget(f"{server_args}.from_cli_args", ("args",), "AROUND", flags.take_from_arguments),
        HookTarget(f"{server_args}.resolve_once", ("self",), "AFTER", flags.check_resolved),
    ]


def _platform_targets() -> list[HookTarget]:
    """What upstream's worker processes run on a CPU: nothing where another platform serves, nothing in the launcher."""
    from sglang_dualpath.platform import entry

    if multiprocessing.parent_process() is None or not entry.is_active():
        return []
    from sglang_dualpath.platform import allocation, transfer
    from sglang_dualpath.platform.hicache import host_pools, memory, pacing

    pools = "sglang.srt.mem_cache.pool_host"
    load_parameters = (
        "self",
        "device_pool",
        "host_indices",
        "device_indices",
        "layer_id",
        "io_backend",
        "is_draft",
    )
    back_up_parameters = ("self", "device_pool", "host_indices", "device_indices", "io_backend")
    host_pool_parameters = (
        "self",
        "dtype",
        "device_capacity_tokens",
        "size_per_token",
        "start_layer",
        "end_layer",
        "host_to_device_ratio",
        "host_size",
        "page_size",
        "layout",
        "pin_memory",
        "device",
        "allocator_type",
        "dcp_size",
        "dcp_rank",
        "pool_label",
        "is_dummy",
        "host_token_capacity",
    )
    budget_parameters = ("requested_bytes", "auto_size")
    file_get = "sglang.srt.mem_cache.hicache_storage.HiCacheFile.get"
    get_parameters = ("self", "key", "target_location", "target_sizes")
    mha, mla = f"{pools}.mha.MHATokenToKVPoolHost", f"{pools}.mla.MLATokenToKVPoolHost"
    return [
        HookTarget(
            "sglang.srt.mem_cache.allocation.get_last_loc",
            ("req_to_token", "req_pool_indices_tensor", "prefix_lens_tensor"),
            "REPLACE",
            allocation.last_slots,
        ),
        HookTarget(
            "sglang.srt.disaggregation.utils.get_kv_class",
            ("transfer_backend", "class_type"),
            "AFTER",
            transfer.transfer_class,
        ),
        HookTarget(f"{pools}.base.HostKVCache.__init__", host_pool_parameters, "BEFORE", host_pools.without_pinning),
        HookTarget(f"{mha}.load_to_device_per_layer", load_parameters, "AROUND", host_pools.load_mha_layer),
        HookTarget(f"{mha}.backup_from_device_all_layer", back_up_parameters, "AROUND", host_pools.back_up_mha),
        HookTarget(f"{mla}.load_to_device_per_layer", load_parameters, "AROUND", host_pools.load_mla_layer),
        HookTarget(f"{mla}.backup_from_device_all_layer", back_up_parameters, "AROUND", host_pools.back_up_mla),
        HookTarget(f"{pools}.base.host_memory_budget_bytes", budget_parameters, "AFTER", memory.host_memory_budget),
        *([HookTarget(file_get, get_parameters, "AFTER", pacing.pace_read)] if pacing.is_wanted() else []),
    ]


def _engine_targets() -> list[HookTarget]:
    """What a scheduler process runs with `--kv-path`."""
    from sglang_dualpath.engine import hooks

    prefill = "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue"
    decode = "sglang.srt.disaggregation.decode"
    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    linker = "sglang.srt.mem_cache.unified_cache.unified_cache_linker.UnifiedCacheLinkerWrapper"
    weights = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    state = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"
    decode_queue_parameters = (
        "self",
        "req_to_token_pool",
        "token_to_kv_pool_allocator",
        "draft_token_to_kv_pool",
        "req_to_metadata_buffer_idx_allocator",
        "metadata_buffers",
        "scheduler",
        "transfer_queue",
        "tree_cache",
        "gpu_id",
        "bootstrap_port",
        "max_total_num_tokens",
        "num_reserved_decode_tokens",
        "transfer_backend",
    )
    transfer_queue_parameters = (
        "self",
        "req_to_metadata_buffer_idx_allocator",
        "metadata_buffers",
        "scheduler",
        "tree_cache",
    )
    return [
        HookTarget(
            "sglang.srt.disaggregation.utils.get_kv_class",
            ("transfer_backend", "class_type"),
            "AFTER",
            hooks.kv_class,
        ),
        HookTarget(f"{prefill}._init_kv_manager", ("self",), "AFTER", hooks.join_linker),
        HookTarget(f"{prefill}.create_sender", ("self", "req", "num_kv_heads"), "AFTER", hooks.attach_sender),
        HookTarget(f"{linker}.match", ("self", "key", "req", "result"), "BEFORE", hooks.note_device_hit),
        HookTarget(f"{scheduler}.run_batch", ("self", "batch", "pp_proxy_tensors"), "AROUND", hooks.stream_forward),
        HookTarget(f"{decode}.DecodePreallocQueue", decode_queue_parameters, "REPLACE", hooks.prealloc_queue_class()),
        HookTarget(
            f"{decode}.DecodeTransferQueue.__init__", transfer_queue_parameters, "AFTER", hooks.receive_into_host
        ),
        HookTarget(f"{scheduler}.process_batch_result", ("self", "batch", "result"), "BEFORE", hooks.persist_decoded),
        HookTarget(f"{scheduler}.on_idle", ("self",), "AFTER", hooks.wait_for_news),
        HookTarget(f"{scheduler}.init_disaggregation", ("self",), "AFTER", hooks.begin_reports),
        *(
            HookTarget(f"{weights}.update_weights_from_{source}", ("self", "recv_req"), "AFTER", hooks.revise_weights)
            for source in ("disk", "distributed", "tensor", "ipc")
        ),
        HookTarget(f"{state}.get_internal_state", ("self", "recv_req"), "AFTER", hooks.report_state),
    ]


def _frontend_targets() -> list[HookTarget]:
    """What the HTTP front of an engine runs with `--kv-path`."""
    from sglang_dualpath.engine import frontend

    chat = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
    completions = "sglang.srt.entrypoints.openai.serving_completions.OpenAIServingCompletion"
    parameters = ("self", "request", "raw_request")
    return [
        HookTarget(f"{chat}._convert_to_internal_request", parameters, "AFTER", frontend.lift_plan),
        HookTarget(f"{completions}._convert_to_internal_request", parameters, "AFTER", frontend.lift_plan),
    ]
