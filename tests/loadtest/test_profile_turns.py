"""In which order a model is measured: shapes and sizes take turns, so that a disturbance meets all of them."""

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from tidegate.schemas import ModelProfile
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.profiler import MEASUREMENT_ROUNDS, measure_profiles, shapes_to_measure
from tidegate_loadtest.requested_shapes import parse_asked

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton


@pytest.mark.parametrize("samples", [3, 12])
def test_shapes_and_sizes_take_turns(triton: "FakeTriton", samples: int) -> None:
    shapes = [{"IMAGE": (3, 4, width)} for width in (5, 6)]
    told: list[tuple[int, str]] = []

    async def measure() -> list[ModelProfile]:
        async with Connection(triton.target) as connection:
            return await measure_profiles(
                connection, "image", [1, 2], shapes, samples=samples, progress=lambda *now: told.append(now)
            )

    measured = asyncio.run(measure())
    assert [profile.shape for profile in measured] == ["IMAGE:3,4,5", "IMAGE:3,4,6"]
    assert {point.samples for profile in measured for point in profile.points} == {samples}
    sent = [tuple(request.inputs[0].shape) for request in triton.requests]
    turns = [(1, 3, 4, 5), (2, 3, 4, 5), (1, 3, 4, 6), (2, 3, 4, 6)] * min(MEASUREMENT_ROUNDS, samples)
    assert [shape for shape, _ in groupby(sent)] == turns
    assert len(sent) > 4 * samples, "each turn begins with requests that do not count"
    assert told[-1] == (4 * samples, "IMAGE:3,4,6 2 rows")
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_shape_that_is_asked_for_twice_is_measured_once(triton: "FakeTriton") -> None:
    async def found() -> dict[str, str]:
        async with Connection(triton.target) as connection:
            asked = parse_asked(["X:4", "X:4"])
            fixed = await shapes_to_measure(connection, "echo", asked)
            open_ones = await shapes_to_measure(connection, "image", parse_asked(["IMAGE:3,4,5", "IMAGE:3,4,5"]))
            return {shape: each.source for shape, each in (*fixed.items(), *open_ones.items())}

    assert asyncio.run(found()) == {"": "--shape X:4", "IMAGE:3,4,5": "--shape IMAGE:3,4,5"}
