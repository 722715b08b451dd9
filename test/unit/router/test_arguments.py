"""The command line: what it means, and one sentence that names the flag for what cannot work."""

import pytest
from sglang_dualpath.router.arguments import parse
from sglang_dualpath.router.config import ControlSettings
from sglang_dualpath.router.front.access import Keys
from sglang_dualpath.router.scheduling.policy.names import POLICIES

P, D = "http://10.0.0.1:30000", "http://10.0.0.2:30000"
PAIR = ["--pd-disaggregation", "--prefill", P, "8998", "--decode", D]


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The last line of what is said to a command line that cannot work."""
    with pytest.raises(SystemExit) as end:
        parse(list(argv))
    assert end.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_the_command_line_of_the_documentation() -> None:
    config = parse([*PAIR, "--policy", "dualpath", "--port", "8000"])
    assert (config.prefill, config.decode) == (((P, 8998),), (D,))
    assert (config.host, config.port, config.n_fronts) == ("127.0.0.1", 8000, 1)
    assert config.control == ControlSettings("127.0.0.1", 30100)
    assert config.keys == Keys()
    assert config.retries
    rules = config.scheduling
    assert (rules.policy, rules.decode, rules.read_side) == ("dualpath", "two_level", "shorter_queue")


@pytest.mark.parametrize(
    ("flags", "decode", "read_side"),
    [
        (["round_robin"], "round_robin", "alternate"),
        (["round_robin", "--read-side", "split"], "round_robin", "split"),
        (["random"], "random", "shorter_queue"),
        (["least_loaded", "--decode-policy", "least_loaded"], "least_loaded", "shorter_queue"),
    ],
)
def test_rules_beside_the_policy_fit_it_unless_they_are_named(flags: list[str], decode: str, read_side: str) -> None:
    rules = parse([*PAIR, "--policy", *flags]).scheduling
    assert (rules.decode, rules.read_side) == (decode, read_side)


def test_a_switched_off_circuit_breaker_never_opens() -> None:
    assert parse([*PAIR, "--disable-circuit-breaker"]).breaker.failure_threshold == 0


def test_engines_are_named_by_repeating_the_flags() -> None:
    config = parse([*PAIR, "--prefill", "http://10.0.0.3:1/", "9000", "--decode", "http://10.0.0.4:1/"])
    assert config.prefill == ((P, 8998), ("http://10.0.0.3:1", 9000))
    assert config.decode == (D, "http://10.0.0.4:1")


@pytest.mark.parametrize(("words", "port"), [([P], None), ([P, "9000"], 9000), ([P, "none"], None)])
def test_the_bootstrap_port_may_be_left_out(words: list[str], port: int | None) -> None:
    assert parse(["--pd-disaggregation", "--prefill", *words, "--decode", D]).prefill == ((P, port),)


def test_without_engines_they_join_by_their_reports() -> None:
    config = parse(["--pd-disaggregation"])
    assert (config.prefill, config.decode) == ((), ())


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_can_be_named(policy: str) -> None:
    assert parse([*PAIR, "--policy", policy]).scheduling.policy == policy


def test_header_names_are_compared_without_case() -> None:
    assert parse([*PAIR, "--request-id-headers", "X-My-Id"]).request_id_headers == ("x-my-id",)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (PAIR[1:], "--pd-disaggregation"),
        (["--pd-disaggregation", "--prefill", P, "8998"], "--decode is missing"),
        (["--pd-disaggregation", "--decode", D], "--prefill is missing"),
        ([*PAIR, "--prefill", "http://10.0.0.3:1", "1", "2"], "--prefill takes a URL and a bootstrap port"),
        ([*PAIR, "--prefill", "http://10.0.0.3:1", "port"], "'port' is not a bootstrap port"),
        ([*PAIR, "--prefill", "http://10.0.0.3:1", "0"], "'0' is not a bootstrap port"),
        ([*PAIR, "--prefill", "http://10.0.0.3:1", "65536"], "'65536' is not a bootstrap port"),
        ([*PAIR, "--prefill", "10.0.0.1:30000"], "--prefill '10.0.0.1:30000' is not a URL"),
        ([*PAIR, "--decode", "grpc://10.0.0.1:1"], "--decode 'grpc://10.0.0.1:1' is not a URL"),
        ([*PAIR, "--decode", "http://"], "--decode 'http://' is not a URL"),
        ([*PAIR, "--decode", "http://10.0.0.1:99999"], "--decode 'http://10.0.0.1:99999' is not a URL"),
        ([*PAIR, "--decode", "http://a..b:1"], "--decode 'http://a..b:1' is not a URL"),
        ([*PAIR, "--decode", P], f"{P} is named twice"),
        ([*PAIR, "--decode", D], f"{D} is named twice"),
        ([*PAIR, "--policy", "fastest"], "--policy"),
        ([*PAIR, "--port", "65536"], "--port"),
        ([*PAIR, "--port", "-1"], "--port"),
        ([*PAIR, "--control-port", "65536"], "--control-port"),
        ([*PAIR, "--queue-size", "-1"], "--queue-size"),
        ([*PAIR, "--max-payload-size", "0"], "--max-payload-size"),
        ([*PAIR, "--request-timeout-secs", "0"], "--request-timeout-secs"),
        ([*PAIR, "--request-timeout-secs", "nan"], "--request-timeout-secs"),
        ([*PAIR, "--health-check-interval-secs", "0"], "--health-check-interval-secs"),
        ([*PAIR, "--shutdown-grace-period-secs", "-1"], "--shutdown-grace-period-secs"),
        ([*PAIR, "--api-key", ""], "--api-key"),
    ],
)
def test_a_command_line_that_cannot_work_is_refused_by_the_name_of_the_flag(
    capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert said in refused(capsys, *argv)


def test_help_shows_an_example_that_parses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    example = text[text.index("example:") :].split("launch_router", 1)[1].split("(and start")[0]
    assert parse(example.replace("\\", " ").split()).port == 8000


def test_the_control_socket_listens_where_the_service_does_unless_told_otherwise() -> None:
    """It trusts whoever reaches it: nobody beyond loopback does by default."""
    assert parse(["--pd-disaggregation"]).control.host == "127.0.0.1"
    assert parse(["--pd-disaggregation", "--host", "10.0.0.3"]).control.host == "10.0.0.3"
    apart = parse(["--pd-disaggregation", "--host", "10.0.0.3", "--control-host", "10.1.0.3"])
    assert apart.control.host == "10.1.0.3"
