"""A dry run from the command line's settings to the printed tables."""

from pathlib import Path

from rich.console import Console
from rich.progress import track

from sglang_dualpath.router.config import SchedulingSettings
from sglang_dualpath.router.dry_run.replay import CountedFleet, DryRun
from sglang_dualpath.router.dry_run.requests import load_requests
from sglang_dualpath.router.dry_run.show import show
from sglang_dualpath.router.scheduling.build import build_scheduler


def dry_run(settings: SchedulingSettings, trace: Path, fleet: CountedFleet, console: Console) -> None:
    """Replay and print. Raises TraceError or OSError for a trace that cannot be read."""
    requests = load_requests(trace)
    ticks = iter(track(requests, description="replaying", console=console, transient=True))
    run = DryRun(
        build_scheduler(settings.policy, settings.decode, settings.read_side, settings.knobs),
        fleet,
        on_progress=lambda: next(ticks, None),
    )
    mix = run.run(requests)
    next(ticks, None)
    show(mix, settings.policy, (fleet.n_prefill, fleet.n_decode), console)
