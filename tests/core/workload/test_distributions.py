"""What requests bring along: the moments that are promised, the bounds, the errors."""

from random import Random
from statistics import mean, stdev

import pytest
from pydantic import TypeAdapter, ValidationError

from tidegate.workload.distributions import AnyDistribution, Constant, LogNormal, Table, choosing_from

READ: TypeAdapter[Constant | LogNormal | Table] = TypeAdapter(AnyDistribution)


def test_a_number_is_a_constant() -> None:
    three = READ.validate_python(3)
    assert three == Constant(value=3)
    draw = three.drawing_from(Random(0))
    assert [draw(), draw()] == [3, 3]
    assert (three.smallest, three.largest) == (3, 3)


def test_a_lognormal_has_the_mean_and_variation_of_its_own_numbers() -> None:
    draw = READ.validate_python({"distribution": "lognormal", "mean": 40, "cv": 0.5}).drawing_from(Random(1))
    drawn = [draw() for _ in range(40_000)]
    assert mean(drawn) == pytest.approx(40, rel=0.02)
    assert stdev(drawn) / mean(drawn) == pytest.approx(0.5, rel=0.03)


def test_a_table_draws_by_weight() -> None:
    table = READ.validate_python({"distribution": "table", "values": [1, 8, 64], "weights": [2, 0, 6]})
    draw = table.drawing_from(Random(1))
    drawn = [draw() for _ in range(10_000)]
    assert set(drawn) == {1, 64}
    assert drawn.count(64) == pytest.approx(7500, rel=0.03)
    assert (table.smallest, table.largest) == (1, 64)


def test_a_table_without_weights_draws_evenly() -> None:
    draw = Table(distribution="table", values=[1, 2]).drawing_from(Random(1))
    assert [draw() for _ in range(10_000)].count(1) == pytest.approx(5000, rel=0.04)


def test_a_choice_never_runs_past_the_end() -> None:
    class Edge(Random):
        def random(self) -> float:
            return 1.0  # what rounding may make of the largest draw

    assert choosing_from([0.1] * 3, Edge())() == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"distribution": "table", "values": [1, 2], "weights": [1]}, "2 values have 1 weights"),
        ({"distribution": "table", "values": [1, 2], "weights": [0, 0]}, "all weights are zero"),
        ({"distribution": "table", "values": []}, "at least 1 item"),
        ({"distribution": "normal", "mean": 1}, "'constant', 'lognormal', 'table'"),
        ({"distribution": "lognormal", "mean": 1, "cv": 0}, "greater than 0"),
        (-1, "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(given: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        READ.validate_python(given)
