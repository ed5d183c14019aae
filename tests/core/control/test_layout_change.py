"""One change: every way that it may go."""

from tests.core.control.driving import followed
from tests.core.control.layouts import layout, workers_of
from tidegate.control import Action, LayoutChange, LayoutRevision, StartWorker, StopWorker, Switch
from tidegate.observation import ChangeProgressed
from tidegate.schemas import Layout

S = 1_000_000_000


def change(before: Layout, after: Layout) -> LayoutChange:
    first = LayoutRevision.of(before)
    return LayoutChange(
        1, first, first.followed_by(after, len(before.workers)), start_limit_ns=10 * S, drain_limit_ns=5 * S
    )


def short(orders: list[Action]) -> list[object]:
    """Orders in a word each."""
    words: list[object] = []
    for order in orders:
        match order:
            case StartWorker():
                words.append(("start", order.worker_id))
            case StopWorker():
                words.append(("stop", order.worker_id))
            case Switch():
                words.append("switch")
            case ChangeProgressed():
                words.append(order.state)
    return words


def test_new_ones_start_beside_the_old_then_the_switch_then_the_old_drain() -> None:
    its = change(layout({"w0": ["m"], "w1": ["m"]}), layout({"w0": ["m"], "w1": ["m", "n"], "w2": ["n"]}))
    assert short(followed(its, 0, its.begin(0))) == ["starting", ("start", 2), ("start", 3)]
    assert short(followed(its, S, its.on_worker_warm(S, 3))) == []
    assert its.workers == {0: "serving", 1: "serving", 2: "starting", 3: "warm"}
    assert its.revision is its.before
    assert short(followed(its, 2 * S, its.on_worker_warm(2 * S, 2))) == ["switch", "switched"]
    assert its.workers == {0: "serving", 1: "draining", 2: "serving", 3: "serving"}
    assert its.revision is its.after
    assert short(its.on_worker_drained(3 * S, 1)) == [("stop", 1), "done"]
    assert its.is_over


def test_what_only_releases_switches_at_once() -> None:
    its = change(layout(workers_of(2)), layout(workers_of(1)))
    assert short(followed(its, 0, its.begin(0))) == ["starting", "switch", "switched"]
    assert its.draining == (1,)


def test_what_only_joins_is_done_with_the_switch() -> None:
    its = change(layout(workers_of(1)), layout(workers_of(2)))
    followed(its, 0, its.begin(0))
    assert short(followed(its, S, its.on_worker_warm(S, 1))) == ["switch", "switched", "done"]


def test_it_is_undone_when_a_new_one_is_not_up_on_time() -> None:
    its = change(layout(workers_of(1)), layout(workers_of(3)))
    followed(its, 0, its.begin(0))
    its.on_worker_warm(S, 1)
    assert its.limit_ns == 10 * S
    assert its.pass_time(10 * S - 1) == []
    orders = its.pass_time(10 * S)
    assert short(orders) == [("stop", 1), ("stop", 2), "undone"]
    assert isinstance(orders[-1], ChangeProgressed)
    assert orders[-1].reason == "not up within 10 s: w2"
    assert its.workers[0] == "serving"
    assert its.revision is its.before
    assert its.on_worker_warm(11 * S, 2) == []  # too late


def test_it_is_undone_when_a_new_one_fails_before_the_switch() -> None:
    its = change(layout(workers_of(1)), layout(workers_of(3)))
    followed(its, 0, its.begin(0))
    its.on_worker_warm(S, 1)
    orders = its.on_worker_failed(2 * S, 1, "out of memory")
    assert short(orders) == [("stop", 1), ("stop", 2), "undone"]
    assert isinstance(orders[-1], ChangeProgressed)
    assert orders[-1].reason == "worker 'w1' did not come up: out of memory"


def test_an_old_one_that_dies_meanwhile_does_not_end_it() -> None:
    its = change(layout(workers_of(2)), layout({"w0": ["m"], "w1": ["m", "n"]}))
    followed(its, 0, its.begin(0))
    assert its.on_worker_failed(S, 1, "killed") == []
    assert short(followed(its, 2 * S, its.on_worker_warm(2 * S, 2))) == ["switch", "switched"]
    assert short(followed(its, 3 * S, its.on_worker_failed(3 * S, 1, "killed"))) == [("stop", 1), "done"]


def test_what_does_not_drain_on_time_is_stopped() -> None:
    its = change(layout(workers_of(3)), layout(workers_of(1)))
    followed(its, 0, its.begin(0))
    assert short(its.on_worker_drained(S, 2)) == [("stop", 2)]
    assert short(its.pass_time(5 * S)) == [("stop", 1), "done"]


def test_after_the_switch_nothing_is_undone() -> None:
    its = change(layout(workers_of(2)), layout(workers_of(1)))
    followed(its, 0, its.begin(0))
    assert its.undo(S, "control was stopped") == []
    assert its.revision is its.after


def test_a_switch_that_is_refused_undoes_it() -> None:
    its = change(layout(workers_of(1)), layout(workers_of(2)))
    its.begin(0)
    assert short(its.on_worker_warm(S, 1)) == ["switch"]
    assert its.undo(S, "control was stopped") == []  # the engine is about to follow, or not
    orders = its.on_switch_failed(S, "the policy serves no pipelines")
    assert short(orders) == [("stop", 1), "undone"]
    assert isinstance(orders[-1], ChangeProgressed)
    assert orders[-1].reason == "the switch was refused: the policy serves no pipelines"
    assert its.revision is its.before
    assert its.on_switched(2 * S) == []
