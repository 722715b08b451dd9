"""What is saved comes back; tables and charts are made of it."""

from pathlib import Path

import pytest
from rich.console import Console
from sglang_dualpath.bench.metrics import SideReads, summarise
from sglang_dualpath.bench.report import ComparisonFile, ReplayReport, chart, load, save, table

from test.unit.bench.test_metrics import turn


@pytest.fixture
def comparison() -> ComparisonFile:
    reports = []
    for name, ended, reads in (("one path", 20.0, (800, 0)), ("both paths", 10.0, (410, 390))):
        turns = [turn(ended_s=ended / 2), turn(ended_s=ended)]
        sides = [SideReads(node=n, bytes_read=b * 10**6) for n, b in zip("pd", reads, strict=True)]
        reports.append(ReplayReport(summary=summarise(name, turns, sides, {}), turns=turns))
    return ComparisonFile(trace="test", conditions={"emulated": "NIC"}, replays=reports)


def test_saved_and_loaded(comparison: ComparisonFile, tmp_path: Path) -> None:
    save(tmp_path / "x.json", comparison)
    assert load(tmp_path / "x.json") == comparison


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"trace": 1}')
    with pytest.raises(ValueError, match=r"x\.json is not a comparison file"):
        load(tmp_path / "x.json")


def test_table_compares_with_the_first(comparison: ComparisonFile) -> None:
    console = Console(width=100, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table([replay.summary for replay in comparison.replays]))
    lines = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in captured.get().splitlines() if "│" in line}
    assert [cell.strip() for cell in lines["JCT ratio to the first"]] == ["1.00", "2.00"]
    assert [cell.strip() for cell in lines["read by decode node, MB"]] == ["0", "390"]
    assert [cell.strip() for cell in lines["storage NICs, Max/Avg"]] == ["2.00", "1.02"]


def test_chart_is_a_picture(comparison: ComparisonFile, tmp_path: Path) -> None:
    chart(tmp_path / "x.png", comparison)
    assert (tmp_path / "x.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
