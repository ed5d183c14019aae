"""Simulated workers: they take as long as the truth says, share GPUs, fail, vanish, and wait for what links carry.

A leg that is sent to a worker that runs another one waits there for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.api import (
    Advise,
    AnyEvent,
    BatchFailed,
    ClockAdvanced,
    Drop,
    LegFinished,
    RequestArrived,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import AnyEffect, CancelLeg, Engine, Fail, PolicyReplaced, StartLeg
from tidegate.sim.links import Links
from tidegate.sim.record import Record
from tidegate.sim.simulation import Simulation, preempted
from tidegate.sim.truth import SimulatedWorker, Truth

PATIENCE = 100_000
"""How often timers may fire in a row while nothing runs and requests wait: their policy will never run them."""


@dataclass(slots=True)
class _Running:
    """A leg on its worker."""

    effect: StartLeg
    started_ns: int
    left_ns: float
    """Work that was left at `since_ns` (which may be yet to come), at the worker's full speed."""
    since_ns: int
    fails: bool
    slowed: bool = False
    ends_ns: int = 0
    order: int = 0
    """What calls its end off."""


class Cluster(Simulation):
    """Drives an engine with simulated workers and records how requests end."""

    def __init__(
        self,
        engine: Engine,
        workers: Sequence[SimulatedWorker],
        truth: Truth,
        record: Record,
        *,
        interference: float = 1.0,
        retry: bool = True,
        links: Links | None = None,
    ) -> None:
        """`interference`: a worker is so many times slower while another one of its GPU is busy.

        `retry`: failures of legs are the worker's fault, so that the engine tries their requests again.
        """
        super().__init__(engine)
        self._workers = {worker.id: worker for worker in workers}
        self._truth = truth
        self._record = record
        self._interference = interference
        self._retry = retry
        self._links = links
        self._running: dict[int, _Running] = {}
        """By worker."""
        self._waiting: dict[int, _Running] = {}
        """By worker, the leg that waits there for the one that runs; `since_ns` is when it is there."""
        self._sharing = self._sharing_workers(workers) if interference > 1 else {}
        self._timers_in_a_row = 0

    def stop(self) -> None:
        """End the run after the present event."""
        self._stopped = True

    def _only_waits(self, wake_ns: int) -> bool:
        del wake_ns
        self._timers_in_a_row += 1
        return not (self.engine.queued or self.engine.in_flight) or self._timers_in_a_row > PATIENCE

    def _handle(self, event: AnyEvent) -> None:
        now_ns = event.now_ns
        kind = type(event)
        if kind is RequestArrived or kind is ClockAdvanced:
            pass  # the most frequent ones
        elif isinstance(event, (LegFinished, BatchFailed)):
            self._timers_in_a_row = 0
            self._end_leg(event)
        elif isinstance(event, WorkerLost):
            self._abort(event.worker_id, now_ns)
        elif isinstance(event, WorkerJoined):
            self._abort(event.worker.id, now_ns)  # it was away, though nobody noticed
        effects = self.engine.handle(event)
        if self._links is not None and type(event) is LegFinished:
            self._send(self._links, event)
        if effects:
            self._carry_out(now_ns, effects)

    def _carry_out(self, now_ns: int, effects: list[AnyEffect]) -> None:
        record = self._record
        for effect in effects:
            match effect:
                case StartLeg():
                    self._start(now_ns, effect)
                case CancelLeg():
                    self._preempt(now_ns, effect)
                case Drop():
                    record.dropped(effect.request_id, now_ns, effect.reason)
                case Fail():
                    record.failed(effect.request_id, now_ns)
                case Advise():
                    record.advised(now_ns, effect)
                case PolicyReplaced():
                    record.replaced = effect.reason
        if record.hopeless:
            self.stop()

    # Legs --------------------------------------------------------------------------------------------------------

    def _start(self, now_ns: int, effect: StartLeg) -> None:
        worker_id = effect.batch.legs[effect.leg].worker_id
        worker = self._workers[worker_id]
        started_ns = now_ns if self._links is None else max(now_ns, self._links.arrival_ns(now_ns, effect))
        work_ns = self._truth.leg_ns(effect, worker)
        fails = worker.fails is not None and worker.fails()
        runs_from_ns = started_ns if worker.delay_ns is None else started_ns + worker.delay_ns(effect.rows)
        running = _Running(effect, started_ns, work_ns, runs_from_ns, fails)
        if worker_id in self._running:
            self._waiting[worker_id] = running
        else:
            self._run(now_ns, worker_id, running)

    def _run(self, now_ns: int, worker_id: int, running: _Running) -> None:
        self._running[worker_id] = running
        self._plan_end(running, worker_id, running.since_ns + round(running.left_ns))
        if self._sharing:
            self._change_pace(worker_id, now_ns)

    def _run_next(self, now_ns: int, worker_id: int) -> None:
        """What waited for a leg that is over runs, once it is there."""
        if following := self._waiting.pop(worker_id, None):
            following.started_ns = max(now_ns, following.started_ns)
            following.since_ns = max(now_ns, following.since_ns)
            self._run(now_ns, worker_id, following)

    def _end_leg(self, event: LegFinished | BatchFailed) -> None:
        worker_id = event.worker_id
        running = self._running[worker_id]
        effect = running.effect
        if effect.batch.id != event.batch_id:
            return  # it was taken away before it ran
        del self._running[worker_id]
        self._record.leg_ran(effect, min(running.started_ns, event.now_ns), event.now_ns)
        if type(event) is LegFinished and effect.leg + 1 == len(effect.batch.legs):
            self._record.answered(effect.batch, event.now_ns)
        if self._sharing:
            self._change_pace(worker_id, event.now_ns)
        self._run_next(event.now_ns, worker_id)

    def _send(self, links: Links, event: LegFinished) -> None:
        """What a leg gave sets out for the worker that the policy has settled on by now."""
        if flight := self.engine.flight(event.batch_id):
            links.send(event.now_ns, flight.batch, event.leg, flight.rows)

    def _abort(self, worker_id: int, now_ns: int) -> None:
        """Nothing runs on a worker any more; what did is not told: the engine knows."""
        self._waiting.pop(worker_id, None)
        running = self._running.pop(worker_id, None)
        if running is not None:
            self._unschedule(running.order)
            self._record.leg_ran(running.effect, min(running.started_ns, now_ns), now_ns)
            if self._sharing:
                self._change_pace(worker_id, now_ns)

    def _preempt(self, now_ns: int, effect: CancelLeg) -> None:
        """A leg is given up at once, unless it ends at this very instant."""
        worker_id = effect.batch.legs[effect.leg].worker_id
        running = self._running[worker_id]
        if running.effect.batch.id != effect.batch.id:
            del self._waiting[worker_id]
            self._schedule(preempted(effect, now_ns))
        elif running.ends_ns > now_ns:
            self._unschedule(running.order)
            running.ends_ns = now_ns
            running.order = self._schedule(preempted(effect, now_ns))

    def _plan_end(self, running: _Running, worker_id: int, ends_ns: int) -> None:
        running.ends_ns = ends_ns
        running.order = self._schedule(self._end_of(running, worker_id, ends_ns))

    def _end_of(self, running: _Running, worker_id: int, ended_ns: int) -> LegFinished | BatchFailed:
        batch_id, leg = running.effect.batch.id, running.effect.leg
        if running.fails:
            return BatchFailed(ended_ns, batch_id, leg, worker_id, "the simulated worker failed", self._retry)
        return LegFinished(ended_ns, batch_id, leg, worker_id, running.started_ns, ended_ns)

    # Interference ------------------------------------------------------------------------------------------------

    def _change_pace(self, worker_id: int, now_ns: int) -> None:
        """A worker became busy or idle: who shares its GPU goes on slower, or at full speed again."""
        sharing = self._sharing.get(worker_id, ())
        busy = [other for other in sharing if other in self._running]
        slowed = len(busy) > 1
        for other in busy:
            running = self._running[other]
            if running.slowed == slowed or running.ends_ns <= now_ns:
                continue
            worked_ns = max(0, now_ns - running.since_ns)
            running.left_ns -= worked_ns / self._interference if running.slowed else worked_ns
            running.since_ns = max(running.since_ns, now_ns)
            running.slowed = slowed
            left_ns = running.left_ns * self._interference if slowed else running.left_ns
            self._unschedule(running.order)
            self._plan_end(running, other, running.since_ns + max(0, round(left_ns)))

    @staticmethod
    def _sharing_workers(workers: Sequence[SimulatedWorker]) -> dict[int, tuple[int, ...]]:
        """The workers of its GPU, for each that shares one."""
        by_gpu: dict[str, list[int]] = {}
        for worker in workers:
            if worker.gpu:
                by_gpu.setdefault(worker.gpu, []).append(worker.id)
        return {worker_id: tuple(ids) for ids in by_gpu.values() if len(ids) > 1 for worker_id in ids}
