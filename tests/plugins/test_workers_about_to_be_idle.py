"""A worker that is about to be idle is not taken from the most urgent, who had better wait until it is."""

import pytest

from tidegate.api import (
    AnyEvent,
    Dispatch,
    Model,
    Policy,
    Profile,
    Request,
    RequestArrived,
    Setup,
    Worker,
    WorkerReady,
    ms_to_ns,
)
from tidegate.host import Plugins

MS = ms_to_ns(1)
STAGE = 10 * MS
SETUP = Setup(
    (Model("patient", 1, 100 * MS), Model("urgent", 1, 15 * MS)),
    (Worker(0, "w0", ("patient", "urgent")),),
    (Profile("patient", "default", (STAGE,)), Profile("urgent", "default", (STAGE,))),
)
DEADLINES = ["clockwork", "eager", "orloj", "symphony", "timeout"]


def arrives(policy: Policy, number: int, model: str, at_ns: int, slo_ns: int) -> list[int]:
    return dispatched(policy, RequestArrived(at_ns, Request(number, model, 1, at_ns, at_ns + slo_ns)))


def dispatched(policy: Policy, event: AnyEvent) -> list[int]:
    """The requests that the policy dispatches when this happens."""
    commands = policy.handle(event)
    return [number for command in commands if isinstance(command, Dispatch) for number in command.batch.request_ids]


def busy(name: str) -> Policy:
    """A policy whose worker runs request 0 until 10 ms, by 12 ms surely; of what waits the urgent has time for 9 ms."""
    policy = Plugins.installed().make_policy(name, SETUP, {})
    assert arrives(policy, 0, "patient", 0, 100 * MS) == [0]
    assert arrives(policy, 1, "patient", 5 * MS, 100 * MS) == []
    assert arrives(policy, 2, "urgent", 6 * MS, 15 * MS) == []
    return policy


@pytest.mark.parametrize("name", DEADLINES)
def test_it_is_kept_for_the_most_urgent(name: str) -> None:
    policy = busy(name)
    assert dispatched(policy, WorkerReady(9 * MS, 0, 12 * MS)) == []
    assert dispatched(policy, WorkerReady(10 * MS, 0, 10 * MS)) == [2]


@pytest.mark.parametrize("name", DEADLINES)
def test_who_comes_while_it_is_kept_does_not_get_it(name: str) -> None:
    policy = busy(name)
    dispatched(policy, WorkerReady(9 * MS, 0, 12 * MS))
    assert arrives(policy, 3, "patient", 9 * MS + 1, 100 * MS) == []
    assert dispatched(policy, WorkerReady(10 * MS, 0, 10 * MS)) == [2]


@pytest.mark.parametrize("name", DEADLINES)
def test_the_most_urgent_takes_it_where_that_is_on_time(name: str) -> None:
    assert dispatched(busy(name), WorkerReady(9 * MS, 0, 11 * MS)) == [2]


@pytest.mark.parametrize("name", DEADLINES)
def test_it_is_not_kept_for_who_is_late_there_anyhow(name: str) -> None:
    """The most urgent waits for the quicker device class: the slower one is for those who have the time."""
    setup = Setup(
        (Model("patient", 1, 100 * MS), Model("urgent", 1, 15 * MS)),
        (Worker(0, "quick", ("patient", "urgent"), "quick"), Worker(1, "slow", ("patient", "urgent"), "slow")),
        tuple(
            Profile(model, kind, (took_ns,))
            for model in ("patient", "urgent")
            for kind, took_ns in (("quick", STAGE), ("slow", 2 * STAGE))
        ),
    )
    policy = Plugins.installed().make_policy(name, setup, {})
    assert arrives(policy, 0, "patient", 0, 100 * MS) == [0]
    assert arrives(policy, 1, "patient", 0, 100 * MS) == [1]
    assert arrives(policy, 2, "urgent", 7 * MS, 15 * MS) == []
    assert arrives(policy, 3, "patient", 8 * MS, 100 * MS) == []
    assert dispatched(policy, WorkerReady(9 * MS, 1, 11 * MS)) == [3]
    assert dispatched(policy, WorkerReady(10 * MS, 0, 10 * MS)) == [2]
