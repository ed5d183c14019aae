"""What requests bring along: the moments that are promised, the bounds, the errors."""

from random import Random
from statistics import mean, stdev

import pytest
from pydantic import TypeAdapter, ValidationError

from tidegate.workload.distributions import AnyDistribution, Constant, LogNormal, Normal, ValueTable, choosing_from
from tidegate.workload.simulated import StallSpec

READ: TypeAdapter[Constant | LogNormal | Normal | ValueTable] = TypeAdapter(AnyDistribution)


def test_a_number_is_a_constant() -> None:
    three = READ.validate_python(3)
    assert three == Constant(value=3)
    section = StallSpec(probability=0.1, factor=three)
    written = section.model_dump(mode="json", exclude_defaults=True)
    assert StallSpec.model_validate(written) == section, "as `recommend` writes and reads scenarios"
    draw = three.drawing_from(Random(0))
    assert [draw(), draw()] == [3, 3]
    assert three.bounds == (3, 3)


def test_a_lognormal_has_the_mean_and_variation_of_its_own_numbers() -> None:
    draw = READ.validate_python({"distribution": "lognormal", "mean": 40, "cv": 0.5}).drawing_from(Random(1))
    drawn = [draw() for _ in range(40_000)]
    assert mean(drawn) == pytest.approx(40, rel=0.02)
    assert stdev(drawn) / mean(drawn) == pytest.approx(0.5, rel=0.03)


def test_a_normal_is_a_bell_without_its_negative_part() -> None:
    bell = READ.validate_python({"distribution": "normal", "mean": 40, "std": 5})
    drawn = [draw() for draw in [bell.drawing_from(Random(1))] for _ in range(20_000)]
    assert mean(drawn) == pytest.approx(40, rel=0.01)
    assert stdev(drawn) == pytest.approx(5, rel=0.03)
    wide = READ.validate_python({"distribution": "normal", "mean": 1, "std": 5})
    draw = wide.drawing_from(Random(1))
    assert wide.bounds == (0, float("inf"))
    assert min(draw() for _ in range(1000)) >= 0


@pytest.mark.parametrize(
    "given",
    [
        {"distribution": "lognormal", "mean": 40, "cv": 0.5},
        {"distribution": "normal", "mean": 40, "std": 5},
        {"distribution": "normal", "mean": 1, "std": 5},
        {"distribution": "table", "values": [64, 1, 8], "weights": [3, 1, 4]},
        {"distribution": "table", "values": [3, 1, 2]},
    ],
)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.9, 0.99])
def test_a_quantile_is_what_that_share_of_the_draws_does_not_exceed(given: dict[str, object], share: float) -> None:
    distribution = READ.validate_python(given)
    draw = distribution.drawing_from(Random(2))
    drawn = [draw() for _ in range(20_000)]
    value = distribution.quantile(share)
    assert sum(number <= value for number in drawn) / len(drawn) >= share - 0.01
    assert sum(number < value for number in drawn) / len(drawn) <= share + 0.01


def test_a_table_draws_by_weight() -> None:
    table = READ.validate_python({"distribution": "table", "values": [1, 8, 64], "weights": [2, 0, 6]})
    draw = table.drawing_from(Random(1))
    drawn = [draw() for _ in range(10_000)]
    assert set(drawn) == {1, 64}
    assert drawn.count(64) == pytest.approx(7500, rel=0.03)
    assert table.bounds == (1, 64)


def test_a_table_without_weights_draws_evenly() -> None:
    draw = ValueTable(distribution="table", values=[1, 2]).drawing_from(Random(1))
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
        ({"distribution": "weibull", "mean": 1}, "'constant', 'lognormal', 'normal', 'table'"),
        ({"distribution": "normal", "mean": 1}, "std"),
        ({"distribution": "lognormal", "mean": 1, "cv": 0}, "greater than 0"),
        (-1, "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(given: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        READ.validate_python(given)
