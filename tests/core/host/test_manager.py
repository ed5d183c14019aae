"""The plugin host: conflicts, wrong names, wrong options, wrong results and broken plugins, each with its remedy."""

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
from pydantic import Field

from tidegate.api import (
    AnyCommand,
    CommandSpec,
    Model,
    Plan,
    PlannerSpec,
    PolicyOptions,
    PolicySpec,
    Profile,
    Setup,
    VersionedDocument,
    Worker,
    hookimpl,
)
from tidegate.engine import AnyEffect, AnyStimulus
from tidegate.host import PluginConflict, PluginError, Plugins, UnknownPlugin
from tidegate.host import manager as host_manager
from tidegate.observation import Observer, ObserverOptions, ObserverSpec
from tidegate.toolkit import FirstComeFirstServed

SETUP = Setup((Model("m", 4),), (Worker(0, "w0", ("m",)),), (Profile("m", "default", (1, 2, 3, 4)),))


class TunableOptions(PolicyOptions):
    patience_ms: float = Field(default=1.0, ge=0)


class Tunable(FirstComeFirstServed):
    Options = TunableOptions


class WatchOptions(ObserverOptions):
    every: int = Field(default=1, ge=1)


class Watch(Observer):
    """An observer that looks away."""

    Options = WatchOptions

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        pass


def plugin(**hooks: Callable[[], Any]) -> ModuleType:
    """A module of hook implementations, each `tidegate_<name>`."""
    module = ModuleType("plugin")
    vars(module).update({f"tidegate_{name}": hookimpl(hook) for name, hook in hooks.items()})
    return module


def offering(*names: str) -> ModuleType:
    def policies() -> list[PolicySpec]:
        return [PolicySpec(name, f"the policy {name}", Tunable) for name in names]

    return plugin(policies=policies)


def test_what_plugins_offer_is_found_by_name_with_its_source() -> None:
    plugins = Plugins()
    plugins.register(offering("a", "b"), "dist-one")
    plugins.register(
        plugin(
            observers=lambda: [ObserverSpec("watch", "watches", Watch)],
            commands=lambda: [CommandSpec("a", print)],  # the name of a policy: of another kind, so no conflict
        ),
        "dist-two",
    )
    assert plugins.policy("a").summary == "the policy a"
    assert plugins.observer("watch").summary == "watches"
    assert plugins.source[PolicySpec, "a"] == "dist-one"
    assert plugins.source[CommandSpec, "a"] == "dist-two"


class NoPlan(Plan):
    """A plan of nothing."""

    @property
    def summary(self) -> str:
        return ""

    @property
    def table(self) -> list[dict[str, str]]:
        return []


def planning(name: str) -> ModuleType:
    def never(problem: object, /, *, time_limit_s: float, progress: object) -> Plan:
        raise AssertionError("only registered")

    return plugin(planners=lambda: [PlannerSpec(name, "plans", VersionedDocument, NoPlan, never)])


def test_planners_are_found_by_name_and_may_not_share_one() -> None:
    plugins = Plugins()
    plugins.register(planning("a"), "dist-one")
    assert plugins.planner("a").summary == "plans"
    assert plugins.source[PlannerSpec, "a"] == "dist-one"
    with pytest.raises(UnknownPlugin, match="no planner named 'b' is installed; installed: a"):
        plugins.planner("b")
    with pytest.raises(PluginConflict, match="'dist-one' and 'dist-two' both offer a planner named 'a'"):
        plugins.register(planning("a"), "dist-two")


def test_a_conflict_names_both_plugins_and_keeps_the_first() -> None:
    plugins = Plugins()
    plugins.register(offering("a"), "dist-one")
    with pytest.raises(PluginConflict, match="'dist-one' and 'dist-two' both offer a policy named 'a': uninstall one"):
        plugins.register(offering("new", "a"), "dist-two")
    assert list(plugins.policies) == ["a"]
    assert plugins.source[PolicySpec, "a"] == "dist-one"


def test_one_plugin_may_not_offer_a_name_twice() -> None:
    with pytest.raises(PluginConflict, match="'dist' and 'dist' both offer a policy named 'a'"):
        Plugins().register(offering("a", "a"), "dist")


def broken_hook() -> list[PolicySpec]:
    raise RuntimeError("no weights")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (plugin(policies=lambda: ["a"]), "plugin 'bad': tidegate_policies returned 'a', not a PolicySpec"),
        (
            plugin(policies=lambda: [CommandSpec("a", print)]),
            r"plugin 'bad': tidegate_policies returned CommandSpec\(.*, not a PolicySpec",
        ),
        (
            plugin(policies=lambda: PolicySpec("a", "", Tunable)),
            "plugin 'bad': tidegate_policies did not return a list of PolicySpec: TypeError",
        ),
        (plugin(policies=broken_hook), "tidegate_policies did not return a list of PolicySpec: RuntimeError: no weig"),
        (plugin(polices=lambda: []), "plugin 'bad': .*tidegate_polices"),
    ],
    ids=["not a spec", "another kind of spec", "no list", "raises", "misspelt hook"],
)
def test_a_wrong_hook_names_the_plugin_and_nothing_of_it_is_kept(bad: object, message: str) -> None:
    plugins = Plugins()
    with pytest.raises(PluginError, match=message):
        plugins.register(bad, "bad")
    assert not plugins.policies
    plugins.register(offering("a"), "good")


def test_an_unknown_name_lists_what_is_installed_and_what_is_broken() -> None:
    plugins = Plugins()
    with pytest.raises(UnknownPlugin, match="no policy named 'c' is installed; installed: none"):
        plugins.policy("c")
    plugins.register(offering("b", "a"), "dist")
    plugins.broken["dist-c"] = "ImportError: no module named torch"
    expected = "installed: a, b; dist-c could not be imported .ImportError: no module named torch"
    with pytest.raises(UnknownPlugin, match=expected):
        plugins.policy("c")
    with pytest.raises(UnknownPlugin, match="no observer named 'a'"):
        plugins.observer("a")


def test_a_policy_is_made_with_validated_options() -> None:
    plugins = Plugins()
    plugins.register(offering("a"), "dist")
    assert plugins.make_policy("a", SETUP, {"patience_ms": "2"}).options == TunableOptions(patience_ms=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 1}, r"options of policy 'a': patience: there is no such field; did you mean patience_ms\?$"),
        ({"patience_ms": -1}, "options of policy 'a': patience_ms: must be at least 0"),
        ({"patience_ms": "long"}, "options of policy 'a': patience_ms: must be a number"),
    ],
)
def test_a_wrong_option_is_named_with_those_that_exist(options: dict[str, object], message: str) -> None:
    plugins = Plugins()
    plugins.register(offering("a"), "dist")
    with pytest.raises(PluginError, match=message):
        plugins.make_policy("a", SETUP, options)


def watching() -> Plugins:
    plugins = Plugins()
    plugins.register(plugin(observers=lambda: [ObserverSpec("watch", "watches", Watch)]), "dist")
    return plugins


def test_an_observer_is_made_with_validated_options() -> None:
    assert watching().make_observer("watch", {"every": "2"}).options == WatchOptions(every=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"each": 1}, r"options of observer 'watch': each: there is no such field; there are: every$"),
        ({"every": 0}, "options of observer 'watch': every: must be at least 1"),
    ],
)
def test_a_wrong_option_of_an_observer_is_named_with_those_that_exist(options: dict[str, object], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        watching().make_observer("watch", options)


def test_a_plugin_that_cannot_be_imported_does_not_harm_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = (
        ("a", EntryPoint("broken", "no_such_module_of_ours", "tidegate")),
        ("b", EntryPoint("fine", "tidegate_baselines.plugin", "tidegate")),
    )
    monkeypatch.setattr(host_manager, "_entries", lambda: entries)
    plugins = Plugins.installed()
    assert plugins.broken == {"a": "ModuleNotFoundError: No module named 'no_such_module_of_ours'"}
    assert "fifs" in plugins.policies


def test_a_hook_that_is_no_hook_is_refused() -> None:
    forgotten = ModuleType("forgotten")
    vars(forgotten)["tidegate_policies"] = list
    with pytest.raises(PluginError, match="plugin 'dist': tidegate_policies is not marked as a hook: put @hookimpl"):
        Plugins().register(forgotten, "dist")
    with pytest.raises(
        PluginError, match=r"there is no hook 'tidegate_policy'; did you mean 'tidegate_policies'\? There"
    ):
        Plugins().register(plugin(policy=lambda: []), "dist")


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(PluginError, match=r"policy 'a' is <class 'str'>, which is no subclass of Policy: derive it"):
        Plugins().register(plugin(policies=lambda: [PolicySpec("a", "", str)]), "dist")  # type: ignore[arg-type]
