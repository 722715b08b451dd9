"""The router's command line: the flags that users of sglang_router know, where they make sense."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from sglang_dualpath.router.config import ControlSettings, RouterConfig, SchedulingSettings
from sglang_dualpath.router.core.core import QueueSettings
from sglang_dualpath.router.dry_run.replay import CountedFleet
from sglang_dualpath.router.front.access import Keys
from sglang_dualpath.router.membership.breaker import BreakerSettings
from sglang_dualpath.router.membership.health import HealthSettings
from sglang_dualpath.router.scheduling.decode_choice import DECODE_CHOICES
from sglang_dualpath.router.scheduling.policy.names import POLICIES
from sglang_dualpath.router.scheduling.policy.settings import PolicySettings
from sglang_dualpath.router.scheduling.read_side import READ_SIDES
from sglang_dualpath.telemetry.engine_url import check_engine_url

EXAMPLE = """example:
  python -m sglang_dualpath.launch_router --pd-disaggregation \\
      --prefill http://10.0.0.1:30000 8998 --decode http://10.0.0.2:30000 \\
      --policy dualpath --host 10.0.0.3 --port 8000
  (and start the engines with --router-control tcp://ROUTER:30100, so that they report their queues)
"""

DEFAULT_DECODE = {"round_robin": "round_robin", "random": "random"}
"""The decode rule that goes with a policy where none is named; `two_level` with all others."""

DEFAULT_READ_SIDE = {"round_robin": "alternate"}
"""Likewise the read side; `shorter_queue` with all others."""


def parse(argv: list[str] | None = None) -> RouterConfig:
    """The configuration of a command line. Ends the process with one sentence for one that cannot work."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.fronts > 1 and arguments.port == 0:
        parser.error("--fronts shares one port among its processes: name it with --port")
    if not arguments.pd_disaggregation and arguments.dry_run is None:
        parser.error("only prefill/decode disaggregation is routed: add --pd-disaggregation")
    prefill = tuple(_prefill(parser, words) for words in arguments.prefill or [])
    decode = tuple(_url(parser, "--decode", url) for url in arguments.decode or [])
    if bool(prefill) != bool(decode):
        missing = "--decode" if prefill else "--prefill"
        parser.error(f"{missing} is missing: name engines of both kinds, or none and let them join by --router-control")
    urls = [*(url for url, _ in prefill), *decode]
    twice = next((url for url in urls if urls.count(url) > 1), None)
    if twice is not None:
        parser.error(f"{twice} is named twice; an engine is one --prefill or one --decode")
    return _config(arguments, prefill, decode)


def _config(
    given: argparse.Namespace, prefill: tuple[tuple[str, int | None], ...], decode: tuple[str, ...]
) -> RouterConfig:
    return RouterConfig(
        prefill=prefill,
        decode=decode,
        host=given.host,
        port=given.port,
        n_fronts=given.fronts,
        control=ControlSettings(given.control_host or given.host, given.control_port, given.control_curve_secret),
        scheduling=SchedulingSettings(
            policy=given.policy,
            decode=given.decode_policy or DEFAULT_DECODE.get(given.policy, "two_level"),
            read_side=given.read_side or DEFAULT_READ_SIDE.get(given.policy, "shorter_queue"),
            knobs=PolicySettings(
                seed=given.seed,
                ttft_slo_s=given.ttft_slo_secs,
                virtual_nodes=given.virtual_nodes,
                popularity_window=given.popularity_window,
                cache_threshold=given.cache_threshold,
                balance_abs_threshold=given.balance_abs_threshold,
                balance_rel_threshold=given.balance_rel_threshold,
            ),
            alpha_tokens=given.alpha_tokens,
            beta_tokens=given.beta_tokens,
        ),
        health=HealthSettings(
            interval_s=given.health_check_interval_secs,
            timeout_s=given.health_check_timeout_secs,
            failure_threshold=given.health_failure_threshold,
            success_threshold=given.health_success_threshold,
            heartbeat_timeout_s=given.heartbeat_timeout_secs,
        ),
        breaker=BreakerSettings(
            failure_threshold=0 if given.disable_circuit_breaker else given.cb_failure_threshold,
            success_threshold=given.cb_success_threshold,
            window_s=given.cb_window_duration_secs,
            open_s=given.cb_timeout_duration_secs,
        ),
        queue=QueueSettings(given.queue_size, given.queue_timeout_secs),
        keys=Keys(given.api_key, given.admin_api_key),
        request_timeout_s=given.request_timeout_secs,
        retries=not given.disable_retries,
        max_payload_bytes=given.max_payload_size,
        request_id_headers=tuple(name.lower() for name in given.request_id_headers),
        shutdown_grace_s=given.shutdown_grace_period_secs,
        drain_timeout_s=given.drain_timeout_secs,
        log_level=given.log_level,
        log_json=given.log_json,
        otlp_endpoint=given.otlp_traces_endpoint if given.enable_trace else None,
        dry_run=given.dry_run,
        dry_run_fleet=CountedFleet(n_prefill=given.dry_run_engines[0], n_decode=given.dry_run_engines[1]),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sglang_dualpath.launch_router",
        description="Route requests to pairs of prefill and decode engines, and plan which side reads their cached KV.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_engines(parser.add_argument_group("engines"))
    _add_health(parser.add_argument_group("health"))
    _add_scheduling(parser.add_argument_group("scheduling"))
    _add_service(parser.add_argument_group("service"))
    _add_observability(parser.add_argument_group("observability"))
    return parser


def _add_engines(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--pd-disaggregation", action="store_true", help="route to prefill and decode engines (needed)")
    group.add_argument(
        "--prefill",
        nargs="+",
        action="append",
        metavar=("URL", "BOOTSTRAP_PORT"),
        help="a prefill engine and its --disaggregation-bootstrap-port (default: what it reports, else 8998); repeat "
        "for more",
    )
    group.add_argument("--decode", action="append", metavar="URL", help="a decode engine; repeat for more")
    group.add_argument(
        "--control-host",
        default=None,
        help="address of the control socket (default: that of --host); without --control-curve-secret it trusts whoever "
        "reaches it, so keep it to a network of your engines",
    )
    group.add_argument(
        "--control-port",
        type=_whole(0, 65535),
        default=30100,
        help="ZMQ port where engines started with --router-control report and join (default %(default)s)",
    )
    group.add_argument(
        "--control-curve-secret",
        type=Path,
        default=None,
        metavar="FILE",
        help="a ZMQ CURVE secret key: only engines started with SGLANG_DUALPATH_ROUTER_KEY, its public key, may report "
        "(make a pair with python -m sglang_dualpath.router.curve DIRECTORY)",
    )
    group.add_argument(
        "--drain-timeout-secs",
        type=_seconds,
        default=1800.0,
        help="how long DELETE /workers/{id} waits for what the engine still runs (default %(default)s)",
    )


def _add_health(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--health-check-interval-secs", type=_seconds, default=5.0, help="default %(default)s")
    group.add_argument("--health-check-timeout-secs", type=_seconds, default=3.0, help="default %(default)s")
    group.add_argument(
        "--health-failure-threshold", type=_whole(1), default=2, help="failed probes in a row (default %(default)s)"
    )
    group.add_argument("--health-success-threshold", type=_whole(1), default=1, help="default %(default)s")
    group.add_argument(
        "--heartbeat-timeout-secs",
        type=_seconds,
        default=10.0,
        help="an engine that used to report and is silent for this long is taken out (default %(default)s)",
    )
    group.add_argument(
        "--cb-failure-threshold",
        type=_whole(1),
        default=10,
        help="failed requests in a row that open an engine's circuit (default %(default)s)",
    )
    group.add_argument(
        "--cb-success-threshold", type=_whole(1), default=3, help="good ones that close it (default %(default)s)"
    )
    group.add_argument("--cb-timeout-duration-secs", type=_seconds, default=60.0, help="open for (default %(default)s)")
    group.add_argument(
        "--cb-window-duration-secs", type=_seconds, default=120.0, help="failures count for (default %(default)s)"
    )
    group.add_argument("--disable-circuit-breaker", action="store_true")


def _add_scheduling(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--policy",
        choices=sorted(POLICIES),
        default="dualpath",
        help="how the prefill engine is chosen (default %(default)s); each is described in docs/router.md",
    )
    group.add_argument(
        "--decode-policy",
        choices=DECODE_CHOICES,
        default=None,
        help="default: two_level; with round_robin, random: the same",
    )
    group.add_argument(
        "--read-side",
        choices=READ_SIDES,
        default=None,
        help="who reads a request's cached KV (default: shorter_queue; with round_robin: alternate); split: both at once",
    )
    group.add_argument("--seed", type=_whole(0), default=0, help="of what is left to chance (default %(default)s)")
    group.add_argument(
        "--alpha-tokens",
        type=_whole(0),
        default=None,
        help="a read queue up to this is short (default: as engines report)",
    )
    group.add_argument(
        "--beta-tokens",
        type=_whole(0),
        default=None,
        help="more unfinished tokens are overload (default: as engines report)",
    )
    group.add_argument(
        "--queue-size",
        type=_whole(0),
        default=1000,
        help="requests that may wait for an engine; beyond: 429 (default %(default)s)",
    )
    group.add_argument(
        "--queue-timeout-secs",
        type=_seconds,
        default=600.0,
        help="longest wait for an engine; then 503 (default %(default)s)",
    )
    _add_knobs(group)
    group.add_argument(
        "--dry-run",
        type=Path,
        default=None,
        metavar="TRACE",
        help="replay a trace (Mooncake .jsonl, agent session .json, .gz of either, or a directory) through the policy, without "
        "engines, and print what it decides",
    )
    group.add_argument(
        "--dry-run-engines",
        type=_whole(1, 4096),
        nargs=2,
        default=(4, 4),
        metavar=("PREFILL", "DECODE"),
        help="how many engines a dry run counts on (default 4 4)",
    )


def _add_knobs(group: "argparse._ArgumentGroup") -> None:
    usual = PolicySettings()
    group.add_argument(
        "--ttft-slo-secs",
        type=_seconds,
        default=usual.ttft_slo_s,
        help="dualmap: affinity holds while the first token is expected within this (default %(default)s)",
    )
    group.add_argument(
        "--popularity-window",
        type=_whole(1),
        default=usual.popularity_window,
        help="dualmap: requests over which hot prefixes are found (default %(default)s)",
    )
    group.add_argument(
        "--virtual-nodes", type=_whole(1), default=usual.virtual_nodes, help="on a hash ring (default %(default)s)"
    )
    group.add_argument(
        "--cache-threshold",
        type=_share,
        default=usual.cache_threshold,
        help="cache_aware: least matching share of a prompt (default %(default)s)",
    )
    group.add_argument(
        "--balance-abs-threshold",
        type=_whole(0),
        default=usual.balance_abs_threshold,
        help="cache_aware: uneven above this many requests more (default %(default)s)",
    )
    group.add_argument(
        "--balance-rel-threshold",
        type=_seconds,
        default=usual.balance_rel_threshold,
        help="cache_aware: and this many times more (default %(default)s)",
    )


def _add_service(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--host", default="127.0.0.1", help="default %(default)s")
    group.add_argument("--port", type=_whole(0, 65535), default=30000, help="default %(default)s")
    group.add_argument(
        "--fronts",
        type=_whole(1, 64),
        default=1,
        help="processes that serve clients, around one scheduling core (default 1)",
    )
    group.add_argument("--request-timeout-secs", type=_seconds, default=1800.0, help="default %(default)s; then 504")
    group.add_argument(
        "--disable-retries", action="store_true", help="no second try when an engine is lost before a token"
    )
    group.add_argument(
        "--max-payload-size", type=_whole(1), default=512 * 2**20, metavar="BYTES", help="default %(default)s; then 413"
    )
    group.add_argument(
        "--api-key", type=_key, default=None, help="asked of clients as a bearer token, and given to the engines"
    )
    group.add_argument(
        "--admin-api-key",
        type=_key,
        default=None,
        help="asked for /workers, /flush_cache and /dashboard (default: --api-key)",
    )
    group.add_argument(
        "--request-id-headers",
        nargs="+",
        default=["x-request-id", "x-correlation-id"],
        metavar="HEADER",
        help="the first of these that a client sends names its request (default: %(default)s)",
    )
    group.add_argument(
        "--shutdown-grace-period-secs",
        type=_seconds,
        default=30.0,
        help="for running requests at SIGTERM (default %(default)s)",
    )


def _add_observability(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    group.add_argument("--log-json", action="store_true", help="one JSON object a line, with the request's id")
    group.add_argument(
        "--enable-trace", action="store_true", help="OpenTelemetry spans that join those of engines with --enable-trace"
    )
    group.add_argument(
        "--otlp-traces-endpoint", default="localhost:4317", metavar="HOST:PORT", help="default %(default)s"
    )


def _prefill(parser: argparse.ArgumentParser, words: list[str]) -> tuple[str, int | None]:
    if len(words) > 2:
        parser.error(
            f"--prefill takes a URL and a bootstrap port, not {' '.join(words)!r}; repeat --prefill for more engines"
        )
    url = _url(parser, "--prefill", words[0])
    if len(words) == 1:
        return url, None
    if words[1].lower() == "none":
        return url, None
    if not words[1].isdigit() or not 0 < int(words[1]) < 65536:
        parser.error(f"--prefill {words[0]}: {words[1]!r} is not a bootstrap port")
    return url, int(words[1])


def _url(parser: argparse.ArgumentParser, flag: str, url: str) -> str:
    try:
        check_engine_url(url)
    except ValueError:
        parser.error(f"{flag} {url!r} is not a URL such as http://10.0.0.1:30000")
    return url.rstrip("/")


def _whole(lowest: int, highest: float = math.inf) -> Callable[[str], int]:
    """A whole number within bounds, for argparse."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not lowest <= number <= highest:
            bounds = f"at least {lowest}" if highest == math.inf else f"between {lowest} and {highest}"
            raise argparse.ArgumentTypeError(f"{text!r} is not {bounds}")
        return number

    return convert


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds above 0")
    return number


def _share(text: str) -> float:
    number = _seconds(text) if text.strip("0.") else 0.0
    if number > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1")
    return number


def _key(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the key is empty; leave the flag out to ask for none")
    return text
