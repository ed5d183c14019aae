"""A driver that does at once what it is asked for: the controller answers, and the engine follows."""

from collections.abc import Callable, Collection

from tidegate.api import Request
from tidegate.control import (
    Action,
    Controller,
    ControllerChoice,
    ControlLoop,
    LayoutChange,
    QueryController,
    Switch,
    controller_answer,
)
from tidegate.schemas import Layout


class ControlledLoop(ControlLoop):
    """A loop with the controller that answers it."""

    def __init__(
        self,
        controller: Controller,
        choice: ControllerChoice,
        first: Layout,
        unanswered: Callable[[], Collection[Request]],
    ) -> None:
        super().__init__(choice, first, unanswered)
        self.controller = controller


def followed(its: ControlledLoop | LayoutChange, now_ns: int, orders: list[Action]) -> list[Action]:
    """These orders, and those that follow from them; without the question to the controller."""
    every: list[Action] = []
    for order in orders:
        if isinstance(order, QueryController):
            assert isinstance(its, ControlledLoop)
            every += followed(its, now_ns, its.on_answer(now_ns, controller_answer(its.controller, order.observation)))
            continue
        every.append(order)
        if isinstance(order, Switch):
            every += its.on_switched(now_ns)
    return every


def advance(loop: ControlledLoop, now_ns: int) -> list[Action]:
    """Let time pass."""
    return followed(loop, now_ns, loop.advance(now_ns))
