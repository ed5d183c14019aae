"""Simulated workers: they run as long as the true latency, share GPUs, fail, disappear, and wait for transfers.

A stage that is sent to a busy worker waits there for it.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from tidegate.engine import CancelStage, FirstResponse, StartStage
from tidegate.schemas import Interference, Tenant
from tidegate.sim.event_queue import EventQueue
from tidegate.sim.links import NetworkLinks
from tidegate.sim.true_latency import SimulatedWorker, TrueLatency
from tidegate.sim.workers import Outcome, failed, finished, preempted


@dataclass(slots=True)
class _Running:
    """A stage on its worker."""

    effect: StartStage
    started_ns: int
    left_ns: float
    """Work that was left at `since_ns` (which may be yet to come), at the worker's full speed."""
    since_ns: int
    fails: bool
    rest_ns: int = 0
    """Work from the first to the last response, at full speed; 0: it has one, or the first is over."""
    tenant: Tenant | None = None
    """Its effect on neighbors; None: no other worker shares its GPU."""
    slowdown: float = 1.0
    """Slowdown factor under the present load of its GPU."""
    ends_ns: int = 0
    number: int = 0
    """The number with which its outcome on the agenda is called off."""


class Cluster:
    """Simulated workers of a run, with delays, failures and transfers."""

    def __init__(
        self,
        workers: Sequence[SimulatedWorker],
        truth: TrueLatency,
        *,
        interference: Interference | None = None,
        retry: bool = True,
        links: NetworkLinks | None = None,
    ) -> None:
        """Create the workers.

        `interference`: slowdown of busy workers on one GPU; None: none. `retry`: failures of stages are the worker's
        fault, so the engine tries their requests again. `links`: transfers between nodes; None: they take no time.
        """
        self._workers = {worker.id: worker for worker in workers}
        self._truth = truth
        self._interference = interference
        self._retry = retry
        self._links = links
        self._running: dict[int, _Running] = {}
        """The stage that runs, by worker id."""
        self._waiting: dict[int, _Running] = {}
        """The stage that waits for it there, by worker id; `since_ns` is when it is there."""
        self._sharing = {} if interference is None else self._sharing_workers(workers)

    def __contains__(self, worker_id: int) -> bool:
        return worker_id in self._workers

    def add(self, workers: Iterable[SimulatedWorker]) -> None:
        """Add idle workers."""
        self._workers |= {worker.id: worker for worker in workers}
        if self._interference is not None:
            self._sharing = self._sharing_workers(self._workers.values())
            for worker_id, running in self._running.items():
                self._let_be_felt(worker_id, running)

    def start(self, now_ns: int, effect: StartStage, agenda: EventQueue) -> None:
        """Start a stage when its input has arrived and its worker is free; schedule its end in `agenda`."""
        worker_id = effect.batch.stages[effect.stage].worker_id
        worker = self._workers[worker_id]
        started_ns = now_ns if self._links is None else max(now_ns, self._links.arrival_ns(now_ns, effect))
        work_ns = self._truth.stage_ns(effect, worker)
        fails = worker.fails is not None and worker.fails()
        runs_from_ns = started_ns if worker.delay_ns is None else started_ns + worker.delay_ns(effect.rows)
        running = _Running(effect, started_ns, work_ns, runs_from_ns, fails, self._truth.rest_ns(effect))
        if worker_id in self._running:
            self._waiting[worker_id] = running
        else:
            self._run(now_ns, worker_id, running, agenda)

    def cancel(self, now_ns: int, effect: CancelStage, agenda: EventQueue) -> None:
        """Cancel a stage at `now_ns`, unless it ends at this very time; schedule its outcome in `agenda`."""
        worker_id = effect.batch.stages[effect.stage].worker_id
        running = self._running[worker_id]
        if running.effect.batch.id != effect.batch.id:
            del self._waiting[worker_id]
            agenda.schedule(preempted(effect, now_ns))
        elif running.ends_ns > now_ns:
            agenda.call_off(running.number)
            running.ends_ns = now_ns
            running.number = agenda.schedule(preempted(effect, now_ns))

    def left_ns(self, worker_id: int, batch_id: int, now_ns: int) -> float | None:
        """Return the work left of the stage of a batch, at full speed, in ns; None: it does not run there."""
        running = self._running.get(worker_id)
        if running is None or running.effect.batch.id != batch_id:
            return None
        return max(0.0, running.left_ns - max(0, now_ns - running.since_ns) / running.slowdown)

    def ended(self, outcome: Outcome, agenda: EventQueue) -> None:
        """Start the next stage that waits on the worker; schedule its end in `agenda`."""
        now_ns, worker_id = outcome.now_ns, outcome.worker_id
        running = self._running[worker_id]
        if running.effect.batch.id != outcome.batch_id:
            return  # it was taken away before it ran
        del self._running[worker_id]
        if self._sharing:
            self._change_pace(worker_id, now_ns, agenda)
        if following := self._waiting.pop(worker_id, None):
            following.started_ns = max(now_ns, following.started_ns)
            following.since_ns = max(now_ns, following.since_ns)
            self._run(now_ns, worker_id, following, agenda)

    def responded(self, event: FirstResponse, agenda: EventQueue) -> None:
        """Go on with a stream after its first response; schedule its end in `agenda`."""
        running = self._running[event.worker_id]
        if running.effect.batch.id == event.batch_id:
            running.left_ns, running.since_ns, running.rest_ns = running.rest_ns, event.now_ns, 0
            self._plan_end(running, event.now_ns + round(running.left_ns * running.slowdown), agenda)

    def forget(self, now_ns: int, worker_id: int, agenda: EventQueue) -> None:
        """Cancel the stages of a worker; the engine already knows that they are lost.

        `agenda`: their ends are removed there.
        """
        self._waiting.pop(worker_id, None)
        running = self._running.pop(worker_id, None)
        if running is not None:
            agenda.call_off(running.number)
            if self._sharing:
                self._change_pace(worker_id, now_ns, agenda)

    def _run(self, now_ns: int, worker_id: int, running: _Running, agenda: EventQueue) -> None:
        self._running[worker_id] = running
        self._let_be_felt(worker_id, running)
        self._plan_end(running, running.since_ns + round(running.left_ns), agenda)
        if self._sharing:
            self._change_pace(worker_id, now_ns, agenda)

    def _let_be_felt(self, worker_id: int, running: _Running) -> None:
        if worker_id in self._sharing:
            effect = running.effect
            partition = effect.batch.stages[effect.stage].partition
            running.tenant = Tenant(partition, effect.rows, self._workers[worker_id].percent)

    def _plan_end(self, running: _Running, ends_ns: int, agenda: EventQueue) -> None:
        outcome: Outcome | FirstResponse
        effect = running.effect
        if running.rest_ns and not running.fails:
            worker_id = effect.batch.stages[effect.stage].worker_id
            outcome = FirstResponse(ends_ns, effect.batch.id, effect.stage, worker_id, running.started_ns)
        elif running.fails:
            outcome = failed(effect, ends_ns, "the simulated worker failed", retry=self._retry)
        else:
            outcome = finished(effect, running.started_ns, ends_ns)
        running.ends_ns = ends_ns
        running.number = agenda.schedule(outcome)

    # Interference ------------------------------------------------------------------------------------------------

    def _change_pace(self, worker_id: int, now_ns: int, agenda: EventQueue) -> None:
        """A worker became busy or idle: who shares its GPU goes on slower, or quicker again."""
        interference = self._interference
        assert interference is not None, "else no model shares a GPU"
        sharing = self._sharing.get(worker_id, ())
        busy = [running for other in sharing if (running := self._running.get(other)) is not None]
        for running in busy:
            if running.ends_ns <= now_ns:
                continue
            assert running.tenant is not None, "set when it began"
            neighbors = [other.tenant for other in busy if other is not running and other.tenant is not None]
            slowdown = interference.slowdown(running.tenant, neighbors)
            if slowdown == running.slowdown:
                continue
            running.left_ns -= max(0, now_ns - running.since_ns) / running.slowdown
            running.since_ns = max(running.since_ns, now_ns)
            running.slowdown = slowdown
            agenda.call_off(running.number)
            self._plan_end(running, running.since_ns + max(0, round(running.left_ns * slowdown)), agenda)

    @staticmethod
    def _sharing_workers(workers: Iterable[SimulatedWorker]) -> dict[int, tuple[int, ...]]:
        """The workers of its GPU, for each that shares one."""
        by_gpu: dict[Hashable, list[int]] = {}
        for worker in workers:
            if worker.gpu is not None:
                by_gpu.setdefault(worker.gpu, []).append(worker.id)
        return {worker_id: tuple(ids) for ids in by_gpu.values() if len(ids) > 1 for worker_id in ids}
