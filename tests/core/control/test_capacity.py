"""What layouts bear, and what they take."""

import pytest

from tests.core.control.layouts import layout, workers_of
from tidegate.control.capacity import capacities, gpus_of, load_of
from tidegate.schemas import Mig, Mps, Slice


def test_the_batch_is_the_largest_of_which_two_fit_into_the_slo() -> None:
    assert capacities(layout(workers_of(2))) == {"m": 2 * 4 / 0.010}
    assert capacities(layout(workers_of(1), slo_ms=15)) == {"m": 1 / 0.010}
    assert capacities(layout(workers_of(1), slo_ms=None)) == {"m": 4 / 0.010}


def test_models_that_share_workers_share_their_load() -> None:
    apart = layout({"w0": ["a"], "w1": ["b"]})
    shared = layout({"w0": ["a", "b"], "w1": ["a", "b"]})
    assert load_of(apart, {"a": 200, "b": 100}) == pytest.approx(0.5)
    assert load_of(shared, {"a": 200, "b": 100}) == pytest.approx(0.375)
    assert load_of(shared, {}) == 0


def test_gpus_are_counted_by_what_is_taken_of_them() -> None:
    halves = {"w0": Mps(percent=50), "w1": Mps(percent=25), "w2": Mps(percent=75)}
    assert gpus_of(layout(workers_of(3), slices=halves, on={"w0": 0, "w1": 0, "w2": 1})) == 1.5
    more = {"w0": Mps(percent=80), "w1": Mps(percent=80)}
    assert gpus_of(layout(workers_of(2), slices=more, on={"w0": 0, "w1": 0})) == 1
    assert gpus_of(layout(workers_of(2), on={"w0": 3, "w1": 3})) == 1
    slices: dict[str, Slice] = {
        "w0": Mig("1g.5gb", 0),
        "w1": Mig("3g.20gb", 4),
        "w2": Mps(percent=50, instance=Mig("1g.5gb", 0)),
    }
    assert gpus_of(layout(workers_of(2), slices=slices, on={"w0": 0, "w1": 0})) == pytest.approx(4 / 7)
    assert gpus_of(layout({"w2": ["m"]}, slices=slices)) == pytest.approx(0.5 / 7)
