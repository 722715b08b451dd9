"""What a server on a CPU runs with, and that a flag which was given stands."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_dualpath.platform import defaults
from sglang_dualpath.platform.attention.registration import DEFAULT_BACKEND


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that what a test adds is taken back with it.
    monkeypatch.setenv("MC_FORCE_TCP", "unset")
    monkeypatch.delenv("MC_FORCE_TCP")


def checkpoint(directory: Path, **config: Any) -> str:
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2"} | config))
    return str(directory)


def filled_in(model_path: str, **given: Any) -> Any:
    arguments = SimpleNamespace(
        model_path=model_path,
        device=None,
        dtype="auto",
        attention_backend=None,
        sampling_backend=None,
        page_size=None,
        max_total_tokens=None,
        mem_fraction_static=None,
        max_running_requests=None,
        chunked_prefill_size=None,
        disable_overlap_schedule=False,
        sleep_on_idle=False,
        disable_cuda_graph=False,
        disaggregation_mode="null",
        disaggregation_ib_device=None,
        disaggregation_decode_retraction_backup=None,
    )
    vars(arguments).update(given)
    defaults.fill_in(arguments)
    return arguments


def test_a_model_path_alone_is_enough(tmp_path: Path) -> None:
    arguments = filled_in(checkpoint(tmp_path, dtype="bfloat16"))
    assert arguments.device == "cpu"
    assert arguments.attention_backend == DEFAULT_BACKEND
    assert arguments.sampling_backend == "pytorch"
    assert arguments.page_size == 64
    assert arguments.max_total_tokens == 65_536
    assert arguments.max_running_requests == 32
    assert arguments.chunked_prefill_size == 2_048
    assert arguments.disable_overlap_schedule is True
    assert arguments.sleep_on_idle is True
    assert arguments.disable_cuda_graph is True


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_backend", "torch_native"),
        ("page_size", 16),
        ("max_total_tokens", 1000),
        ("mem_fraction_static", 0.7),
        ("max_running_requests", 3),
        ("chunked_prefill_size", -1),
        ("dtype", "float16"),
    ],
)
def test_a_flag_that_was_given_stands(tmp_path: Path, name: str, value: Any) -> None:
    assert getattr(filled_in(checkpoint(tmp_path), **{name: value}), name) == value


def test_upstreams_pick_of_kernels_that_are_not_there_is_replaced(tmp_path: Path) -> None:
    arguments = filled_in(checkpoint(tmp_path), attention_backend="intel_amx")
    assert arguments.attention_backend == DEFAULT_BACKEND


@pytest.mark.parametrize(
    ("config", "has_bfloat16", "dtype"),
    [
        ({"dtype": "float32"}, True, "float32"),
        ({"torch_dtype": "float32"}, True, "float32"),
        ({}, True, "float32"),
        ({"dtype": "bfloat16"}, True, "auto"),
        ({"torch_dtype": "float16"}, True, "auto"),
        ({"dtype": "bfloat16"}, False, "float32"),
    ],
)
def test_a_model_is_served_in_a_type_that_the_cpu_computes_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, str], has_bfloat16: bool, dtype: str
) -> None:
    monkeypatch.setattr(defaults, "computes_bfloat16", lambda: has_bfloat16)
    assert filled_in(checkpoint(tmp_path, **config)).dtype == dtype


@pytest.mark.parametrize(
    ("flags", "has_it"),
    [("fpu avx2 fma", False), ("avx512f avx512_bf16", True), ("avx2 amx_bf16 amx_tile", True), ("avx512f", False)],
)
def test_whether_the_cpu_has_bfloat16_is_read_from_its_flags(tmp_path: Path, flags: str, has_it: bool) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert defaults.computes_bfloat16(cpuinfo) == has_it
    assert not defaults.computes_bfloat16(tmp_path / "nothing")


def test_a_model_that_cannot_be_found_is_left_to_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "computes_bfloat16", lambda: True)
    assert filled_in(str(tmp_path / "nothing")).dtype == "auto"


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_disaggregated_servers_transfer_over_tcp(tmp_path: Path, mode: str) -> None:
    filled_in(checkpoint(tmp_path), disaggregation_mode=mode)
    assert os.environ["MC_FORCE_TCP"] == "1"


def test_a_given_rdma_device_is_used(tmp_path: Path) -> None:
    filled_in(checkpoint(tmp_path), disaggregation_mode="prefill", disaggregation_ib_device="mlx5_0")
    assert "MC_FORCE_TCP" not in os.environ


def test_a_single_server_transfers_nothing(tmp_path: Path) -> None:
    filled_in(checkpoint(tmp_path))
    assert "MC_FORCE_TCP" not in os.environ


@pytest.mark.parametrize(
    ("mode", "given", "backup"),
    [
        ("decode", None, "cpu_tensor"),
        ("decode", "host_pool", "host_pool"),
        ("prefill", None, None),
        ("null", None, None),
    ],
)
def test_decode_backs_up_what_it_retracts(tmp_path: Path, mode: str, given: str | None, backup: str | None) -> None:
    arguments = filled_in(checkpoint(tmp_path), disaggregation_mode=mode, disaggregation_decode_retraction_backup=given)
    assert arguments.disaggregation_decode_retraction_backup == backup
