"""The waiting requests in arrays: whatever comes and goes, each has the priority that Equation 2 gives it."""

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.orloj.test_priority import equation_2
from tidegate.api import NEVER_NS, LatencyDistribution, Model, Profile, Request, ms_to_ns
from tidegate_orloj.applications import Applications, BatchKind
from tidegate_orloj.batch_latency import Floats
from tidegate_orloj.pending import MAX_EXPONENT, PendingQueue
from tidegate_orloj.priority import Cost

MODEL = Model("m", 8, ms_to_ns(200))
PROFILE = Profile.linear("m", alpha_ms=8, beta_ms=12, max_rows=8)


def applications(b: float = 1e-4) -> Applications:
    known = Applications("m", "", b)
    known.tell_profile(PROFILE)
    for app, times_ms in (("quick", (5, 6, 7, 8)), ("slow", (40, 50, 70))):
        known.tell_times(LatencyDistribution("m", app, "default", tuple(map(ms_to_ns, times_ms)), ms_to_ns(10), 0.5))
    return known


def pending(b: float = 1e-4, steps: Sequence[Cost] = ((1.0, 1.0),), known: Applications | None = None) -> PendingQueue:
    key = ("m", "", "")
    return PendingQueue(key, MODEL, known or applications(b), tuple(steps), no_slo_max_deferral_ns=ms_to_ns(100))


def request(number: int, at_ms: float = 0, slo_ms: float | None = 200, app: str = "", rows: int = 1) -> Request:
    due_ns = NEVER_NS if slo_ms is None else ms_to_ns(at_ms + slo_ms)
    return Request(number, "m", rows, ms_to_ns(at_ms), due_ns, app=app)


APPS = ("", "quick", "slow", "not known")
ALONE = BatchKind("default", 1, 0)
SIZES = (ALONE, BatchKind("default", 2, 1), BatchKind("default", 4, 3))


def slowest(known: Applications) -> int:
    """The group whose batches hold all groups."""
    return int(known.groups("default").ranks.argmax())


def scores_of(queue: PendingQueue, size: BatchKind, now_ns: int) -> Floats:
    """The priorities in batches that hold requests of all groups, whatever was drawn for other events."""
    queue.applications._budget.renew()
    curves = queue.applications.curves([size])
    line = slowest(queue.applications) if size.others else 0
    scores: Floats = queue.scores(size, curves[size].curve, now_ns)[line]
    return scores


@given(st.data(), st.sampled_from([1e-6, 1e-4, 1e-2, 0.1]))
def test_whatever_comes_and_goes_each_has_the_priority_of_equation_2(data: st.DataObject, b: float) -> None:
    known = applications(b)
    queue = pending(b, [(0.5, 1.0), (1.0, 3.0)], known)
    waiting: dict[int, Request] = {}
    now_ms = data.draw(st.sampled_from([0.0, 1e6]))
    for number in range(data.draw(st.integers(1, 25))):
        now_ms += data.draw(st.floats(0, 50))
        leaves = data.draw(st.booleans())
        if waiting and leaves:
            gone = data.draw(st.sampled_from(sorted(waiting)))
            del waiting[gone]
            queue.remove(gone)
        new = request(
            number, now_ms, data.draw(st.floats(1, 400)), data.draw(st.sampled_from(APPS)), data.draw(st.integers(1, 3))
        )
        waiting[number] = new
        queue.push(new)
        size = data.draw(st.sampled_from(SIZES))
        scores = scores_of(queue, size, ms_to_ns(now_ms))
        assert len(scores) == len(queue) == len(waiting)
        for place, score in enumerate(scores):
            one = queue.request_at(place)
            assert waiting[one.id] == one
            latency = known.latency(size)
            line = slowest(known) if size.others else 0
            group = int(known.groups("default").group_of[known.number_of(one)])
            arrived_ms, given_ms = one.arrival_ns / 1e6, (one.deadline_ns - one.arrival_ns) / 1e6
            expected = sum(
                equation_2(latency, (line, group), arrived_ms + multiple * given_ms - now_ms, 0.0, b, cost)
                for multiple, cost in ((0.5, 1.0), (1.0, 2.0))
            )
            assert score == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_the_base_of_instants_is_reset_before_anything_overflows() -> None:
    b = 1e-2
    queue = pending(b)
    limit_ms = MAX_EXPONENT / b
    for number, at_ms in enumerate((0.0, 0.9 * limit_ms, 8 * limit_ms, 80 * limit_ms)):
        queue.push(request(number, at_ms, app="slow"))
        scores = scores_of(queue, ALONE, ms_to_ns(at_ms))
        assert scores[-1] == pytest.approx(float(scores_of(queue, ALONE, ms_to_ns(at_ms))[-1]))
        assert scores[-1] > 0
        assert np.isfinite(scores).all()
    fresh = pending(b)
    fresh.push(request(9, 80 * limit_ms, app="slow"))
    assert scores_of(queue, ALONE, ms_to_ns(80 * limit_ms))[-1] == pytest.approx(
        scores_of(fresh, ALONE, ms_to_ns(80 * limit_ms))[0], rel=1e-9
    )


def test_scores_follow_when_a_distribution_moves() -> None:
    known = applications()
    queue = pending(known=known)
    queue.push(request(0, slo_ms=100, app="quick"))
    before = scores_of(queue, ALONE, 0)[0]
    known.tell_times(LatencyDistribution("m", "quick", "default", (ms_to_ns(300),)))
    assert before > 0
    assert scores_of(queue, ALONE, 0)[0] == 0


def test_the_best_are_those_of_the_highest_scores_and_of_equal_ones_the_oldest() -> None:
    queue = pending()
    for number, at_ms in enumerate((3, 1, 2, 0, 4)):
        queue.push(request(number, at_ms))
    scores = np.array([1.0, 2.0, 1.0, 1.0, 5.0])
    among = np.array([True, True, True, True, False])
    assert [queue.request_at(place).id for place in queue.best(scores, among, 3)] == [1, 3, 2]
    assert [queue.request_at(place).id for place in queue.best(scores, among, 8)] == [1, 3, 2, 0]


def test_smaller_requests_use_the_rows_that_a_larger_one_leaves_and_a_single_request_may_be_larger() -> None:
    queue = pending()
    for number, rows in enumerate((2, 2, 1)):
        queue.push(request(number, rows=rows))
    scores = np.array([3.0, 2.0, 1.0])
    assert list(queue.best(scores, np.full(3, True), 3)) == [0, 2]
    assert list(queue.best(scores, np.full(3, True), 4)) == [0, 1]
    assert list(queue.best(scores, np.full(3, True), 1)) == [0]


def test_without_a_deadline_a_request_waits_until_patience_is_at_an_end() -> None:
    queue = pending()
    queue.push(request(0, slo_ms=None))
    queue.push(request(1, at_ms=50, slo_ms=60))
    score, dated = scores_of(queue, ALONE, ms_to_ns(50))
    assert 0 < score < inf
    assert dated > 0
    assert scores_of(queue, ALONE, ms_to_ns(100))[0] == inf


def test_applications_that_come_more_often_weigh_more() -> None:
    known = applications()
    before_ms = known.latency(BatchKind("default", 4, 3)).mean_ms[2, 1]
    for number in range(1000):
        known.count(request(number, app="slow"))
    after_ms = known.latency(BatchKind("default", 4, 3)).mean_ms[2, 1]
    assert after_ms > before_ms
    follower = applications()
    follower.inherit(known)
    assert follower.latency(BatchKind("default", 4, 3)).mean_ms[2, 1] == pytest.approx(after_ms, rel=0.02)
