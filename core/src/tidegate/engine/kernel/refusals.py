"""Events that an engine rejects before it changes its state."""

from collections.abc import Mapping

from tidegate.api import Policy, TimerFired, WorkerDelayed, WorkerJoined, WorkerReady
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.kernel.invariants import InvariantViolation
from tidegate.engine.kernel.policy_handover import Policies
from tidegate.engine.kernel.state import EngineState
from tidegate.engine.state_tables import Reservations
from tidegate.observation import AnyStimulus, PolicyChanged, TopologyChanged

REFUSABLE_EVENTS = frozenset({WorkerJoined, TopologyChanged, PolicyChanged, TimerFired, WorkerReady, WorkerDelayed})
"""Event types that can be rejected; all others are always applied."""


def check_event(event: AnyStimulus, state: EngineState, policies: Policies | None) -> None:
    """Raise an error if an engine in this state must reject an event; nothing is changed.

    `policies`: creates a policy by name; None: the engine keeps its own. Raises ValueError for a worker without
    profiles, an inconsistent topology or a policy that cannot be created, InvariantViolation for a timer.
    """
    try:
        match event:
            case WorkerJoined():
                state.expectations.check([event.worker], state.models)
                state.policy.check_worker(event.worker)
            case TopologyChanged():
                _check_plan(event, state.policy, state.fleet.bookings, state.expectations)
            case PolicyChanged():
                _check_policy(event, state, policies)
            case TimerFired() | WorkerReady() | WorkerDelayed():
                raise InvariantViolation(3, f"{type(event).__name__} is told by the engine, not by its driver")
    except (InvariantViolation, ValueError):
        raise
    except Exception as fault:  # such as a policy's, over models that it does not expect
        raise ValueError(f"the check of {type(event).__name__} broke: {type(fault).__name__}: {fault}") from fault


def _check_policy(event: PolicyChanged, state: EngineState, policies: Policies | None) -> None:
    if policies is None:
        raise ValueError("this engine keeps its policy: make it with Engine(..., policies=plugins.make_policy)")
    setup = state.succession.setup(state.models.values(), (), state.next_batch_id)
    try:
        policy = policies(event.policy, setup, event.options)
        policy.check_plan(state.models.values(), state.fleet.workers.values())
    except Exception as fault:
        raise ValueError(f"policy {event.policy!r} cannot take over: {fault}") from fault


def _check_plan(
    event: TopologyChanged, policy: Policy, bookings: Mapping[int, Reservations], expectations: Expectations
) -> None:
    wanted = {worker.id: worker for worker in event.workers}
    for worker_id, booked in bookings.items():
        if booked.stages and wanted.get(worker_id, booked.worker) != booked.worker:
            raise ValueError(f"{booked.worker.name!r} is busy and is to be another worker: give that a new id")
    policy.check_plan(event.models, event.workers)
    extended = Expectations(expectations.profiles.values(), learn=False)
    extended.extend(event.profiles, event.models)
    extended.check(event.workers, {model.name: model for model in event.models})
