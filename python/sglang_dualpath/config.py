"""The flags of the distribution: one typed record, validated once in the launcher, carried to every child process."""

import argparse
import re
import socket
from decimal import Decimal
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from sglang_dualpath.blocks.geometry import BLOCK_TOKENS

SUPPORTED_KV_DTYPES = ("auto", "bfloat16", "bf16", "fp8_e4m3", "fp8_e5m2")
"""Upstream `--kv-cache-dtype` values whose pools hold one plain row a token, which is what a Full Block stores."""

MEMORY_STORE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""What a `memory://NAME` store may be called; it is part of a path."""

_NEEDS_PATH = (
    "kv_store",
    "kv_buffer_size",
    "kv_transport",
    "kv_transport_protocol",
    "router_control",
    "kv_store_read_bandwidth",
    "kv_node_id",
)

_SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class FlagError(ValueError):
    """A flag, or a combination of flags, that cannot work; the message names the flag and the remedy."""


class DualPathConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked of KV loading; absent altogether when `--kv-path` was not given."""

    path: Literal["prefill", "dual"]
    store_url: str
    buffer_bytes: int
    transport: Literal["mooncake"]
    transport_protocol: Literal["auto", "tcp", "rdma"]
    router_control: str | None
    store_read_bandwidth_bytes_per_s: float | None
    node_id: str


def parse_size_bytes(text: str) -> int:
    """Bytes of a size such as `512M`, `8GiB`, `1.5g` or plain digits. Raises FlagError on anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise FlagError(f"cannot read {text!r} as a size; write bytes or a number with K, M, G or T, such as 8G")
    return int(Decimal(match.group(1)) * _SIZE_UNITS[match.group(2)])


def _size(text: str) -> int:
    try:
        return parse_size_bytes(text)
    except FlagError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add our flags, in a group of their own, to upstream's `sglang serve` parser."""
    group = parser.add_argument_group(
        "DualPath KV loading (sglang-dualpath)",
        "Cached KV is read from a store by the prefill engine, by the decode engine, or by both, and streamed layer by "
        "layer. Needs --disaggregation-mode; without --kv-path nothing here has any effect.",
    )
    group.add_argument(
        "--kv-path",
        choices=("prefill", "dual"),
        default=None,
        help="Turn DualPath loading on. 'prefill': the prefill engine reads all cached KV (the paper's Basic). 'dual': "
        "each request is read on either side, as the router's plan says. Give both engines the same value.",
    )
    group.add_argument(
        "--kv-store",
        default=None,
        metavar="URL",
        help="Where KV blocks persist. file:///DIR: a directory all engines see (local disk, NFS, 3FS mount). "
        "memory://NAME: shared memory of this host, exempt from --kv-store-read-bandwidth, gone with its last engine.",
    )
    group.add_argument(
        "--kv-buffer-size",
        type=_size,
        default=None,
        metavar="SIZE",
        help="DRAM for blocks on their way between store, peer and device, such as 8G (default: 2G, or a quarter of "
        "the free memory where that is less). A prompt must fit into it on the decode side.",
    )
    group.add_argument(
        "--kv-transport",
        choices=("mooncake",),
        default=None,
        help="What moves Layer Blocks between engines (default: mooncake, the Mooncake TransferEngine).",
    )
    group.add_argument(
        "--kv-transport-protocol",
        choices=("auto", "tcp", "rdma"),
        default=None,
        help="The transport's wire (default: auto, which takes rdma where there are an accelerator and an RDMA device, "
        "and tcp elsewhere).",
    )
    group.add_argument(
        "--router-control",
        default=None,
        metavar="ENDPOINT",
        help="ZMQ endpoint of the router's control socket, such as tcp://10.0.0.1:30100, to report load to.",
    )
    group.add_argument(
        "--kv-store-read-bandwidth",
        type=_size,
        default=None,
        metavar="BYTES/S",
        help="Development only: emulate a storage NIC of this many bytes a second, shared by all engines of a node "
        "(see --kv-node-id), such as 30M.",
    )
    group.add_argument(
        "--kv-node-id",
        default=None,
        metavar="NAME",
        help="Name of the node whose storage NIC and read queue this engine shares (default: the host name).",
    )


def from_arguments(arguments: argparse.Namespace) -> DualPathConfig | None:
    """The typed record of the parsed flags; None without `--kv-path`. Raises FlagError."""
    if getattr(arguments, "kv_path", None) is None:
        for flag in _NEEDS_PATH:
            if getattr(arguments, flag, None) is not None:
                name = "--" + flag.replace("_", "-")
                raise FlagError(f"{name} has no effect without --kv-path; add --kv-path dual or remove {name}")
        return None
    if arguments.kv_store is None:
        raise FlagError("--kv-path needs --kv-store, such as --kv-store file:///var/lib/kv")
    _check_store_url(arguments.kv_store)
    if arguments.router_control is not None:
        _check_endpoint(arguments.router_control)
    if arguments.kv_store_read_bandwidth is not None and arguments.kv_store_read_bandwidth <= 0:
        raise FlagError("--kv-store-read-bandwidth must be more than 0 bytes a second")
    if arguments.kv_buffer_size is not None and arguments.kv_buffer_size <= 0:
        raise FlagError("--kv-buffer-size must be more than 0 bytes; leave it out for the default")
    return DualPathConfig(
        path=arguments.kv_path,
        store_url=arguments.kv_store,
        buffer_bytes=arguments.kv_buffer_size or _default_buffer_bytes(),
        transport=arguments.kv_transport or "mooncake",
        transport_protocol=arguments.kv_transport_protocol or "auto",
        router_control=arguments.router_control,
        store_read_bandwidth_bytes_per_s=arguments.kv_store_read_bandwidth,
        node_id=arguments.kv_node_id or socket.gethostname(),
    )


def _check_store_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc == "" and parts.path.startswith("/") and parts.path != "/":
        return
    if url.startswith("memory://") and not parts.path:
        if parts.netloc and not MEMORY_STORE_NAME.fullmatch(parts.netloc):
            raise FlagError(
                f"--kv-store {url!r}: a memory store's name is 1 to 64 of ASCII letters, digits, '.', '_', '-'"
            )
        return
    raise FlagError(f"--kv-store {url!r} is neither file:///DIR (three slashes, an absolute path) nor memory://NAME")


def _check_endpoint(endpoint: str) -> None:
    match = re.fullmatch(r"tcp://(?:\[[^\]]+\]|[^:\[\]]+):(\d{1,5})|ipc://.+", endpoint)
    if match is None or (match.group(1) is not None and not 1 <= int(match.group(1)) <= 65535):
        raise FlagError(f"--router-control {endpoint!r} is not a ZMQ endpoint such as tcp://10.0.0.1:30100")


def _default_buffer_bytes() -> int:
    import psutil

    return min(2 * 2**30, psutil.virtual_memory().available // 4)


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved upstream settings that decide whether the flags can work together."""

    disaggregation_mode: str
    page_size: int
    kv_cache_dtype: str
    pp_size: int
    cp_size: int
    dcp_size: int
    speculative_algorithm: str | None
    enable_hierarchical_cache: bool
    disable_radix_cache: bool
    enable_lora: bool
    decode_radix_cache: bool
    decode_offload: bool
    decode_allocation_policy: str
    enable_pd_role_switch: bool
    transfer_backend: str


def check(config: DualPathConfig, facts: EngineFacts) -> None:
    """Refuse combinations that cannot work. Raises FlagError with one sentence naming the flag and the remedy."""
    if facts.disaggregation_mode not in ("prefill", "decode"):
        raise FlagError("--kv-path needs --disaggregation-mode prefill or decode; a single server has no second path")
    if facts.page_size > BLOCK_TOKENS or BLOCK_TOKENS % facts.page_size:
        raise FlagError(f"--page-size {facts.page_size} does not divide {BLOCK_TOKENS}; use --page-size 64")
    if facts.kv_cache_dtype not in SUPPORTED_KV_DTYPES:
        raise FlagError(
            f"--kv-cache-dtype {facts.kv_cache_dtype} is not supported with --kv-path; "
            f"use one of {', '.join(SUPPORTED_KV_DTYPES)}"
        )
    for flag, size in (
        ("--pp-size", facts.pp_size),
        ("--attn-cp-size", facts.cp_size),
        ("--dcp-size", facts.dcp_size),
    ):
        if size > 1:
            raise FlagError(f"{flag} {size} is not supported with --kv-path; leave it at 1")
    if facts.speculative_algorithm:
        raise FlagError(
            "--speculative-algorithm is not supported with --kv-path: a draft's KV has no blocks; remove it"
        )
    if facts.enable_hierarchical_cache:
        raise FlagError("--enable-hierarchical-cache and --kv-path both load cached KV; remove one of them")
    if facts.disaggregation_mode == "prefill" and facts.disable_radix_cache:
        raise FlagError("--disable-radix-cache leaves --kv-path nothing to load into; remove it")
    if facts.enable_lora:
        raise FlagError("--enable-lora is not supported with --kv-path yet; remove it")
    if facts.decode_radix_cache or facts.decode_offload:
        raise FlagError(
            "--disaggregation-decode-enable-radix-cache and --disaggregation-decode-enable-offload-kvcache do not go "
            "with --kv-path, which persists decoded KV itself; remove them"
        )
    if facts.decode_allocation_policy != "early":
        raise FlagError("--disaggregation-decode-allocation-policy must be 'early' with --kv-path")
    if facts.enable_pd_role_switch:
        raise FlagError("--enable-pd-role-switch is not supported with --kv-path; remove it")
    if facts.transfer_backend != "mooncake":
        raise FlagError(
            f"--disaggregation-transfer-backend {facts.transfer_backend} does not go with --kv-path, whose transport is "
            "--kv-transport mooncake; use --disaggregation-transfer-backend mooncake or mooncake_tcp"
        )
