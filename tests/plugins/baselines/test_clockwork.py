"""Clockwork's candidates, with l(b) = 10 (b + 5)."""

import pytest

from tidegate.api import (
    NEVER_NS,
    AnyCommand,
    Batch,
    Dispatch,
    Drop,
    Model,
    PolicyOptions,
    Profile,
    Request,
    RequestArrived,
    SetTimer,
    Setup,
    Stage,
    Worker,
    WorkerReady,
)
from tidegate.testing import Playbook
from tidegate_baselines.clockwork import Clockwork

SETUP = Setup(
    models=(Model("m", 4, slo_ns=120), Model("n", 4, slo_ns=120)),
    workers=(Worker(0, "w0", ("m", "n")),),
    profiles=tuple(Profile(name, "default", tuple(10 * (rows + 5) for rows in range(1, 5))) for name in "mn"),
)


def run(batch: int, *ids: int, at: int, model: str = "m") -> Dispatch:
    return Dispatch(Batch(batch, model, ids, (Stage(0, model, at, 10 * (len(ids) + 5)),)))


def when_freed(at: int, **deadlines: tuple[int, ...]) -> list[AnyCommand]:
    """What a worker that frees is given, of requests 1, 2, ... that wait with these deadlines."""
    play = Playbook(Clockwork(SETUP, PolicyOptions()))
    play = play >> RequestArrived(0, Request(0, "m", 1, 0, 999)) << run(0, 0, at=0)
    number = 0
    for model, dues in deadlines.items():
        for due_ns in dues:
            number += 1
            (play >> RequestArrived(number, Request(number, model, 1, number, due_ns))).commands()
    return [c for c in (play >> WorkerReady(at, 0, at)).commands() if not isinstance(c, SetTimer)]


@pytest.mark.parametrize(
    ("deadlines", "expected"),
    [
        # of one must start by 70, of two by 60, of three (without the first) by 70
        ((130, 150, 150, 150), [run(1, 1, 2, at=60)]),
        # the most urgent is of one: no batch is too small
        ((120, 150, 150), [run(1, 1, at=60)]),
        # the first leaves time for two, by 65; three others must start by 60
        ((135, 140, 140, 200), [Drop(1, "early_drop"), run(1, 2, 3, 4, at=60)]),
        ((NEVER_NS, NEVER_NS), [run(1, 1, 2, at=60)]),
    ],
)
def test_of_the_candidates_of_all_sizes_the_one_whose_latest_start_is_earliest(
    deadlines: tuple[int, ...], expected: list[AnyCommand]
) -> None:
    assert when_freed(60, m=deadlines) == expected


def test_of_all_models_the_most_urgent_candidate() -> None:
    assert when_freed(60, m=(150, 160), n=(145,)) == [run(1, 1, 2, at=60)]  # by 80 the two, by 85 the one
    assert when_freed(60, m=(150, 160), n=(135,)) == [run(1, 3, at=60, model="n")]
