"""Which layouts are refused, and why."""

from typing import Any

import pytest

from tests.core.control.layouts import layout, workers_of
from tidegate.control import ControllerChoice, Governor, LayoutRevision, ModelLoad, Observation
from tidegate.schemas import Layout, Mig

S = 1_000_000_000


def observed(
    present: Layout, *, rate_rps: float = 100, rows: int = 1, attainment: float = 1, now_s: int = 0
) -> Observation:
    load = ModelLoad(rate_rps, rate_rps * rows, rows, 1000, attainment)
    busy = {worker.name: 0.5 for worker in present.workers}
    return Observation(now_s * S, 10 * S, present, {model.name: load for model in present.models}, busy)


def objection(present: Layout, wanted: Layout, its: Observation, **limits: Any) -> str:
    revision = LayoutRevision.of(present)
    governor = Governor(ControllerChoice(name="c", **limits))
    return governor.rejection_reason(revision, revision.followed_by(wanted, len(present.workers)), its)


def test_a_layout_that_bears_more_or_takes_less_may_come() -> None:
    present = layout(workers_of(4))
    assert objection(present, layout(workers_of(5)), observed(present)) == ""
    assert objection(present, layout(workers_of(3)), observed(present)) == ""


def test_a_model_that_is_served_must_be_served() -> None:
    present = layout({"w0": ["m", "n"]})
    why = objection(present, layout({"w0": ["m"]}), observed(present))
    assert why == "it does without model 'n', which is served"


def test_requests_as_large_as_have_come_must_be_taken() -> None:
    present = layout(workers_of(1))
    narrow = layout(workers_of(2), batch=2)
    assert "takes up to 2 rows of model 'm', and a request had 3" in objection(
        present, narrow, observed(present, rows=3)
    )
    assert "a request had" not in objection(present, narrow, observed(present, rows=2))


def test_a_layout_that_does_not_bear_what_comes_is_refused() -> None:
    present = layout(workers_of(4))
    why = objection(present, layout(workers_of(1)), observed(present, rate_rps=600))
    assert why == "it would not sustain the load: 150% of its capacity, 38% of the present one"


def test_what_gains_too_little_is_refused_unless_requests_are_lost() -> None:
    present, wanted = layout(workers_of(30)), layout(workers_of(31))
    its = observed(present)
    assert objection(present, wanted, its) == "it sustains +3% load with +3% GPUs: 5% is wanted"
    assert objection(present, wanted, its, min_improvement=0.03) == ""
    assert objection(present, wanted, observed(present, attainment=0.9)) == ""
    fewer = layout(workers_of(29))
    assert objection(present, fewer, observed(present, attainment=0.9)) != ""  # that does not help


def test_a_model_must_have_a_worker_that_is_there() -> None:
    present = layout({"w0": ["m"], "w1": ["m"]})
    revision, governor = LayoutRevision.of(present), Governor(ControllerChoice(name="c"))
    fewer = revision.followed_by(layout({"w0": ["m"]}), 2)
    assert governor.rejection_reason(revision, fewer, observed(present), away={1}) == ""
    why = governor.rejection_reason(revision, fewer, observed(present), away={0})
    assert why == "the workers that it has for model 'm' are away"
    assert governor.rejection_reason(revision, fewer, observed(present), away={0, 1}) == ""  # it is no worse than now


def test_workers_that_are_away_bear_nothing() -> None:
    present = layout(workers_of(4))
    revision, governor = LayoutRevision.of(present), Governor(ControllerChoice(name="c"))
    fewer = revision.followed_by(layout(workers_of(3)), 4)
    its = observed(present, rate_rps=1400)
    assert "it would not sustain the load" in governor.rejection_reason(revision, fewer, its)
    other = revision.followed_by(layout({"w0": ["m"], "w1": ["m"], "w4": ["m"]}), 4)
    assert governor.rejection_reason(revision, other, its, away={2, 3}) == ""


def test_mig_instances_must_fit_in_beside_those_that_serve() -> None:
    present = layout(workers_of(2), slices={"w0": Mig("3g.20gb", 0), "w1": Mig("3g.20gb", 4)}, on={"w0": 0, "w1": 0})
    a100 = {"product": "A100", "memory_mib": 40_960}
    assert "GPUs" in objection(present, present, observed(present))

    def of_a100(one: Layout) -> Layout:
        given = one.model_dump(mode="json")
        for worker in given["workers"]:
            worker["device"] |= a100
        return Layout.model_validate(given)

    cut = layout({"x": ["m"], "y": ["m"]}, slices={"x": Mig("4g.20gb", 0), "y": Mig("3g.20gb", 4)}, on={"x": 0, "y": 0})
    why = objection(of_a100(present), of_a100(cut), observed(of_a100(present)))
    assert why.startswith("its new workers cannot start beside those that serve: ")
    assert "4g.20gb" in why


def test_a_change_is_followed_by_a_pause_and_one_that_was_undone_by_longer_ones() -> None:
    governor = Governor(ControllerChoice(name="c", cooldown_s=10))
    assert not governor.in_cooldown(0)
    governor.on_change_over(100 * S)
    assert governor.in_cooldown(110 * S - 1)
    assert not governor.in_cooldown(110 * S)
    for undone, cooldown_s in enumerate((20, 40, 80), 1):
        governor.on_change_over(0, undone=True)
        assert governor.in_cooldown(cooldown_s * S - 1), undone
        assert not governor.in_cooldown(cooldown_s * S)
    governor.on_change_over(0)
    assert not governor.in_cooldown(10 * S)


@pytest.mark.parametrize("broken_by", ["content", "objection"])
def test_what_is_wanted_has_to_be_wanted_for_a_while(broken_by: str) -> None:
    present = layout(workers_of(2))
    revision = LayoutRevision.of(present)
    more, same = (revision.followed_by(layout(workers_of(count)), 2) for count in (3, 2))
    governor = Governor(ControllerChoice(name="c", stabilization_window_s=20))

    def asks(now_s: int) -> bool:
        assert not governor.rejection_reason(revision, more, observed(present, now_s=now_s))
        return not governor.in_cooldown(now_s * S)

    assert [asks(now_s) for now_s in (0, 10, 20)] == [False, False, True]
    if broken_by == "content":
        governor.reset_stabilization()
    else:
        assert governor.rejection_reason(revision, same, observed(present, now_s=25))
    assert [asks(now_s) for now_s in (30, 40, 50)] == [False, False, True]
