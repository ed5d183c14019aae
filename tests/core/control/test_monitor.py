"""What a controller is told of a period."""

import pytest

from tests.core.control.layouts import layout
from tidegate.api import Advise, Batch, Request, Stage
from tidegate.control import LayoutRevision, Monitor
from tidegate.observation import StartStage

S = 1_000_000_000


def request(number: int, *, model: str = "m", rows: int = 1, due_s: int = 100) -> Request:
    return Request(number, model, rows, 0, due_s * S)


def test_what_came_is_what_ended_and_what_waits_more_than_before() -> None:
    revision = LayoutRevision.of(layout({"w0": ["m", "n"], "w1": ["m"]}))
    monitor = Monitor()
    waiting = [request(0), request(1, rows=3)]
    first = monitor.observe(2 * S, revision, waiting)
    assert (first.period_ns, first.models["m"].rate_rps, first.models["m"].rows_per_s) == (2 * S, 1.0, 2.0)
    assert first.models["m"].ended == 0
    assert first.attainment == 1

    batch = Batch(0, "m", (0,), (Stage(1, "m", 0, 1),))
    monitor.stage_ran(StartStage(batch, 0, 1), 3 * S, 4 * S)
    monitor.answered(batch, [waiting[0]], 4 * S)
    monitor.dropped(4 * S, request(2), "deadline_unreachable")
    monitor.failed(4 * S, request(3, model="n", rows=2), "broke")
    monitor.cancelled(4 * S, request(4, model="n"))
    monitor.advised(3 * S, Advise(2))
    monitor.advised(4 * S, Advise(-1))
    second = monitor.observe(4 * S, revision, [waiting[1]])
    assert second.period_ns == 2 * S
    m, n = second.models["m"], second.models["n"]
    assert (m.rate_rps, m.largest_rows, m.ended, m.attainment) == (0.5, 3, 2, 0.5)
    assert (m.sizes, n.sizes) == ({1: 2}, {2: 1}), "of those that ended, without cancelled ones"
    assert (n.rate_rps, n.rows_per_s, n.largest_rows, n.ended, n.attainment) == (1.0, 1.5, 2, 1, 0.0)
    assert second.busy == {"w0": 0.0, "w1": 0.5}
    assert second.load == 0.25
    assert second.advice == Advise(-1)

    third = monitor.observe(5 * S, revision, [])
    assert third.models["m"].sizes == {}
    assert third.models["m"].rate_rps == 0  # the one that waited came before
    assert third.models["m"].largest_rows == 3
    assert third.advice is None


def test_a_late_answer_is_not_on_time() -> None:
    monitor = Monitor()
    batch = Batch(0, "m", (0, 1), (Stage(0, "m", 0, 1),))
    monitor.answered(batch, [request(0, due_s=1), request(1, due_s=3)], 2 * S)
    observed = monitor.observe(2 * S, LayoutRevision.of(layout({"w0": ["m"]})), [])
    assert observed.models["m"].attainment == pytest.approx(0.5)


def test_a_new_period_begins_with_a_new_layout() -> None:
    monitor = Monitor()
    monitor.dropped(S, request(0), "deadline_unreachable")
    monitor.skip_to(10 * S, [request(1, rows=2)])
    observed = monitor.observe(12 * S, LayoutRevision.of(layout({"w0": ["m"]})), [request(1, rows=2)])
    assert (observed.period_ns, observed.models["m"].rate_rps, observed.models["m"].ended) == (2 * S, 0.0, 0)
