"""Attaching to upstream: every target is as expected, or the process ends and says which one is not, and how."""

from collections import defaultdict
from typing import Any

import pytest
from sglang_dualpath import plugin
from sglang_dualpath.plugin import HookMismatch, HookTarget, check_target

HERE = __name__


def as_expected(one: int, two: int = 2, *rest: int, **named: int) -> None:
    """A function of upstream."""


class Upstream:
    """A class of upstream."""

    def __init__(self, size: int) -> None:
        self.size = size

    def method(self, request: object) -> None:
        """A method of upstream."""


def hook(*args: Any, **kwargs: Any) -> None:
    """What is attached."""


def target(path: str, *parameters: str, kind: str = "AFTER") -> HookTarget:
    """A target in this very module."""
    return HookTarget(f"{HERE}.{path}", parameters, kind, hook)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Upstream's registry, empty."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    hooks: dict[str, Any] = defaultdict(list)
    monkeypatch.setattr(HookRegistry, "_hooks", hooks)
    return hooks


# ---- one target


@pytest.mark.parametrize(
    "good",
    [
        target("as_expected", "one", "two", "rest", "named"),
        target("Upstream", "self", "size", kind="REPLACE"),
        target("Upstream.__init__", "self", "size"),
        target("Upstream.method", "self", "request"),
    ],
)
def test_a_target_with_the_expected_parameters_passes(good: HookTarget) -> None:
    check_target(good)


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (target("as_expected", "one", "rest", "named"), "one, two, rest, named"),
        (target("as_expected", "two", "one", "rest", "named"), "one, two, rest, named"),
        (target("Upstream", "self", "size", "more", kind="REPLACE"), "self, size"),
        (target("Upstream.method", "self"), "self, request"),
    ],
)
def test_a_target_that_has_changed_is_named_with_what_was_expected_and_found(bad: HookTarget, found: str) -> None:
    with pytest.raises(HookMismatch) as mismatch:
        check_target(bad)
    message = str(mismatch.value)
    assert f"{bad.path} has changed" in message
    assert f"expected parameters ({', '.join(bad.parameters)})" in message
    assert f"found ({found})" in message
    assert plugin.UPSTREAM_VERSION in message


@pytest.mark.parametrize("path", ["gone", "Upstream.gone", "Gone.method"])
def test_a_target_that_is_missing_is_named_with_what_was_expected(path: str) -> None:
    with pytest.raises(HookMismatch) as mismatch:
        check_target(target(path, "self", "request"))
    message = str(mismatch.value)
    assert f"{HERE}.{path} is missing" in message
    assert "expected parameters (self, request)" in message


def test_a_module_that_is_missing_is_named() -> None:
    with pytest.raises(HookMismatch, match=r"no_such_module\.function is missing"):
        check_target(HookTarget("no_such_module.function", (), "AFTER", hook))


def test_a_target_that_something_else_has_wrapped_is_seen_through(monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import wraps

    original = Upstream.method

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)

    monkeypatch.setattr(Upstream, "method", wrapped)
    check_target(target("Upstream.method", "self", "request"))


# ---- all of them


def test_the_installed_upstream_is_the_version_that_the_targets_were_written_for() -> None:
    from importlib.metadata import requires, version

    assert version("sglang") == plugin.UPSTREAM_VERSION
    assert f"sglang=={plugin.UPSTREAM_VERSION}" in (requires("sglang-dualpath") or [])


@pytest.mark.parametrize("targets", ["_flag_targets", "_engine_targets", "_frontend_targets"])
def test_every_target_is_in_the_installed_upstream_as_expected(targets: str) -> None:
    from sglang.srt.plugins.hook_registry import HookType

    found = getattr(plugin, targets)()
    assert found
    for one in found:
        check_target(one)
        assert one.kind in HookType.__members__
        assert (one.kind == "REPLACE") == isinstance(one.hook, type)


def test_no_target_is_named_twice() -> None:
    paths = [one.path for one in [*plugin._flag_targets(), *plugin._engine_targets(), *plugin._frontend_targets()]]
    assert len(set(paths)) == len(paths)


# ---- loading


def test_a_good_target_is_registered_with_its_hook(registry: dict[str, Any]) -> None:
    from sglang.srt.plugins.hook_registry import HookType

    plugin.attach([target("Upstream.method", "self", "request", kind="BEFORE")])
    ((kind, attached, _),) = registry[f"{HERE}.Upstream.method"]
    assert (kind, attached) == (HookType.BEFORE, hook)


def test_without_kv_path_only_the_flags_are_attached(registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_DUALPATH_SETTINGS", raising=False)
    monkeypatch.setattr(plugin, "_platform_targets", list)
    plugin.load()
    assert set(registry) == {one.path for one in plugin._flag_targets()}


def test_with_kv_path_the_engine_and_its_front_are_attached(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_DUALPATH_SETTINGS", "{}")
    monkeypatch.setattr(plugin, "_platform_targets", list)
    plugin.load()
    expected = [*plugin._flag_targets(), *plugin._engine_targets(), *plugin._frontend_targets()]
    assert set(registry) == {one.path for one in expected}


@pytest.mark.parametrize("bad", [target("gone", "self"), target("Upstream.method", "self")])
def test_a_mismatch_ends_the_process_with_one_message(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bad: HookTarget
) -> None:
    monkeypatch.setattr(plugin, "_flag_targets", lambda: [bad])
    with pytest.raises(SystemExit) as ended:
        plugin.load()
    assert ended.value.code == 1
    message = capsys.readouterr().err
    assert message.startswith("sglang-dualpath cannot attach to SGLang: ")
    assert bad.path in message
    assert "Traceback" not in message
    assert registry == {}


def test_a_mistake_of_ours_ends_the_process_with_its_traceback(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[HookTarget]:
        raise ImportError("cannot import name 'x'")

    monkeypatch.setattr(plugin, "_flag_targets", broken)
    with pytest.raises(SystemExit):
        plugin.load()
    message = capsys.readouterr().err
    assert "Traceback" in message
    assert "cannot attach to SGLang: cannot import name 'x'" in message


def test_upstreams_loader_which_only_logs_a_plugin_that_fails_does_not_go_on(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt import plugins

    monkeypatch.setattr(plugin, "_flag_targets", lambda: [target("gone", "self")])
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    monkeypatch.setattr(plugins, "load_plugins_by_group", lambda *_, **__: {"dualpath": (plugin.load, "us")})
    with pytest.raises(SystemExit):
        plugins.load_plugins()


def test_the_entry_point_is_where_upstream_looks_for_it() -> None:
    from importlib.metadata import entry_points

    (entry,) = entry_points(group="sglang.srt.plugins", name="dualpath")
    assert entry.load() is plugin.load


def test_the_launcher_checks_the_engine_before_it_starts_one(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugin, "_engine_targets", lambda: [target("Upstream.method", "self")])
    with pytest.raises(SystemExit):
        plugin.attach_frontend()
    assert f"{HERE}.Upstream.method has changed" in capsys.readouterr().err
    assert registry == {}


def test_a_class_method_that_is_hooked_already_shows_its_own_parameters() -> None:
    """Another plugin's hook on the same target, or ours applied before, is no change of upstream."""
    import functools

    class Upstream:
        @classmethod
        def build(cls, arguments: object) -> object:
            return arguments

    original = Upstream.__dict__["build"].__func__
    Upstream.build = classmethod(functools.wraps(original)(lambda *args, **kwargs: original(*args, **kwargs)))  # type: ignore
    parameters = plugin.parameters_of(Upstream.build)
    assert parameters == ("arguments",)
