"""Recent decisions, one line each, with the event that caused them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from tidegate.api import (
    Advise,
    AnyCommand,
    BatchFailed,
    Dispatch,
    Drop,
    Preempt,
    Reroute,
    WorkerJoined,
    WorkerLost,
)
from tidegate.observation import (
    AnyEffect,
    AnyStimulus,
    ChangeProgressed,
    EngineRestarted,
    Fail,
    ObserverRemoved,
    PolicyReplaced,
    PolicyRestored,
    PolicyTuned,
    TopologyChanged,
)
from tidegate_proxy.app.dashboard.event_buffer import BufferedEvent
from tidegate_proxy.app.dashboard.snapshot import DecisionRow, cut

MAX_DECISIONS_PER_TICK: Final = 15
"""Number of decisions shown per tick, the latest."""
_WHY: Final = {
    "RequestArrived": "a request arrived",
    "RequestCancelled": "a request was cancelled",
    "StageFinished": "a batch ended",
    "BatchFailed": "a batch failed",
    "WorkerReady": "a worker was free",
    "WorkerDelayed": "a worker was not free in time",
    "TimerFired": "a timer fired",
    "ClockAdvanced": "its time had come",
    "WorkerJoined": "a worker joined",
    "WorkerLost": "a worker was lost",
    "ProfileUpdated": "what is expected had changed",
    "LatencyDistributionUpdated": "what is expected had changed",
    "TimerLatencyUpdated": "what is expected had changed",
    "TopologyChanged": "the plan had changed",
}


def latest_decisions(
    latest_first: Iterable[BufferedEvent], answers: int, ms: Callable[[int], float], names: Mapping[int, str]
) -> tuple[list[DecisionRow], int]:
    """Return the latest decisions of some buffered events, the latest last, and how many policy answers are not shown.

    `answers`: number of policy answers in these events; only the latest are read. `ms`: converts instants to dashboard
    time; `names`: of workers, by id.
    """
    found: list[DecisionRow] = []
    for moment in latest_first:
        found += islice(_latest_decisions(moment, ms, names), MAX_DECISIONS_PER_TICK)
        if len(found) >= MAX_DECISIONS_PER_TICK:
            break
    shown = found[:MAX_DECISIONS_PER_TICK][::-1]
    return shown, max(0, answers - len(shown))


def _latest_decisions(
    moment: BufferedEvent, ms: Callable[[int], float], names: Mapping[int, str]
) -> Iterator[DecisionRow]:
    """The latest first, each when it is asked for: there may be thousands in one moment."""
    at_ms = ms(moment.event.now_ns)
    for effect in reversed(moment.effects):
        if happened := _of_effect(effect, at_ms):
            yield happened
    for event, commands in reversed(moment.policy_events):
        why = _WHY.get(type(event).__name__, "")
        for command in reversed(commands):
            if decided := _of_command(command, at_ms, why, names):
                yield decided
    if decision := _of_stimulus(moment.event, at_ms, names):
        yield decision


def _of_command(command: AnyCommand, at_ms: float, why: str, names: Mapping[int, str]) -> DecisionRow | None:
    match command:
        case Dispatch(batch=batch):
            worker = cut(names.get(batch.stages[0].worker_id, str(batch.stages[0].worker_id)))
            return DecisionRow(
                at_ms,
                "dispatch",
                why,
                model=cut(batch.model),
                worker=worker,
                text=f"batch {batch.id}",
                requests=len(batch.request_ids),
                request=batch.request_ids[0],
            )
        case Drop():
            return DecisionRow(at_ms, "drop", why, text=cut(command.reason), requests=1, request=command.request_id)
        case Preempt():
            return DecisionRow(at_ms, "preempt", why, text=f"batch {command.batch_id}")
        case Reroute():
            return DecisionRow(at_ms, "reroute", why, text=f"batch {command.batch_id}")
        case Advise():
            return DecisionRow(at_ms, "advise", why, text=f"{command.workers:+d} workers")
    return None  # timers: every decision to wait sets one


def _of_stimulus(event: AnyStimulus, at_ms: float, names: Mapping[int, str]) -> DecisionRow | None:
    match event:
        case WorkerJoined():
            return DecisionRow(at_ms, "joined", "", worker=cut(event.worker.name))
        case WorkerLost():
            return DecisionRow(at_ms, "lost", "", worker=cut(names.get(event.worker_id, str(event.worker_id))))
        case BatchFailed():
            worker = cut(names.get(event.worker_id, str(event.worker_id)))
            return DecisionRow(at_ms, "batch failed", "", worker=worker, text=cut(event.reason))
        case TopologyChanged():
            return DecisionRow(at_ms, "plan", "", text=f"{len(event.models)} models, {len(event.workers)} workers")
        case ChangeProgressed():
            what, text = "layout", f"change {event.change}: {event.state} {event.reason}"
        case PolicyTuned():
            what, text = f"policy {event.verdict}", event.reason
        case _:
            return None
    return DecisionRow(at_ms, what, "", text=cut(text))


def _of_effect(effect: AnyEffect, at_ms: float) -> DecisionRow | None:
    match effect:
        case PolicyReplaced():
            return DecisionRow(at_ms, "policy replaced", "", text=cut(str(effect)))
        case PolicyRestored():
            return DecisionRow(at_ms, "policy restored", "", text=cut(effect.policy))
        case EngineRestarted():
            return DecisionRow(at_ms, "engine restarted", "", text=cut(effect.reason))
        case ObserverRemoved():
            return DecisionRow(at_ms, "observer removed", "", text=cut(effect.reason))
        case Fail():
            return DecisionRow(at_ms, "fail", "", text=cut(effect.reason), requests=1, request=effect.request_id)
    return None
