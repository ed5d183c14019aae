"""The live actuator only proposes steps that need MIG instances: it cannot create these."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.proxy.app.actuation.deployment import layout
from tidegate.control import LayoutSteps, Observation, QueryController
from tidegate_proxy.app.actuation.actuator import NO_STEPS, Actuator

STEPS = LayoutSteps((layout(0, batch=1, slo_ms=400, batch_ms=150),), keep=0.5, gain=0.2)


@pytest.mark.parametrize(("dry_run", "answer"), [(True, STEPS), (False, NO_STEPS)])
async def test_steps_are_only_proposed(dry_run: bool, answer: object) -> None:
    heard: list[object] = []

    class Asked:
        async def ask(self, _observation: Observation) -> LayoutSteps:
            return STEPS

    def on_answer(_now_ns: int, said: object) -> list[object]:
        heard.append(said)
        return []

    loop: Any = SimpleNamespace(revision=SimpleNamespace(ids=()), change=None, on_answer=on_answer)
    tritons: Any = SimpleNamespace(alone=asyncio.Lock())
    controller: Any = Asked()
    processes: Any = None if dry_run else object()
    observation = Observation(0, 1, STEPS.layouts[0], {}, {})
    await Actuator(loop, controller, tritons, processes, 1.0)._ask(QueryController(observation))
    assert heard == [answer]
