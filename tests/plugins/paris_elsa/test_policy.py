"""ELSA, event by event: which slice a request runs on, and when."""

from typing import Any, ClassVar

import msgspec
import pytest
from pydantic import ValidationError

from tests.examples import examples
from tidegate.api import (
    NEVER_NS,
    Dispatch,
    Drop,
    Model,
    PolicySpec,
    Profile,
    ProfileUpdated,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    Worker,
    WorkerDelayed,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    ms_to_ns,
)
from tidegate.schemas import Device, Mig
from tidegate.testing import Playbook, PolicyConformance
from tidegate_paris_elsa.policy import Elsa, ElsaOptions

A100 = Device("n", 0, "A100")
SMALL, OTHER_SMALL, LARGE = (
    Worker(0, "small", ("m",), device=A100, slice=Mig("1g.10gb", 0)),
    Worker(1, "other small", ("m",), device=A100, slice=Mig("1g.10gb", 1)),
    Worker(2, "large", ("m",), device=A100, slice=Mig("4g.40gb", 4)),
)
ON_SMALL = Profile.linear("m", alpha_ms=10, beta_ms=0, max_rows=8, device_class=SMALL.device_class)
ON_LARGE = Profile.linear("m", alpha_ms=2, beta_ms=4, max_rows=8, device_class=LARGE.device_class)


def playbook(*workers: Worker, **options: Any) -> Playbook:
    setup = Setup((Model("m", 8),), workers or (LARGE, SMALL), (ON_SMALL, ON_LARGE))
    return Playbook(Elsa(setup, ElsaOptions.model_validate(options)))


def arrived(number: int, rows: int = 1, *, slo_ms: float | None = 45, at_ms: float = 0) -> RequestArrived:
    at_ns = ms_to_ns(at_ms)
    due_ns = NEVER_NS if slo_ms is None else at_ns + ms_to_ns(slo_ms)
    return RequestArrived(at_ns, Request(number, "m", rows, at_ns, due_ns))


def ready(worker: Worker, at_ms: float, free_ms: float | None = None) -> WorkerReady:
    return WorkerReady(ms_to_ns(at_ms), worker.id, ms_to_ns(at_ms if free_ms is None else free_ms))


def runs(timeline: Playbook) -> list[tuple[int, tuple[int, ...]]]:
    """(worker, its batch's requests) of every dispatch that answers the last event."""
    dispatches = [each for each in timeline.commands() if isinstance(each, Dispatch)]
    return [(each.batch.stages[0].worker_id, each.batch.request_ids) for each in dispatches]


def after(timeline: Playbook, *events: Any) -> Playbook:
    """The timeline once these have happened, whatever was done about them."""
    for event in events:
        timeline >>= event
        timeline.commands()
    return timeline


def test_a_request_runs_on_the_smallest_slice_on_which_it_is_on_time() -> None:
    assert runs(playbook() >> arrived(0, rows=4)) == [(SMALL.id, (0,))]
    assert runs(playbook() >> arrived(0, rows=5)) == [(LARGE.id, (0,))]


def test_of_equal_slices_it_runs_on_the_one_with_the_least_to_do() -> None:
    timeline = after(playbook(SMALL, OTHER_SMALL, LARGE), arrived(0, 3), arrived(1, 2))
    timeline = after(timeline, arrived(2, 2))  # waits 20 ms for the other small one; would wait 30 ms for the first
    assert runs(timeline >> ready(OTHER_SMALL, 20)) == [(OTHER_SMALL.id, (2,))]


def test_it_waits_for_a_small_slice_rather_than_run_at_once_on_a_large_one() -> None:
    timeline = after(playbook(), arrived(0, 2), arrived(1, 2))
    assert runs(timeline >> ready(SMALL, 20)) == [(SMALL.id, (1,))]


def test_what_waits_and_what_is_left_of_what_runs_both_count() -> None:
    timeline = after(playbook(), arrived(0, 2), arrived(1, 1))
    assert runs(timeline >> arrived(2, 2, at_ms=4)) == [(LARGE.id, (2,))], "16 ms and 10 ms before it: 46 ms of 45 ms"
    timeline = after(playbook(), arrived(0, 2), arrived(1, 1))
    assert runs(timeline >> arrived(2, 2, at_ms=6)) == [], "14 ms and 10 ms before it: 44 ms of 45 ms"


def test_a_stage_that_runs_longer_than_expected_is_expected_to_last_as_long_again() -> None:
    timeline = after(playbook(), arrived(0, 2))
    assert runs(timeline >> arrived(1, 3, at_ms=30)) == [], "10 ms late: 10 ms and 30 ms of 45 ms"
    assert runs(timeline >> arrived(2, 1, at_ms=30)) == [(LARGE.id, (2,))], "10 ms and 30 ms before it"
    timeline = after(playbook(), arrived(0, 2))
    assert runs(timeline >> arrived(1, 3, at_ms=36)) == [(LARGE.id, (1,))], "16 ms late"


def test_who_idles_takes_over_what_waits_for_a_worker_that_hangs() -> None:
    timeline = after(
        playbook(SMALL, OTHER_SMALL), arrived(0), arrived(1), arrived(2), arrived(3), ready(OTHER_SMALL, 10)
    )
    assert runs(timeline >> ready(OTHER_SMALL, 20)) == [], "10 ms late, and it takes 10 ms here: perhaps it goes on"
    timeline = after(timeline, arrived(4, at_ms=20))
    assert runs(timeline >> ready(OTHER_SMALL, 31)) == [(OTHER_SMALL.id, (2,))]
    assert runs(timeline >> ready(SMALL, 40)) == [], "nothing waits for it any more"


def test_what_is_late_everywhere_runs_where_it_is_done_first() -> None:
    timeline = after(playbook(drop_late=False), arrived(0, 2))
    assert runs(timeline >> arrived(1, 8, slo_ms=1)) == [(LARGE.id, (1,))]
    timeline = after(timeline, arrived(2, 1, slo_ms=1))  # 20 ms before it on the small one and then 10, 20 and then 6
    assert runs(timeline >> ready(LARGE, 20)) == [(LARGE.id, (2,))]


@pytest.mark.parametrize("options", [{}, {"allow_batching": False}, {"alpha": 0.5, "beta": 0}])
def test_what_is_late_everywhere_is_dropped_when_it_comes(options: dict[str, Any]) -> None:
    """20 ms before it on the small one and then 10, 20 ms before it on the large one and then 6."""
    timeline = after(playbook(**options), arrived(0, 2), arrived(1, 8, slo_ms=25))
    assert (timeline >> arrived(2, 1, slo_ms=20)).commands() == [Drop(2, "deadline_unreachable")]
    assert (timeline >> arrived(3, 1, slo_ms=31)).commands() == []


def test_what_became_late_as_a_stage_took_longer_runs_elsewhere_or_is_dropped() -> None:
    timeline = after(playbook(), arrived(0, 2), arrived(1, 1, slo_ms=41), arrived(2, 1, slo_ms=42), arrived(3, 8))
    assert (timeline >> ready(SMALL, 35)).commands() == [
        Drop(1, "deadline_unreachable"),
        Drop(2, "deadline_unreachable"),
    ]
    timeline = after(playbook(), arrived(0, 2), arrived(1, 2, slo_ms=41))
    assert runs(timeline >> ready(SMALL, 30)) == [(LARGE.id, (1,))], "20 ms here, 8 ms there"


def test_a_request_without_a_deadline_runs_where_it_is_done_first() -> None:
    assert runs(playbook() >> arrived(0, 1, slo_ms=None)) == [(LARGE.id, (0,))]


def test_alpha_and_beta_scale_what_a_request_is_taken_to_need() -> None:
    assert runs(playbook(alpha=1.2) >> arrived(0, 4)) == [(LARGE.id, (0,))], "48 ms of 45 ms"
    assert runs(playbook(beta=1.2) >> arrived(0, 4)) == [(LARGE.id, (0,))]
    queued = arrived(0, 3), arrived(1, 1)
    assert runs(playbook(beta=1.2) >> queued[0]) == [(SMALL.id, (0,))]
    assert runs(after(playbook(beta=1.2), queued[0]) >> queued[1]) == [], "30 ms before it, and 12 ms: 42 ms of 45 ms"
    assert runs(after(playbook(alpha=1.2), queued[0]) >> queued[1]) == [(LARGE.id, (1,))], "48 ms of 45 ms"


def test_time_that_a_request_has_waited_already_is_gone() -> None:
    late = Request(1, "m", 3, 0, ms_to_ns(45))
    assert runs(playbook() >> RequestArrived(ms_to_ns(20), late)) == [(LARGE.id, (1,))], "tried again: 25 ms are left"


def test_a_worker_runs_what_came_first_first() -> None:
    timeline = playbook(SMALL, drop_late=False)
    timeline = after(timeline, arrived(0, 1), arrived(1, 2), arrived(2, 1, slo_ms=1), arrived(3, 1))
    for at_ms, expected in ((10, 1), (30, 2), (40, 3)):
        assert runs(timeline >> ready(SMALL, at_ms)) == [(SMALL.id, (expected,))]


def test_a_batch_is_planned_for_when_its_worker_is_free_and_for_as_long_as_may_be_promised() -> None:
    timeline = after(playbook(SMALL), arrived(0, 1), arrived(1, 2))
    promised = msgspec.structs.replace(ON_SMALL, planned=tuple(2 * each for each in ON_SMALL.expected))
    timeline = after(timeline, ProfileUpdated(ms_to_ns(1), promised))
    timeline >>= ready(SMALL, 9, free_ms=10)
    (dispatch,) = timeline.commands()
    assert isinstance(dispatch, Dispatch)
    (stage,) = dispatch.batch.stages
    assert (stage.start_ns, stage.duration_ns) == (ms_to_ns(10), ms_to_ns(40))


def test_a_worker_that_is_late_is_given_nothing_until_it_is_ready() -> None:
    timeline = after(playbook(SMALL), arrived(0, 1), ready(SMALL, 9, free_ms=10), WorkerDelayed(ms_to_ns(11), SMALL.id))
    assert runs(timeline >> arrived(1, 1, at_ms=12)) == []
    assert runs(timeline >> ready(SMALL, 15)) == [(SMALL.id, (1,))]


def test_who_cancels_leaves_the_line() -> None:
    timeline = after(playbook(), arrived(0, 2), arrived(1, 2))
    assert runs(timeline >> arrived(2, 1)) == [(LARGE.id, (2,))]
    timeline = after(timeline, RequestCancelled(0, 1))
    assert runs(timeline >> arrived(3, 2)) == [], "its place is free"
    assert runs(timeline >> ready(SMALL, 20)) == [(SMALL.id, (3,))]


def test_what_waits_for_a_lost_worker_joins_other_lines() -> None:
    timeline = after(playbook(SMALL, OTHER_SMALL), arrived(0), arrived(1), arrived(2, at_ms=1), arrived(3, at_ms=2))
    assert runs(timeline >> WorkerLost(ms_to_ns(3), SMALL.id)) == []
    for at_ms, expected in ((10, 3), (20, 2)):  # 3 waited there already
        assert runs(timeline >> ready(OTHER_SMALL, at_ms)) == [(OTHER_SMALL.id, (expected,))]


def test_without_a_worker_requests_wait_for_one() -> None:
    timeline = after(playbook(SMALL), arrived(0), WorkerLost(ms_to_ns(1), SMALL.id), arrived(1, at_ms=1))
    timeline = after(timeline, arrived(2, at_ms=2), RequestCancelled(ms_to_ns(3), 1), ready(SMALL, 4))
    assert runs(timeline >> WorkerJoined(ms_to_ns(5), LARGE)) == [(LARGE.id, (2,))]


def test_who_joins_shares_what_waits() -> None:
    timeline = after(playbook(LARGE), arrived(0), arrived(1, 2), arrived(2, 1), arrived(3, 4))
    assert runs(timeline >> WorkerJoined(0, SMALL)) == [(SMALL.id, (1,))]
    assert runs(timeline >> ready(LARGE, 6)) == [(LARGE.id, (3,))], "20 and 10 ms before it on the small one: too late"


def test_who_comes_back_as_another_is_another() -> None:
    """A slice of the same number, cut anew: both sizes are asked, though the first worker of each had that number."""
    recut = Worker(SMALL.id, "recut", ("m",), device=A100, slice=LARGE.slice)
    timeline = after(playbook(SMALL, OTHER_SMALL), WorkerLost(0, SMALL.id), WorkerJoined(0, recut))
    assert runs(timeline >> arrived(0, 8)) == [(recut.id, (0,))]
    assert runs(timeline >> arrived(1, 4)) == [(OTHER_SMALL.id, (1,))]


def test_an_expectation_that_moves_is_planned_with() -> None:
    slower = ON_SMALL.scaled(2)
    assert runs(after(playbook(), ProfileUpdated(0, slower)) >> arrived(0, 3)) == [(LARGE.id, (0,))]
    timeline = after(playbook(), arrived(0, 1), arrived(1, 1), ProfileUpdated(0, slower), arrived(2, 1, slo_ms=60))
    assert runs(timeline >> arrived(3, 1, slo_ms=60)) == [(LARGE.id, (3,))], "10, 20 and 20 ms before it"


def test_alone_if_asked_for_though_the_model_merges() -> None:
    timeline = after(playbook(SMALL, allow_batching=False), arrived(0, 1), arrived(1, 1), arrived(2, 1))
    assert runs(timeline >> ready(SMALL, 10)) == [(SMALL.id, (1,))]


@pytest.mark.parametrize(
    ("sizes", "slo_ms", "together"),
    [
        ((1, 1, 1), 45, (1, 2, 3)),
        ((4, 4, 1), 45, (1, 2)),  # 8 rows are all that a batch may have
        ((1, 3, 3), 22, (1, 2)),  # 18 ms from 6 ms on would be late for the first
        ((1, 7), 1, (1, 2)),  # late in any case: together they are done sooner
    ],
)
def test_merging_small_requests_while_all_are_on_time(
    sizes: tuple[int, ...], slo_ms: float, together: tuple[int, ...]
) -> None:
    timeline = after(playbook(LARGE, drop_late=False), arrived(0, 1))
    timeline = after(timeline, *(arrived(number, rows, slo_ms=slo_ms) for number, rows in enumerate(sizes, 1)))
    assert runs(timeline >> ready(LARGE, 6)) == [(LARGE.id, together)]


def test_what_saves_nothing_is_not_merged() -> None:
    timeline = after(playbook(SMALL), arrived(0, 1), arrived(1, 1), arrived(2, 1))
    assert runs(timeline >> ready(SMALL, 10)) == [(SMALL.id, (1,))]


def test_who_cancels_leaves_a_merged_batch() -> None:
    timeline = after(playbook(LARGE), arrived(0, 1), arrived(1, 1), arrived(2, 1), RequestCancelled(0, 1))
    assert runs(timeline >> ready(LARGE, 6)) == [(LARGE.id, (2,))]


@pytest.mark.parametrize("options", [{"alpha": 0}, {"beta": -1}, {"alpha": 1000}, {"gamma": 1}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ElsaOptions.model_validate(options)


class TestElsa(PolicyConformance):
    spec = PolicySpec("elsa", "ELSA", Elsa)
    worlds = examples(0.2)


class TestPublishedElsa(PolicyConformance):
    spec = PolicySpec("elsa", "ELSA", Elsa)
    options: ClassVar = {"allow_batching": False, "drop_late": False, "alpha": 0.7, "beta": 0.8}
    worlds = examples(0.2)
