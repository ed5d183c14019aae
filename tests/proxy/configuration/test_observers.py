"""Who watches the engine, as the configuration and the command line say, with options."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
import typer
from pydantic import Field

from tidegate.api import AnyCommand, hookimpl
from tidegate.engine import AnyEffect, AnyStimulus
from tidegate.host import PluginError, Plugins
from tidegate.observation import Observer, ObserverOptions, ObserverSpec
from tidegate_proxy.app.config_check import check_offline
from tidegate_proxy.app.serve import _observers
from tidegate_proxy.commands.serve import _observer
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.config_file import read_config


class AuditOptions(ObserverOptions):
    every: int = Field(default=1, ge=1)


class Audit(Observer):
    Options = AuditOptions

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        pass


@pytest.fixture
def plugins() -> Plugins:
    class Plugin:
        @hookimpl
        def tidegate_observers(self) -> list[ObserverSpec]:
            return [ObserverSpec("audit", "of this test", Audit)]

    registry = Plugins.installed()
    registry.register(Plugin(), "test")
    return registry


def config(*observers: object) -> ServeConfig:
    return read_config(flags={"tritons": ["a:1"], "observers": list(observers)})


def test_an_observer_may_be_written_as_its_name(plugins: Plugins) -> None:
    made = _observers(config("audit", {"name": "audit", "options": {"every": 3}}), plugins, AsyncExitStack())
    assert [observer.options for observer in made] == [AuditOptions(), AuditOptions(every=3)]


def test_a_flag_takes_options(plugins: Plugins) -> None:
    (made,) = _observers(config(_observer("audit,every=4")), plugins, AsyncExitStack())
    assert made.options == AuditOptions(every=4)
    with pytest.raises(typer.BadParameter, match="'every' is not NAME=VALUE"):
        _observer("audit,every")


@pytest.mark.parametrize(
    ("observer", "where", "what"),
    [
        ("nobody", "observers.0.name", "no observer named 'nobody' is installed; installed: audit"),
        (
            {"name": "audit", "options": {"each": 2}},
            "observers.0.options.each",
            "there is no such field; there are: every",
        ),
        ({"name": "audit", "options": {"every": 0}}, "observers.0.options.every", "must be at least 1, not 0"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_served(
    plugins: Plugins, observer: object, where: str, what: str
) -> None:
    wrong = config(observer)
    problems = {problem.where: problem.what for problem in check_offline(wrong, plugins)}
    assert list(problems) == [where]
    assert what in problems[where]
    with pytest.raises(PluginError, match="audit"):
        _observers(wrong, plugins, AsyncExitStack())
