"""What the policy is told of workers that may be given a batch: those that are idle, and those that are about to be."""

from collections.abc import Iterator

from tidegate.api import WorkerDelayed, WorkerReady
from tidegate.engine.state import State


def readiness(state: State, worker_id: int) -> WorkerReady | None:
    """The news that a worker has nothing booked, or nothing but a leg that is about to end; None where it has more.

    Nor where the policy's plan does without it, or where work of the policy before is still to be done there.
    """
    booked = state.fleet.bookings.get(worker_id)
    if booked is None or worker_id not in state.fleet.workers or state.succession.is_inherited(worker_id):
        return None
    now_ns = state.now_ns
    if not booked.legs:
        return WorkerReady(now_ns, worker_id, now_ns)
    if len(booked.legs) > 1 or booked.free_ns is None:
        return None
    booked.free_ns = None if state.overlap.is_late(now_ns, worker_id) else state.overlap.free_ns(now_ns, worker_id)
    return None if booked.free_ns is None else WorkerReady(now_ns, worker_id, booked.free_ns)


def due_news(state: State, but_for: int | None = None) -> Iterator[WorkerDelayed | WorkerReady]:
    """News of workers whose legs are about to end now, or should have ended and have not; each to be told at once.

    Nobody is told to be about to be idle while nothing waits: that is for who comes next. `but_for`: a worker whose leg
    ends with the present event, after which it is told.
    """
    bookings = state.fleet.bookings
    for worker_id in state.overlap.pop_late(state.now_ns):
        booked = bookings[worker_id]
        if len(booked.legs) == 1 and booked.free_ns is not None and worker_id != but_for:
            booked.free_ns = None
            if worker_id in state.fleet.workers and not state.succession.is_inherited(worker_id):
                yield WorkerDelayed(state.now_ns, worker_id)
    while state.queued and (ready_id := state.overlap.pop_ready(state.now_ns)) is not None:
        booked = bookings[ready_id]
        if len(booked.legs) == 1 and state.policy.overlaps and ready_id != but_for:
            booked.free_ns = state.now_ns
            if ready := readiness(state, ready_id):
                yield ready
