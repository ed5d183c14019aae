"""The kit for controllers: a good one passes, and each fault is found by the test that is named after it."""

import random
from collections.abc import Callable
from unittest import SkipTest

import pytest
from pydantic import Field

from tidegate.api import PlanningError
from tidegate.control import Controller, ControllerOptions, ControllerSpec, Observation
from tidegate.host import Plugins
from tidegate.schemas import Layout
from tidegate.testing import ConformanceError, ControllerConformance


class Fewer(Controller):
    """The first workers, so many as the seed and the load say."""

    def step(self, observation: Observation) -> Layout | None:
        if observation.load > 0.9:
            raise PlanningError("nothing bears that")
        count = self.rng.randint(1, len(self.first_layout.workers))
        return self.first_layout.model_copy(update={"workers": self.first_layout.workers[:count]})


class TestFewer(ControllerConformance):
    """A controller of a module, which another process can import."""

    spec = ControllerSpec("fewer", "The first workers", Fewer)


def conformance_of(controller: type[Controller], summary: str = "in a line") -> ControllerConformance:
    made: type[ControllerConformance] = type(
        "Made", (ControllerConformance,), {"spec": ControllerSpec("own", summary, controller), "situations": 8}
    )
    return made()


def answering(step: Callable[[Controller, Observation], object]) -> type[Controller]:
    return type("Own", (Controller,), {"step": step})


LUCK = random.Random(1)


def _homeless(controller: Controller, observation: Observation) -> Layout:
    del observation
    return controller.first_layout.model_copy(update={"workers": ()})


def _without_a_model(controller: Controller, observation: Observation) -> Layout:
    del controller
    first = observation.layout.models[0]
    return observation.layout.model_copy(update={"models": (first,)})


def _by_luck(controller: Controller, observation: Observation) -> Layout:
    del observation
    count = LUCK.randint(1, len(controller.first_layout.workers))
    return controller.first_layout.model_copy(update={"workers": controller.first_layout.workers[:count]})


def _raises(controller: Controller, observation: Observation) -> None:
    raise KeyError("broken")


@pytest.mark.parametrize(
    ("step", "test", "words"),
    [
        (_homeless, "test_it_answers_with_layouts_that_add_up", "does not add up"),
        (lambda *_: "more", "test_it_answers_with_layouts_that_add_up", "it answered with 'more'"),
        (_without_a_model, "test_it_serves_every_model", "does without"),
        (_by_luck, "test_it_is_deterministic", "it answers otherwise"),
        (_raises, "test_it_serves_every_model", "it raised KeyError"),
    ],
)
def test_a_fault_is_found(step: Callable[[Controller, Observation], object], test: str, words: str) -> None:
    kit = conformance_of(answering(step))
    with pytest.raises(ConformanceError, match=words):
        getattr(kit, test)()


def test_one_that_cannot_be_imported_is_not_asked_of_another_process() -> None:
    with pytest.raises(SkipTest, match="cannot be imported"):
        conformance_of(answering(lambda *_: None)).test_it_is_deterministic_across_processes()


def test_options_and_summary_are_looked_at() -> None:
    class Bare(ControllerOptions):
        wet: int = Field(default=1)

    class Own(Fewer):
        Options = Bare

    with pytest.raises(ConformanceError, match="options without description: wet"):
        conformance_of(Own).test_every_option_is_described()
    with pytest.raises(ConformanceError, match="not one line"):
        conformance_of(Fewer, "two\nlines").test_it_has_a_summary_of_one_line()


def test_a_controller_is_selected_by_name_and_its_options_are_checked(plugins: Plugins) -> None:
    assert {"advised-workers", "ppipe-replanning"} <= plugins.controllers.keys()
