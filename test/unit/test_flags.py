"""Our flags on upstream's command line: from the shell or a YAML file, they become settings or one line on stderr."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_dualpath import flags, plugin
from sglang_dualpath.engine.activation import VARIABLE, activate, active_config, is_active

DECODE = ["--model-path", "m", "--disaggregation-mode", "decode"]
PREFILL = ["--model-path", "m", "--disaggregation-mode", "prefill"]


@pytest.fixture(autouse=True)
def inactive(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which `--kv-path` has not been given, and which attaches to nothing."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(plugin, "attach_frontend", lambda: None)
    yield
    os.environ.pop(VARIABLE, None)


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """Upstream's parser with our group: two options of one name would be an error here."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    if "--kv-path" not in parser._option_string_actions:
        flags.add_to_parser(None, parser)
    return parser


def started(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Upstream's namespace after our flags have been taken from it."""
    from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

    if "--config" in argv:
        argv = ConfigArgumentMerger(parser).merge_config_with_args(argv)
    namespace = parser.parse_args(argv)
    return flags.take_from_arguments(lambda _, args: args, None, namespace)


def test_upstreams_help_shows_our_group(parser: argparse.ArgumentParser) -> None:
    text = parser.format_help()
    assert text.count("DualPath KV loading (sglang-dualpath)") == 1
    for flag in ("--kv-path", "--kv-store", "--kv-buffer-size", "--router-control", "--kv-node-id"):
        assert flag in text


def test_without_our_flags_nothing_is_active(parser: argparse.ArgumentParser) -> None:
    before = parser.parse_args(DECODE)
    assert vars(started(parser, DECODE)) == vars(before)
    assert not is_active()


def test_the_flags_reach_the_settings(parser: argparse.ArgumentParser) -> None:
    started(parser, [*DECODE, "--kv-path", "dual", "--kv-store", "memory://x", "--kv-buffer-size", "512M"])
    config = active_config()
    assert (config.path, config.store_url, config.buffer_bytes) == ("dual", "memory://x", 512 * 2**20)


def test_the_flags_of_a_yaml_file_reach_the_settings(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    values = {
        "kv-path": "dual",
        "kv-store": "file:///var/lib/kv",
        "kv-buffer-size": "1G",
        "kv-transport-protocol": "tcp",
        "router-control": "tcp://10.0.0.1:30100",
        "kv-store-read-bandwidth": "30M",
        "kv-node-id": "node-7",
    }
    file = tmp_path / "engine.yaml"
    file.write_text("".join(f'{name}: "{value}"\n' for name, value in values.items()))
    started(parser, ["--config", str(file), *DECODE])
    config = active_config()
    assert config.path == "dual"
    assert config.store_url == "file:///var/lib/kv"
    assert config.buffer_bytes == 2**30
    assert config.transport_protocol == "tcp"
    assert config.router_control == "tcp://10.0.0.1:30100"
    assert config.store_read_bandwidth_bytes_per_s == 30 * 2**20
    assert config.node_id == "node-7"


def test_the_command_line_has_the_last_word_over_the_yaml_file(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("kv-path: prefill\nkv-store: memory://from-file\n")
    started(parser, ["--config", str(file), *DECODE, "--kv-path", "dual"])
    assert active_config().path == "dual"
    assert active_config().store_url == "memory://from-file"


def test_a_prefill_engine_gets_our_linker(parser: argparse.ArgumentParser) -> None:
    namespace = started(parser, [*PREFILL, "--kv-path", "prefill", "--kv-store", "memory://x"])
    assert namespace.enable_unified_cache_external_linker is True
    assert namespace.unified_cache_external_linker_backend == "dynamic"
    assert namespace.unified_cache_external_linker_config["linker"] == "DualPathLinker"


def test_a_decode_engine_gets_none(parser: argparse.ArgumentParser) -> None:
    namespace = started(parser, [*DECODE, "--kv-path", "dual", "--kv-store", "memory://x"])
    assert not namespace.enable_unified_cache_external_linker


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["--kv-store", "memory://x"], "--kv-store"),
        (["--kv-path", "dual"], "--kv-store"),
        (["--kv-path", "dual", "--kv-store", "nowhere"], "--kv-store"),
        (
            ["--kv-path", "dual", "--kv-store", "memory://x", "--enable-unified-cache-external-linker"],
            "--enable-unified-cache-external-linker",
        ),
    ],
)
def test_what_cannot_be_ends_the_launcher_with_one_line(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], argv: list[str], flag: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        started(parser, [*PREFILL, *argv])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("sglang-dualpath: error: ")
    assert flag in line


# ---- once upstream has resolved its settings


def resolved(**changes: Any) -> SimpleNamespace:
    """Upstream's resolved settings."""
    values: dict[str, Any] = {
        "disaggregation_mode": "decode",
        "page_size": None,
        "kv_cache_dtype": "auto",
        "pp_size": 1,
        "attn_cp_size": 1,
        "dcp_size": 1,
        "speculative_algorithm": None,
        "enable_hierarchical_cache": False,
        "disable_radix_cache": False,
        "enable_lora": None,
        "lora_paths": None,
        "disaggregation_decode_enable_radix_cache": False,
        "disaggregation_decode_enable_offload_kvcache": False,
        "disaggregation_decode_allocation_policy": "early",
        "enable_pd_role_switch": False,
        "disaggregation_transfer_backend": "mooncake",
    }
    return SimpleNamespace(**{**values, **changes})


@pytest.fixture
def active(parser: argparse.ArgumentParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process with `--kv-path dual` and a store in a directory, which is returned."""
    from sglang.srt.arg_groups import overrides

    monkeypatch.setattr(overrides, "resolving_view", lambda args: args)
    started(parser, [*DECODE, "--kv-path", "dual", "--kv-store", f"file://{tmp_path}/store"])
    return tmp_path


def test_settings_that_work_together_pass(active: Path) -> None:
    flags.check_resolved(None, resolved())


def test_without_kv_path_nothing_is_checked() -> None:
    activate(None)
    flags.check_resolved(None, resolved(pp_size=2))


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"pp_size": 2}, "--pp-size 2"),
        ({"lora_paths": ["x"]}, "--enable-lora"),
        ({"page_size": 100}, "--page-size 100"),
    ],
)
def test_what_cannot_work_ends_the_launcher_before_anything_heavy(
    active: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], flag: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        flags.check_resolved(None, resolved(**changes))
    assert ended.value.code == 2
    assert flag in capsys.readouterr().err


def test_a_store_that_cannot_be_written_to_ends_the_launcher(active: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (active / "store").write_text("not a directory")
    with pytest.raises(SystemExit):
        flags.check_resolved(None, resolved())
    assert "--kv-store" in capsys.readouterr().err
