"""The scheduler's work per event, counted instead of timed, and the arithmetic of its benchmark.

Counted are calls of functions, built-in ones included, and every comparison and hash of a model's name or a worker's
id: what loops within C (`name in tuple`, the hash of a tuple, `heappush`) shows as well.
"""

import sys
from collections import Counter
from collections.abc import Callable
from math import log2
from types import FrameType

import pytest

from bench.scheduler import MIDDLE, MODELS, WORKERS, Cell, growth
from bench.scheduler_driver import BATCH, BUSY, Drive, setup_of
from tidegate.engine import Engine

COUNTED: Counter[str] = Counter()
REQUESTS = 400


class Name(str):
    """A model's name that counts how often it is looked at."""

    def __eq__(self, other: object) -> bool:
        COUNTED["names"] += 1
        return str.__eq__(self, other)

    def __lt__(self, other: str) -> bool:
        COUNTED["names"] += 1
        return str.__lt__(self, other)

    def __hash__(self) -> int:
        COUNTED["names"] += 1
        return str.__hash__(self)


class Id(int):
    """A worker's id that counts how often it is looked at."""

    def __eq__(self, other: object) -> bool:
        COUNTED["ids"] += 1
        return int.__eq__(self, other)

    def __lt__(self, other: int) -> bool:
        COUNTED["ids"] += 1
        return int.__lt__(self, other)

    def __hash__(self) -> int:
        COUNTED["ids"] += 1
        return int.__hash__(self)


def counts_per_event(models: int, workers: int, deferral: str) -> dict[str, float]:
    """What the scheduler does for an event on average, and how many events made as many calls as there are models."""
    names = [Name(f"model{index}") for index in range(models)]
    drive = Drive(setup_of(names, [Id(index) for index in range(workers)]), "symphony", {"deferral": deferral})
    drive.warm_up()
    calls_by_event: list[int] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event == "call" and frame.f_code is Engine.handle.__code__:
            calls_by_event.append(0)
        if event in ("call", "c_call") and calls_by_event and frame.f_globals is not globals():
            calls_by_event[-1] += 1

    COUNTED.clear()
    sys.setprofile(count)
    try:
        lap = drive.lap(REQUESTS)
    finally:
        sys.setprofile(None)
    assert lap.events == len(calls_by_event)
    return {
        "calls": sum(calls_by_event) / lap.events,
        "names": COUNTED["names"] / lap.events,
        "ids": COUNTED["ids"] / lap.events,
        "events that look at all": sum(calls >= max(models, workers) for calls in calls_by_event),
    }


FEW, MANY = 16, 1024


@pytest.mark.parametrize(
    ("deferral", "models", "workers"),
    [
        ("adaptive", MANY, MANY),
        pytest.param("adaptive", MANY, FEW, marks=pytest.mark.slow),
        pytest.param("adaptive", FEW, MANY, marks=pytest.mark.slow),
        pytest.param("frontrun", MANY, FEW, marks=pytest.mark.slow),
        pytest.param("frontrun", FEW, MANY, marks=pytest.mark.slow),
        pytest.param("frontrun", MANY, MANY, marks=pytest.mark.slow),
    ],
)
def test_the_work_per_event_grows_with_the_logarithm_of_models_and_workers(
    deferral: str, models: int, workers: int
) -> None:
    base, counts = counts_per_event(FEW, FEW, deferral), counts_per_event(models, workers, deferral)
    doublings = log2(models / FEW * workers / FEW)
    for counted, most_per_doubling in (("calls", 5), ("names", 2), ("ids", 2)):
        # A look at one in ten of them would already be 100 more, 8 per doubling and above.
        assert counts[counted] <= base[counted] + most_per_doubling * doublings, (counted, models, workers)
    # Now and then the dead are swept out of a heap, which has twice as many entries by then.
    assert counts["events that look at all"] <= 1 + REQUESTS / MANY, "events look at every model or worker"


def test_the_load_keeps_workers_as_busy_as_it_says() -> None:
    drive = Drive(setup_of(["a", "b", "c", "d"], range(16)), "symphony", {"deferral": "frontrun"})
    drive.warm_up()
    lap = drive.lap(4000)
    assert lap.busy == pytest.approx(BUSY, abs=0.05)
    assert lap.requests / lap.batches == pytest.approx(BATCH, rel=0.15)
    assert lap.dropped <= 0.01 * lap.requests


@pytest.mark.parametrize("of", ["models", "workers"])
def test_both_laws_are_recognized(of: str) -> None:
    def cells(law: Callable[[int], float]) -> list[Cell]:
        found = []
        for size in MODELS if of == "models" else WORKERS:
            models, workers = (size, MIDDLE) if of == "models" else (MIDDLE, size)
            found.append(Cell("adaptive", models, workers, 1e6 / law(size), law(size), law(size), BATCH, BUSY))
        return found

    assert growth(cells(lambda size: 3.0 * size**0.5), "adaptive", of).exponent == pytest.approx(0.5)
    assert growth(cells(lambda size: 7 + 2 * log2(size)), "adaptive", of).us_per_doubling == pytest.approx(2)
