"""What was decided, told in a line each, and what the policy had just been told."""

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
    TopologyChanged,
)
from tidegate_proxy.app.dashboard.moments import Moment
from tidegate_proxy.app.dashboard.snapshot import Decision, cut

SHOWN: Final = 15
"""So many decisions are told at a tick, the latest."""
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
    latest_first: Iterable[Moment], answers: int, ms: Callable[[int], float], names: Mapping[int, str]
) -> tuple[list[Decision], int]:
    """The latest decisions of some moments, the latest last, and how many answers of the policy are not shown.

    `answers`: how many there are in these moments, of which only the latest are looked at; `ms`: instants as the page
    has them; `names`: of workers, by id.
    """
    found: list[Decision] = []
    for moment in latest_first:
        found += islice(_latest_decisions(moment, ms, names), SHOWN)
        if len(found) >= SHOWN:
            break
    shown = found[:SHOWN][::-1]
    return shown, max(0, answers - len(shown))


def _latest_decisions(moment: Moment, ms: Callable[[int], float], names: Mapping[int, str]) -> Iterator[Decision]:
    """The latest first, each when it is asked for: there may be thousands in one moment."""
    at_ms = ms(moment.event.now_ns)
    for effect in reversed(moment.effects):
        if happened := _of_effect(effect, at_ms):
            yield happened
    for event, commands in reversed(moment.told):
        why = _WHY.get(type(event).__name__, "")
        for command in reversed(commands):
            if decided := _of_command(command, at_ms, why, names):
                yield decided
    if told := _of_stimulus(moment.event, at_ms, names):
        yield told


def _of_command(command: AnyCommand, at_ms: float, why: str, names: Mapping[int, str]) -> Decision | None:
    match command:
        case Dispatch(batch=batch):
            worker = cut(names.get(batch.stages[0].worker_id, str(batch.stages[0].worker_id)))
            return Decision(
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
            return Decision(at_ms, "drop", why, text=cut(command.reason), requests=1, request=command.request_id)
        case Preempt():
            return Decision(at_ms, "preempt", why, text=f"batch {command.batch_id}")
        case Reroute():
            return Decision(at_ms, "reroute", why, text=f"batch {command.batch_id}")
        case Advise():
            return Decision(at_ms, "advise", why, text=f"{command.workers:+d} workers")
    return None  # timers: every decision to wait sets one


def _of_stimulus(event: AnyStimulus, at_ms: float, names: Mapping[int, str]) -> Decision | None:
    match event:
        case WorkerJoined():
            return Decision(at_ms, "joined", "", worker=cut(event.worker.name))
        case WorkerLost():
            return Decision(at_ms, "lost", "", worker=cut(names.get(event.worker_id, str(event.worker_id))))
        case BatchFailed():
            worker = cut(names.get(event.worker_id, str(event.worker_id)))
            return Decision(at_ms, "batch failed", "", worker=worker, text=cut(event.reason))
        case TopologyChanged():
            return Decision(at_ms, "plan", "", text=f"{len(event.models)} models, {len(event.workers)} workers")
        case ChangeProgressed():
            return Decision(at_ms, "layout", "", text=cut(f"change {event.change}: {event.state} {event.reason}"))
    return None


def _of_effect(effect: AnyEffect, at_ms: float) -> Decision | None:
    match effect:
        case PolicyReplaced():
            return Decision(at_ms, "policy replaced", "", text=cut(str(effect)))
        case PolicyRestored():
            return Decision(at_ms, "policy restored", "", text=cut(effect.policy))
        case EngineRestarted():
            return Decision(at_ms, "engine restarted", "", text=cut(effect.reason))
        case ObserverRemoved():
            return Decision(at_ms, "observer removed", "", text=cut(effect.reason))
        case Fail():
            return Decision(at_ms, "fail", "", text=cut(effect.reason), requests=1, request=effect.request_id)
    return None
