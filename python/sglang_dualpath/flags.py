"""Our flags on upstream's command line: added to its parser, taken from its namespace, checked once it has resolved."""

import argparse
import sys
from typing import Any, NoReturn

from sglang_dualpath import config as settings
from sglang_dualpath.engine.activation import activate, active_config, is_active

LINKER_CONFIG = '{"linker": "DualPathLinker", "linker_module_path": "sglang_dualpath.prefill.linker"}'


def add_to_parser(result: None, parser: argparse.ArgumentParser) -> None:
    """After `ServerArgs.add_cli_args`: our group."""
    settings.add_arguments(parser)


def take_from_arguments(original: Any, cls: Any, args: argparse.Namespace) -> Any:
    """Around `ServerArgs.from_cli_args`: turn our flags into settings, and into the upstream flags they imply."""
    try:
        config = settings.from_arguments(args)
        activate(config)
        if config is not None:
            _imply(args)
    except settings.FlagError as error:
        _refuse(error)
    if config is not None:
        from sglang_dualpath import plugin

        plugin.attach_frontend()
    return original(cls, args)


def _imply(args: argparse.Namespace) -> None:
    import json

    if args.disaggregation_mode == "prefill":
        if args.enable_unified_cache_external_linker:
            raise settings.FlagError(
                "--enable-unified-cache-external-linker: --kv-path brings a linker of its own; remove it"
            )
        args.enable_unified_cache_external_linker = True
        args.unified_cache_external_linker_backend = "dynamic"
        args.unified_cache_external_linker_config = json.loads(LINKER_CONFIG)


def check_resolved(result: None, server_args: Any) -> None:
    """After `ServerArgs.resolve_once`: refuse combinations that cannot work, before anything heavy starts."""
    if not is_active():
        return
    from sglang.srt.arg_groups.overrides import resolving_view

    from sglang_dualpath.store.url import check_store

    resolved = resolving_view(server_args)
    facts = settings.EngineFacts(
        disaggregation_mode=resolved.disaggregation_mode,
        page_size=resolved.page_size or 1,
        kv_cache_dtype=resolved.kv_cache_dtype,
        pp_size=resolved.pp_size,
        cp_size=resolved.attn_cp_size,
        dcp_size=resolved.dcp_size,
        speculative_algorithm=resolved.speculative_algorithm,
        enable_hierarchical_cache=resolved.enable_hierarchical_cache,
        disable_radix_cache=resolved.disable_radix_cache,
        enable_lora=bool(resolved.enable_lora or resolved.lora_paths),
        decode_radix_cache=resolved.disaggregation_decode_enable_radix_cache,
        decode_offload=resolved.disaggregation_decode_enable_offload_kvcache,
        decode_allocation_policy=resolved.disaggregation_decode_allocation_policy,
        enable_pd_role_switch=resolved.enable_pd_role_switch,
        transfer_backend=resolved.disaggregation_transfer_backend,
    )
    try:
        settings.check(active_config(), facts)
        check_store(active_config().store_url)
    except ValueError as error:
        _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    print(f"sglang-dualpath: error: {error}", file=sys.stderr, flush=True)
    raise SystemExit(2)
