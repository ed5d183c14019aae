"""Check every command of a policy against the engine's state and apply it."""

from tidegate.api import Advise, AnyCommand, Batch, CancelTimer, Dispatch, Drop, Preempt, Request, Reroute, SetTimer
from tidegate.engine.kernel.invariants import EngineStateError, InvariantViolation, check_deadlines, check_dispatch
from tidegate.engine.kernel.state import EngineState
from tidegate.observation import CancelStage


def apply(state: EngineState, command: AnyCommand) -> None:
    """Apply a policy's command and append its effects.

    Raises InvariantViolation, before anything changed, if the policy is at fault; EngineStateError if the engine is.
    """
    try:
        _carry_out(state, command)
    except InvariantViolation:
        raise
    except Exception as fault:
        raise EngineStateError(f"{type(command).__name__}: {type(fault).__name__}: {fault}") from fault


def _carry_out(state: EngineState, command: AnyCommand) -> None:
    match command:
        case Dispatch():
            _dispatch(state, command.batch)
        case SetTimer():
            state.succession.timers.set(command.key, command.at_ns)
        case CancelTimer():
            state.succession.timers.cancel(command.key)
        case Drop():
            _drop(state, command)
        case Preempt():
            _preempt(state, command)
        case Reroute():
            state.flights.reroute(state.now_ns, command)
        case Advise():
            state.effects.append(command)
        case _:
            raise InvariantViolation(1, f"{command!r} is no command")


def _dispatch(state: EngineState, batch: Batch) -> None:
    fleet, queued = state.fleet, state.waiting.queued
    taken, rows = check_dispatch(state.now_ns, state.next_batch_id, batch, queued, state.models, fleet.bookings)
    if not state.policy.is_best_effort(batch.model):
        check_deadlines(batch, taken, rows, fleet.workers, state.expectations.profiles)
    start_batch(state, batch, taken, rows)


def start_batch(state: EngineState, batch: Batch, taken: list[Request], rows: int) -> None:
    """Remove `taken`, the requests of a batch, from their queue and start the batch. `rows`: their rows in total."""
    state.next_batch_id = batch.id + 1
    state.succession.offered.difference_update([stage.worker_id for stage in batch.stages])
    state.waiting.starts(batch.model, taken, rows, sum(stage.duration_ns for stage in batch.stages))
    state.flights.start_batch(state.now_ns, batch, taken, rows)


def _drop(state: EngineState, command: Drop) -> None:
    request = state.waiting.queued.pop(command.request_id, None)
    if request is None:
        raise InvariantViolation(1, f"request {command.request_id} is dropped but not queued")
    if doubted := state.expectations.doubt(state.now_ns, request, state.fleet.idle):
        state.reprieved.append((request, doubted))
        return
    if state.waiting.give_up(state.now_ns, request):
        state.dropped(command)


def _preempt(state: EngineState, command: Preempt) -> None:
    flight = state.flights.get(command.batch_id)
    if flight is None or not flight.running:
        raise InvariantViolation(3, f"batch {command.batch_id} is preempted but does not run")
    if not flight.preempted:
        flight.preempted = True
        state.effects.append(CancelStage(flight.batch, flight.stage))
