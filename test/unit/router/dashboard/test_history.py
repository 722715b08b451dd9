"""The numbers behind the dashboard: sums since a minute ago, series by the second."""

import pytest
from sglang_dualpath.router.dashboard.history import History, quantile
from sglang_dualpath.router.front.placement import Finished

from test.unit.router.core.test_core import D, P, core
from test.unit.router.running_router import report_of


def test_quantiles_of_an_ordered_list() -> None:
    assert quantile([], 0.5) is None
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 3.0], 0.99) == 3.0


def test_rates_and_shares_come_from_what_engines_report_in_sum() -> None:
    made = core()
    history = History(made)

    def report(prefill_bytes: int, decode_bytes: int, prompt: int, hit: int) -> None:
        made.take_report(report_of(P, "prefill", read_bytes=prefill_bytes, node_read_bytes=prefill_bytes))
        made.take_report(
            report_of(
                D, "decode", read_bytes=decode_bytes, node_read_bytes=decode_bytes, prompt_tokens=prompt, hit_tokens=hit
            )
        )

    report(1000, 500, 100, 0)
    history.sample(10.0)
    report(4000, 1500, 1100, 900)
    history.sample(12.0)
    shown = history.describe()
    assert shown["series"]["prefill_bytes_per_s"] == [1500.0]
    assert shown["series"]["decode_bytes_per_s"] == [500.0]
    assert shown["totals"]["hit_ratio"] == 0.9
    assert shown["totals"]["decode_side_share"] == 0.25
    assert shown["totals"]["nic_max_over_avg"] == pytest.approx(3000 / 2000)


def test_an_engine_that_joins_later_counts_from_then_on() -> None:
    made = core()
    history = History(made)
    made.servers.remove(made.servers.all()[1])
    history.sample(10.0)
    for at_s, hit in ((11.0, 50), (12.0, 140)):
        made.take_report(report_of(D, "decode", prompt_tokens=hit + 10, hit_tokens=hit, read_bytes=hit))
        history.sample(at_s)
    totals = history.describe()["totals"]
    assert (totals["hit_ratio"], totals["decode_side_share"]) == (1.0, 1.0)


def test_an_engine_that_starts_anew_counts_from_zero() -> None:
    made = core()
    history = History(made)
    for at_s, total in ((10.0, 5000), (11.0, 300)):
        made.take_report(report_of(P, "prefill", read_bytes=total))
        history.sample(at_s)
    assert history.describe()["series"]["prefill_bytes_per_s"] == [300.0]


def test_first_bytes_and_outcomes_are_counted() -> None:
    made = core()
    history = History(made)
    history.sample(10.0)
    for ttft_s in (0.1, 0.2, 0.9):
        made.metrics.first_byte(ttft_s)
    for outcome in ("ok", "ok", "engine_error"):
        made.note(Finished(outcome=outcome, retries=1))  # type: ignore[arg-type]
    history.sample(11.0)
    totals = history.describe()["totals"]
    assert (totals["ok"], totals["failed"], totals["retries"]) == (2, 1, 3)
    assert (totals["ttft_p50_s"], totals["ttft_p90_s"]) == (0.2, 0.9)


def test_engines_are_shown_as_they_stand() -> None:
    made = core()
    made.take_report(report_of(P, "prefill", tok=500, seq=5, beta_tokens=1000, fallbacks=2))
    server = made.servers.get(D)
    assert server is not None
    made.servers.drain(server)
    prefill, decode = History(made).describe()["engines"]
    assert (prefill["state"], prefill["tok"], prefill["beta_tokens"], prefill["fallbacks"]) == ("ready", 500, 1000, 2)
    assert decode["state"] == "draining"
