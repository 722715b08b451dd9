"""Flags: one typed record or one sentence that names the flag and the remedy."""

import argparse
import socket
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.config import (
    SUPPORTED_KV_DTYPES,
    DualPathConfig,
    EngineFacts,
    FlagError,
    add_arguments,
    check,
    from_arguments,
    parse_size_bytes,
)

MINIMAL = ["--kv-path", "dual", "--kv-store", "file:///var/lib/kv", "--kv-buffer-size", "1G"]

FACTS = EngineFacts(
    disaggregation_mode="prefill",
    page_size=64,
    kv_cache_dtype="auto",
    pp_size=1,
    cp_size=1,
    dcp_size=1,
    speculative_algorithm=None,
    enable_hierarchical_cache=False,
    disable_radix_cache=False,
    enable_lora=False,
    decode_radix_cache=False,
    decode_offload=False,
    decode_allocation_policy="early",
    enable_pd_role_switch=False,
    transfer_backend="mooncake",
)


def parsed(*argv: str) -> argparse.Namespace:
    """The command line as upstream's parser would give it to us."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(argv)


def config_of(*argv: str) -> DualPathConfig:
    """The record of a command line that turns DualPath on."""
    config = from_arguments(parsed(*argv))
    assert config is not None
    return config


# ---- sizes


@given(st.integers(0, 2**60))
def test_plain_digits_are_bytes(n_bytes: int) -> None:
    assert parse_size_bytes(str(n_bytes)) == n_bytes


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("1k", 2**10),
        ("512M", 512 * 2**20),
        ("8GiB", 8 * 2**30),
        ("1.5g", 3 * 2**29),
        ("2 TB", 2**41),
        (" 30M ", 30 * 2**20),
    ],
)
def test_a_unit_multiplies(text: str, n_bytes: int) -> None:
    assert parse_size_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "M", "-1", "1x", "1,5G", "1e9", "8G8", "inf", "nan", "0x10"])
def test_anything_else_is_no_size(text: str) -> None:
    with pytest.raises(FlagError, match="as a size"):
        parse_size_bytes(text)


@pytest.mark.parametrize("flag", ["--kv-buffer-size", "--kv-store-read-bandwidth"])
def test_a_bad_size_ends_the_parse_with_the_name_of_its_flag(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(flag, "lots")
    message = capsys.readouterr().err
    assert flag in message
    assert "'lots'" in message


# ---- help


def test_the_flags_stand_in_a_group_of_their_own() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    (group,) = [group for group in parser._action_groups if group.title and "DualPath" in group.title]
    flags = [action.option_strings[0] for action in group._group_actions]
    assert flags == [
        "--kv-path",
        "--kv-store",
        "--kv-buffer-size",
        "--kv-transport",
        "--kv-transport-protocol",
        "--router-control",
        "--kv-store-read-bandwidth",
        "--kv-node-id",
    ]
    assert all(action.help for action in group._group_actions)
    assert parser.format_help().count("DualPath KV loading") == 1


# ---- the record


def test_without_kv_path_there_is_no_record() -> None:
    assert from_arguments(parsed()) is None


def test_a_namespace_that_never_saw_our_parser_has_no_record() -> None:
    assert from_arguments(argparse.Namespace()) is None


@pytest.mark.parametrize(
    "argv",
    [
        ["--kv-store", "memory://x"],
        ["--kv-buffer-size", "1G"],
        ["--router-control", "tcp://h:1"],
        ["--kv-store-read-bandwidth", "1M"],
        ["--kv-node-id", "n"],
        ["--kv-transport-protocol", "rdma"],
    ],
)
def test_a_flag_that_needs_kv_path_says_so(argv: list[str]) -> None:
    with pytest.raises(FlagError, match=f"{argv[0]} has no effect without --kv-path"):
        from_arguments(parsed(*argv))


def test_the_flags_become_the_record() -> None:
    config = config_of(
        *MINIMAL,
        *("--kv-transport-protocol", "tcp"),
        *("--router-control", "tcp://10.0.0.1:30100"),
        *("--kv-store-read-bandwidth", "30M"),
        *("--kv-node-id", "node-7"),
    )
    assert config == DualPathConfig(
        path="dual",
        store_url="file:///var/lib/kv",
        buffer_bytes=2**30,
        transport="mooncake",
        transport_protocol="tcp",
        router_control="tcp://10.0.0.1:30100",
        store_read_bandwidth_bytes_per_s=30 * 2**20,
        node_id="node-7",
    )


def test_what_is_not_said_has_a_default() -> None:
    config = config_of("--kv-path", "prefill", "--kv-store", "memory://x")
    assert config.node_id == socket.gethostname()
    assert config.transport_protocol == "auto"
    assert config.router_control is None
    assert config.store_read_bandwidth_bytes_per_s is None
    assert 0 < config.buffer_bytes <= 2 * 2**30


def test_the_record_survives_the_environment_it_travels_in() -> None:
    config = config_of(*MINIMAL)
    assert msgspec.json.decode(msgspec.json.encode(config), type=DualPathConfig) == config


def test_kv_path_needs_a_store() -> None:
    with pytest.raises(FlagError, match="--kv-path needs --kv-store"):
        from_arguments(parsed("--kv-path", "dual"))


@pytest.mark.parametrize(
    "url", ["", "/var/kv", "file://var/kv", "file:var", "file:///", "http://h/x", "memory:", "s3://b", "memory://a/b"]
)
def test_a_store_url_of_neither_kind_is_refused(url: str) -> None:
    with pytest.raises(FlagError, match="--kv-store"):
        from_arguments(parsed("--kv-path", "dual", "--kv-store", url))


@pytest.mark.parametrize("url", ["memory://a b", "memory://" + "x" * 65, "memory://näme"])
def test_a_memory_store_with_an_impossible_name_is_refused(url: str) -> None:
    with pytest.raises(FlagError, match="--kv-store"):
        from_arguments(parsed("--kv-path", "dual", "--kv-store", url))


@pytest.mark.parametrize(
    "endpoint",
    ["", "10.0.0.1:30100", "tcp://10.0.0.1", "tcp://:1", "http://h:1", "tcp://h:99999", "tcp://h:0", "ipc://"],
)
def test_an_endpoint_that_zmq_would_refuse_is_refused_here(endpoint: str) -> None:
    with pytest.raises(FlagError, match="--router-control"):
        from_arguments(parsed(*MINIMAL, "--router-control", endpoint))


@pytest.mark.parametrize("endpoint", ["tcp://h:1", "tcp://[::1]:65535", "ipc:///tmp/x"])
def test_an_endpoint_of_zmq_is_taken(endpoint: str) -> None:
    assert config_of(*MINIMAL, "--router-control", endpoint).router_control == endpoint


@pytest.mark.parametrize("flag", ["--kv-store-read-bandwidth", "--kv-buffer-size"])
def test_a_size_of_nothing_is_refused_not_replaced(flag: str) -> None:
    with pytest.raises(FlagError, match=flag):
        from_arguments(parsed(*MINIMAL, flag, "0"))


# ---- what upstream has resolved


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("dtype", SUPPORTED_KV_DTYPES)
def test_settings_that_work_together_pass(mode: str, page_size: int, dtype: str) -> None:
    facts = msgspec.structs.replace(FACTS, disaggregation_mode=mode, page_size=page_size, kv_cache_dtype=dtype)
    check(config_of(*MINIMAL), facts)


@pytest.mark.parametrize(
    ("facts", "flag"),
    [
        ({"disaggregation_mode": "null"}, "--disaggregation-mode"),
        ({"page_size": 48}, "--page-size 48"),
        ({"page_size": 128}, "--page-size 128"),
        ({"kv_cache_dtype": "fp4_e2m1"}, "--kv-cache-dtype fp4_e2m1"),
        ({"pp_size": 2}, "--pp-size 2"),
        ({"cp_size": 2}, "--attn-cp-size 2"),
        ({"dcp_size": 2}, "--dcp-size 2"),
        ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache"),
        ({"disable_radix_cache": True}, "--disable-radix-cache"),
        ({"enable_lora": True}, "--enable-lora"),
        ({"decode_radix_cache": True}, "--disaggregation-decode-enable-radix-cache"),
        ({"decode_offload": True}, "--disaggregation-decode-enable-offload-kvcache"),
        ({"decode_allocation_policy": "late"}, "--disaggregation-decode-allocation-policy"),
        ({"enable_pd_role_switch": True}, "--enable-pd-role-switch"),
        ({"transfer_backend": "nixl"}, "--disaggregation-transfer-backend nixl"),
    ],
)
def test_what_cannot_work_with_kv_path_is_refused_by_its_flag(facts: dict[str, Any], flag: str) -> None:
    with pytest.raises(FlagError, match=flag):
        check(config_of(*MINIMAL), msgspec.structs.replace(FACTS, **facts))


def test_a_decode_engine_may_run_without_a_radix_cache() -> None:
    check(config_of(*MINIMAL), msgspec.structs.replace(FACTS, disaggregation_mode="decode", disable_radix_cache=True))
