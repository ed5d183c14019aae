"""What the policy decides, as timelines; and that it keeps the contract, in random worlds."""

from typing import ClassVar

from tidegate.api import (
    Batch,
    Dispatch,
    Drop,
    Model,
    Profile,
    Request,
    RequestArrived,
    SetTimer,
    Stage,
    TimerFired,
    Worker,
    WorkerReady,
)
from tidegate.testing import PlaybookOf, PolicyConformance
from tidegate_template.plugin import tidegate_policies
from tidegate_template.policy import Template

MODELS = (Model("cat", max_rows=4), Model("dog", max_rows=4))
WORKERS = (Worker(0, "gpu0", hosts=("cat", "dog")),)
PROFILES = tuple(Profile(model.name, "default", expected=(10, 12, 14, 16)) for model in MODELS)


class TestConformance(PolicyConformance):
    """The invariants, with the defaults."""

    (spec,) = tidegate_policies()


class TestConformanceWithAReserve(TestConformance):
    """The invariants, with other options."""

    options: ClassVar = {"reserve_ms": 3}

    def test_10_no_idle_refusal(self) -> None:
        """Not asked: what is kept free is kept free though a worker is idle."""


def arrived(request_id: int, model: str, now_ns: int, due_ns: int) -> RequestArrived:
    """A request of one row comes."""
    return RequestArrived(now_ns, Request(request_id, model, 1, now_ns, due_ns))


def runs(batch_id: int, model: str, *request_ids: int, start_ns: int, duration_ns: int) -> Dispatch:
    """Requests run together on the only worker."""
    return Dispatch(Batch(batch_id, model, request_ids, (Stage(0, model, start_ns, duration_ns),)))


def test_the_queue_that_is_due_first_is_served_first(playbook_of: PlaybookOf) -> None:
    """Though its requests came later; they run together."""
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES)
        >> arrived(0, "cat", now_ns=0, due_ns=100)
        << runs(0, "cat", 0, start_ns=0, duration_ns=10)
        >> arrived(1, "cat", now_ns=1, due_ns=90)
        << SetTimer(("cat", "", ""), 81)
        >> arrived(2, "dog", now_ns=2, due_ns=60)
        << SetTimer(("dog", "", ""), 51)
        >> arrived(3, "dog", now_ns=3, due_ns=61)
        << SetTimer(("dog", "", ""), 51)
        >> WorkerReady(10, 0, 10)
        << runs(1, "dog", 2, 3, start_ns=10, duration_ns=12)
    )


def test_a_worker_that_is_about_to_be_idle_is_kept_for_the_most_urgent(playbook_of: PlaybookOf) -> None:
    """Behind what still runs it might be late; others would not, and would hold it up."""
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES)
        >> arrived(0, "cat", now_ns=0, due_ns=100)
        << runs(0, "cat", 0, start_ns=0, duration_ns=10)
        >> arrived(1, "cat", now_ns=1, due_ns=90)
        << SetTimer(("cat", "", ""), 81)
        >> arrived(2, "dog", now_ns=2, due_ns=21)
        << SetTimer(("dog", "", ""), 12)
        >> WorkerReady(9, 0, 12)
        << SetTimer(("dog", "", ""), 12)
        >> WorkerReady(10, 0, 10)
        << runs(1, "dog", 2, start_ns=10, duration_ns=10)
    )


def test_what_cannot_be_on_time_is_dropped_at_once(playbook_of: PlaybookOf) -> None:
    """It would be late even alone."""
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES) >> arrived(0, "cat", 0, 9) << Drop(0, "deadline_unreachable")
    )


def test_a_request_that_waits_is_dropped_when_it_is_too_late(playbook_of: PlaybookOf) -> None:
    """Not earlier: the worker might have become free; nor later: its client could do something else."""
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES)
        >> arrived(0, "cat", 0, 100)
        << runs(0, "cat", 0, start_ns=0, duration_ns=10)
        >> arrived(1, "cat", 0, 15)
        << SetTimer(("cat", "", ""), 6)
        >> TimerFired(6, ("cat", "", ""))
        << Drop(1, "deadline_unreachable")
    )


def test_the_reserve_is_kept_free_before_every_deadline(playbook_of: PlaybookOf) -> None:
    """One nanosecond of it, and what just fitted does not."""
    just_in_time = arrived(0, "cat", now_ns=0, due_ns=10)
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES)
        >> just_in_time
        << runs(0, "cat", 0, start_ns=0, duration_ns=10)
    )
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES, reserve_ms=1e-6)
        >> just_in_time
        << Drop(0, "deadline_unreachable")
    )
