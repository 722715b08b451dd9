"""The router's command line: the flags that users of sglang_router know, where they make sense."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

from sglang_dualpath.router.scheduling.policies import POLICIES
from sglang_dualpath.telemetry.engine_url import check_engine_url

EXAMPLE = """example:
  python -m sglang_dualpath.launch_router --pd-disaggregation \\
      --prefill http://10.0.0.1:30000 8998 --decode http://10.0.0.2:30000 \\
      --policy dualpath --host 10.0.0.3 --port 8000
  (and start the engines with --router-control tcp://ROUTER:30100, so that they report their queues)
"""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """What the router was asked for."""

    prefill: tuple[tuple[str, int | None], ...]
    decode: tuple[str, ...]
    host: str
    port: int
    policy: str
    control_host: str
    control_port: int
    request_timeout_s: float
    health_check_interval_s: float
    queue_size: int
    max_payload_bytes: int
    api_key: str | None
    request_id_headers: tuple[str, ...]
    shutdown_grace_s: float
    log_level: str


def parse(argv: list[str] | None = None) -> RouterConfig:
    """The configuration of a command line. Ends the process with one sentence for one that cannot work."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if not arguments.pd_disaggregation:
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
    return RouterConfig(
        prefill=prefill,
        decode=decode,
        host=arguments.host,
        port=arguments.port,
        policy=arguments.policy,
        control_host=arguments.control_host or arguments.host,
        control_port=arguments.control_port,
        request_timeout_s=arguments.request_timeout_secs,
        health_check_interval_s=arguments.health_check_interval_secs,
        queue_size=arguments.queue_size,
        max_payload_bytes=arguments.max_payload_size,
        api_key=arguments.api_key,
        request_id_headers=tuple(name.lower() for name in arguments.request_id_headers),
        shutdown_grace_s=arguments.shutdown_grace_period_secs,
        log_level=arguments.log_level,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sglang_dualpath.launch_router",
        description="Route requests to pairs of prefill and decode engines, and plan which side reads their cached KV.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    engines = parser.add_argument_group("engines")
    engines.add_argument(
        "--pd-disaggregation", action="store_true", help="route to prefill and decode engines (needed)"
    )
    engines.add_argument(
        "--prefill",
        nargs="+",
        action="append",
        metavar=("URL", "BOOTSTRAP_PORT"),
        help="a prefill engine and its --disaggregation-bootstrap-port (default 8998); repeat for more",
    )
    engines.add_argument("--decode", action="append", metavar="URL", help="a decode engine; repeat for more")
    engines.add_argument(
        "--control-host",
        default=None,
        help="address of the control socket (default: that of --host); it trusts whoever reaches it, so keep it to a "
        "network of your engines",
    )
    engines.add_argument(
        "--control-port",
        type=_whole(0, 65535),
        default=30100,
        help="ZMQ port where engines started with --router-control report and join (default %(default)s)",
    )
    engines.add_argument("--health-check-interval-secs", type=_seconds, default=5.0, help="default %(default)s")
    scheduling = parser.add_argument_group("scheduling")
    scheduling.add_argument(
        "--policy",
        choices=sorted(POLICIES),
        default="dualpath",
        help="dualpath: least loaded engines, shorter read queue; round_robin: in turn (default %(default)s)",
    )
    scheduling.add_argument(
        "--queue-size",
        type=_whole(0),
        default=1000,
        help="requests that may wait for an engine; beyond: 503 (default %(default)s)",
    )
    service = parser.add_argument_group("service")
    service.add_argument("--host", default="127.0.0.1", help="default %(default)s")
    service.add_argument("--port", type=_whole(0, 65535), default=30000, help="default %(default)s")
    service.add_argument("--request-timeout-secs", type=_seconds, default=1800.0, help="default %(default)s; then 504")
    service.add_argument(
        "--max-payload-size", type=_whole(1), default=512 * 2**20, metavar="BYTES", help="default %(default)s"
    )
    service.add_argument(
        "--api-key", type=_key, default=None, help="asked of clients as a bearer token, and given to the engines"
    )
    service.add_argument(
        "--request-id-headers",
        nargs="+",
        default=["x-request-id", "x-correlation-id"],
        metavar="HEADER",
        help="the first of these that a client sends names its request (default: %(default)s)",
    )
    service.add_argument(
        "--shutdown-grace-period-secs",
        type=_seconds,
        default=30.0,
        help="for running requests at SIGTERM (default %(default)s)",
    )
    service.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser


def _prefill(parser: argparse.ArgumentParser, words: list[str]) -> tuple[str, int | None]:
    if len(words) > 2:
        parser.error(
            f"--prefill takes a URL and a bootstrap port, not {' '.join(words)!r}; repeat --prefill for more engines"
        )
    url = _url(parser, "--prefill", words[0])
    if len(words) == 1:
        return url, 8998
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


def _key(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the key is empty; leave the flag out to ask for none")
    return text
