"""What options plugins have, in words."""

from collections.abc import Mapping
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from tidegate.api import PolicyOptions
from tidegate.host import PluginOption, Plugins, options_of


class Step(BaseModel):
    after: float
    cost: float


class Options(PolicyOptions):
    must: int
    share: float = Field(default=0.5, gt=0, le=1, description="How much")
    maybe: Annotated[float, Field(ge=2)] | None = Field(default=None, lt=1e6)
    how: Literal["quick", "slow", "not"] = "slow"
    rates: Mapping[str, Annotated[float, Field(gt=0)]] = {}
    rows: tuple[int, ...] = (1, 2)
    steps: list[Step] = Field(default_factory=list)
    on: bool = False


def test_each_has_a_type_with_bounds_a_default_and_a_text() -> None:
    options = {option.name: option for option in options_of(Options)}
    assert options["must"] == PluginOption("must", "whole number", None, "")
    assert options["share"] == PluginOption("share", "number, above 0, at most 1", "0.5", "How much")
    assert (options["maybe"].type, options["maybe"].default) == ("number, at least 2, below 1e+06, or none", "none")
    assert (options["how"].type, options["how"].default) == ("quick, slow or not", "slow")
    assert (options["rates"].type, options["rates"].default) == ("by name: number, above 0", "{}")
    assert (options["rows"].type, options["rows"].default) == ("list of whole number", "[1, 2]")
    assert (options["steps"].type, options["steps"].default) == ("list of fields (after, cost)", "[]")
    assert (options["on"].type, options["on"].default) == ("true or false", "false")


PLUGINS = Plugins.installed()
CLASSES = [
    *(spec.policy.Options for spec in PLUGINS.policies.values()),
    *(spec.controller.Options for spec in PLUGINS.controllers.values()),
    *(spec.observer.Options for spec in PLUGINS.observers.values()),
]


@pytest.mark.parametrize("options", CLASSES, ids=lambda options: options.__qualname__)
def test_those_of_all_installed_plugins_are_words(options: type[BaseModel]) -> None:
    for option in options_of(options):
        assert option.description, f"{option.name} has no description"
        assert not set(option.type) & set("[]<>'"), option
