"""Answers of controllers that change to one layout at a time."""

from tidegate.control import Controller, LayoutSteps, Observation
from tidegate.schemas import Layout


def step(controller: Controller, observation: Observation) -> Layout | None:
    """Return the layout that a controller answers with; it must not be a sequence of them."""
    answer = controller.step(observation)
    assert not isinstance(answer, LayoutSteps)
    return answer
