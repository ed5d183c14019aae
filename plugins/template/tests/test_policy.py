"""Decisions of the policy as scripted transcripts, and conformance on random worlds."""

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

MODELS = (Model("resnet50", max_rows=4), Model("bert", max_rows=4))
WORKERS = (Worker(0, "gpu0", hosts=("resnet50", "bert")),)
PROFILES = tuple(Profile(model.name, "default", expected=(10, 12, 14, 16)) for model in MODELS)


class TestConformance(PolicyConformance):
    """Checks the invariants with the default options."""

    (spec,) = tidegate_policies()


class TestConformanceWithAReserve(TestConformance):
    """Checks the invariants with a reserve before deadlines."""

    options: ClassVar = {"deadline_margin_ms": 3}

    def test_10_no_idle_refusal(self) -> None:
        """Skip: the reserve is kept free though a worker is idle."""


def arrived(request_id: int, model: str, now_ns: int, due_ns: int) -> RequestArrived:
    """Return the arrival of a request of one row."""
    return RequestArrived(now_ns, Request(request_id, model, 1, now_ns, due_ns))


def runs(batch_id: int, model: str, *request_ids: int, start_ns: int, duration_ns: int) -> Dispatch:
    """Return the dispatch of a batch to the only worker."""
    return Dispatch(Batch(batch_id, model, request_ids, (Stage(0, model, start_ns, duration_ns),)))


def test_the_queue_that_is_due_first_is_served_first(playbook_of: PlaybookOf) -> None:
    """Its requests came later, and run in one batch."""
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES)
        >> arrived(0, "resnet50", now_ns=0, due_ns=100)
        << runs(0, "resnet50", 0, start_ns=0, duration_ns=10)
        >> arrived(1, "resnet50", now_ns=1, due_ns=90)
        << SetTimer(("resnet50", "", ""), 81)
        >> arrived(2, "bert", now_ns=2, due_ns=60)
        << SetTimer(("bert", "", ""), 51)
        >> arrived(3, "bert", now_ns=3, due_ns=61)
        << SetTimer(("bert", "", ""), 51)
        >> WorkerReady(10, 0, 10)
        << runs(1, "bert", 2, 3, start_ns=10, duration_ns=12)
    )


def test_a_worker_that_is_about_to_be_idle_is_kept_for_the_most_urgent(playbook_of: PlaybookOf) -> None:
    """The urgent request would be late behind the running stage; another batch must not take the worker."""
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES)
        >> arrived(0, "resnet50", now_ns=0, due_ns=100)
        << runs(0, "resnet50", 0, start_ns=0, duration_ns=10)
        >> arrived(1, "resnet50", now_ns=1, due_ns=90)
        << SetTimer(("resnet50", "", ""), 81)
        >> arrived(2, "bert", now_ns=2, due_ns=21)
        << SetTimer(("bert", "", ""), 12)
        >> WorkerReady(9, 0, 12)
        << SetTimer(("bert", "", ""), 12)
        >> WorkerReady(10, 0, 10)
        << runs(1, "bert", 2, start_ns=10, duration_ns=10)
    )


def test_a_request_that_will_be_late_is_dropped_at_once(playbook_of: PlaybookOf) -> None:
    """The request would be late even alone."""
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES)
        >> arrived(0, "resnet50", 0, 9)
        << Drop(0, "deadline_unreachable")
    )


def test_a_request_that_waits_is_dropped_when_it_is_too_late(playbook_of: PlaybookOf) -> None:
    """Not earlier, as the worker might become free; not later, so that the client knows at once."""
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES)
        >> arrived(0, "resnet50", 0, 100)
        << runs(0, "resnet50", 0, start_ns=0, duration_ns=10)
        >> arrived(1, "resnet50", 0, 15)
        << SetTimer(("resnet50", "", ""), 6)
        >> TimerFired(6, ("resnet50", "", ""))
        << Drop(1, "deadline_unreachable")
    )


def test_the_reserve_is_kept_free_before_every_deadline(playbook_of: PlaybookOf) -> None:
    """With a reserve of one nanosecond, a request that just fitted does not."""
    just_in_time = arrived(0, "resnet50", now_ns=0, due_ns=10)
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES)
        >> just_in_time
        << runs(0, "resnet50", 0, start_ns=0, duration_ns=10)
    )
    assert (
        playbook_of(Template, MODELS, WORKERS, PROFILES, deadline_margin_ms=1e-6)
        >> just_in_time
        << Drop(0, "deadline_unreachable")
    )
