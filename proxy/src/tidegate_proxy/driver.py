"""The live driver: the engine under the monotonic clock, its legs on real Tritons, its answers to real clients.

Events come from the thread that takes clients' calls, from the threads that take Tritons' answers, from the alarm and
from the event loop. A lock makes the engine see one after the other; effects are carried out by whoever caused them.
"""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable, Container, Iterable, Sequence

import grpc

from tidegate.api import (
    NEVER,
    Advise,
    AnyEvent,
    BatchFailed,
    ClockAdvanced,
    Drop,
    LegFinished,
    PlanChanged,
    Profile,
    Request,
    RequestArrived,
    RequestCancelled,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import AnyEffect, CancelLeg, Engine, Fail, PolicyReplaced, StartLeg
from tidegate_proxy.alarm import Alarm
from tidegate_proxy.backend import CANCEL_AFTER_S, INFER, Backend
from tidegate_proxy.catalog import Catalog, Directory
from tidegate_proxy.client import SHUTTING_DOWN, TIMEOUT_EXPIRED, Client, Outcome, RequestFailed
from tidegate_proxy.completion_queue import PendingCall
from tidegate_proxy.envelope import Envelope
from tidegate_proxy.forwarded import forwarded_with_all
from tidegate_proxy.headroom import Headroom
from tidegate_proxy.leg_run import LegRun
from tidegate_proxy.limits import Limits
from tidegate_proxy.merging import ScatterError
from tidegate_proxy.observability.observability import Observability
from tidegate_proxy.payload import OutputSizes, Payload, Stage
from tidegate_proxy.recovery import recover
from tidegate_proxy.regions import Regions
from tidegate_proxy.waiting_clients import WaitingClients

log = logging.getLogger(__name__)

BROKEN_SHARING = "shared memory"
"""In all that Triton says of it: of a region that it does not know, of an answer larger than expected."""
QUEUE_FULL = "Exceeds maximum queue size"
"""Triton's own words for a request that is not even queued."""


class Driver:
    """Drives one engine. Made in an event loop, which it uses for what is rare; its methods may be called anywhere."""

    def __init__(
        self,
        engine: Engine,
        directory: Directory,
        limits: Limits,
        observability: Observability,
        regions: Regions | None = None,
        hidden: Callable[[], Container[str]] = frozenset,
    ) -> None:
        """`regions`: shared with the Tritons on this machine; None: everything is sent.

        `hidden`: names of metadata that are not to go on to a Triton.
        """
        self.engine = engine
        self.limits = limits
        """May be replaced at any time."""
        self.lock = threading.Lock()
        """Guards the engine and its metrics."""
        self._directory = directory
        self._observability = observability
        self._ids = itertools.count()
        self._headroom = Headroom()
        self.clients = WaitingClients(self.lock, observability)
        self._running: dict[int, LegRun] = {}
        """By batch."""
        self._between: dict[int, LegRun] = {}
        """By batch, the leg that ended last of those that have more of them."""
        self.regions = regions
        self._sizes = OutputSizes()
        self.hidden = hidden
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._advance)

    # Clients -----------------------------------------------------------------------------------------------------

    def submit(self, client: Client, arrival_ns: int, deadline_ns: int) -> None:
        """Have a request scheduled; the client is told its outcome, before this returns if it is refused."""
        envelope, limits = client.envelope, self.limits
        client.arrival_ns, client.due_ns = arrival_ns, deadline_ns
        self._observability.arrived(client)
        if deadline_ns <= arrival_ns:
            self.clients.tell(client, _rejected(limits, TIMEOUT_EXPIRED))
            return
        due_ns = NEVER if deadline_ns == NEVER else self._headroom.before(deadline_ns, arrival_ns)
        client.request_id = request_id = next(self._ids)
        request = Request(request_id, envelope.model, envelope.rows, arrival_ns, due_ns, envelope.merge_key)
        with self.lock:
            admitted = self.clients.admit(client, limits)
            if admitted:
                effects = self._handle(RequestArrived(time.monotonic_ns(), request))
        if not admitted:
            words = f"[request id: {envelope.header.id or '<id_unknown>'}] {QUEUE_FULL}"
            self.clients.tell(client, _rejected(limits, words, queued=False))
        else:
            self._perform(effects)

    def leave(self, client: Client) -> bool:
        """The client does not wait any more; whether it did. What nobody waits for is not run, or not to its end."""
        with self.lock:
            if self.clients.remove(client.request_id) is None:
                return False
            effects = self._handle(RequestCancelled(time.monotonic_ns(), client.request_id))
            run = None if client.batch_id is None else self._running.get(client.batch_id)
            if run:
                run.waiting -= 1
        self._perform(effects)
        if run and run.abandoned and run.call:
            self._cancel_later(run.call)
        self._observability.failed(client, "CANCELED", "cancelled")
        return True

    def delivered(self, client: Client) -> None:
        """The client's answer is on its way: what that took is learned."""
        if client.ended_ns:
            self._headroom.observe(time.monotonic_ns() - client.ended_ns)

    @property
    def waiting(self) -> int:
        """Requests whose clients wait."""
        return len(self.clients)

    def dismiss(self) -> None:
        """Tell every client that waits that there will be no answer."""
        for client in self.clients:
            if self.leave(client):
                client.resolve(RequestFailed(grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN))

    async def close(self) -> None:
        """Forget what is still under way: clients that wait are told."""
        self._alarm.close()
        self.dismiss()
        with self.lock:
            self._running.clear()  # how they end concerns nobody any more
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # The engine --------------------------------------------------------------------------------------------------

    def _handle(self, event: AnyEvent) -> list[AnyEffect]:
        """With the lock held: let the engine take in what happened. The effects are to be performed without it."""
        effects = self.engine.handle(event)
        self._observability.handled(event, effects, time.monotonic_ns() - event.now_ns)
        self._alarm.set(self.engine.next_wake_ns)
        return effects

    def _advance(self) -> None:
        with self.lock:
            effects = self._handle(ClockAdvanced(time.monotonic_ns()))
        self._perform(effects)

    def _perform(self, effects: Iterable[AnyEffect]) -> None:
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception:  # the other effects are those of other requests
                log.exception("%s failed", type(effect).__name__)

    def _carry_out(self, effect: AnyEffect) -> None:
        match effect:
            case StartLeg():
                self._start(effect)
            case CancelLeg():
                pass  # Triton finishes what it began; a cancelled call would only hide that its worker is busy
            case Drop():
                dropped = _rejected(self.limits, TIMEOUT_EXPIRED, outcome=f"dropped: {effect.reason}")
                self.clients.resolve(effect.request_id, dropped)
            case Fail():
                self.clients.resolve(effect.request_id, RequestFailed(grpc.StatusCode.UNAVAILABLE, effect.reason))
            case PolicyReplaced():
                log.error(
                    "policy %s broke and was replaced by first come, first served: %s", effect.policy, effect.reason
                )
            case Advise():
                log.info("the policy asks for %+d workers: %s", effect.workers, effect.reason)

    # Legs --------------------------------------------------------------------------------------------------------

    def _start(self, effect: StartLeg) -> None:
        batch = effect.batch
        worker_id = batch.legs[effect.leg].worker_id
        stage = self.stage_of(effect)
        with self.lock:
            before = self._between.pop(batch.id, None)
            if not stage.backend.alive:
                if before:
                    before.stop()
                return  # the engine was told since, or is about to be
            clients = self.clients.of(batch.request_ids)
            waiting = len(clients)
            if before:
                clients, payload = before.clients, before.payload
            else:
                payload = self.payload_of([client.envelope for client in clients], self.regions)
            run = LegRun(effect, worker_id, stage, payload, clients, time.monotonic_ns(), waiting)
            if waiting:
                self._running[batch.id] = run
                for client in clients:
                    client.batch_id = batch.id
                effects: list[AnyEffect] = []
            else:  # all of them left before it started
                if before:
                    before.stop()
                effects = self._handle(
                    BatchFailed(time.monotonic_ns(), batch.id, effect.leg, worker_id, "every client left")
                )
        if waiting:
            run.execution = self._observability.batch_started(
                clients, effect.rows, stage.backend.address, run.started_ns, first=before is None
            )
            self._call(run, payload.request(stage))
        self._perform(effects)

    def payload_of(self, envelopes: Sequence[Envelope], regions: Regions | None) -> Payload:
        """The tensors of a batch that begins; `regions`: None where nothing is to be shared."""
        split = self._directory.catalog.split.get(envelopes[0].model) if envelopes else None
        return Payload(envelopes, self._sizes, regions, split.outputs if split else ())

    def stage_of(self, effect: StartLeg) -> Stage:
        """Where a leg runs."""
        catalog, legs = self._directory.catalog, effect.batch.legs
        leg = legs[effect.leg]
        return Stage(
            leg.partition,
            catalog.partitions.get(leg.partition),
            [catalog.backend_of[leg.worker_id] for leg in legs[effect.leg :]],
            alone=len(legs) == 1 and leg.partition == effect.batch.model,
        )

    def _call(self, run: LegRun, message: bytes) -> None:
        metadata = forwarded_with_all([client.metadata for client in run.clients], self.hidden())
        if run.execution and (trace := run.execution.metadata):
            names = {name for name, _ in trace}
            metadata = [*trace, *(pair for pair in metadata if pair[0] not in names)]
        run.call = run.backend.channel.unary(
            INFER, message, lambda answer, code, details: self._ended(run, answer, code, details), tuple(metadata)
        )
        if run.abandoned:  # meanwhile
            self._cancel_later(run.call)

    def _cancel_later(self, call: PendingCall) -> None:
        self._loop.call_soon_threadsafe(lambda: self._loop.call_later(CANCEL_AFTER_S, call.cancel))

    def _ended(self, run: LegRun, answer: bytes | None, code: grpc.StatusCode, details: str) -> None:
        """A leg's call is over."""
        if self._running.get(run.effect.batch.id) is not run:
            return  # its worker was given up, and its requests with it
        if answer is None:
            if run.payload.is_shared and BROKEN_SHARING in details:
                run.payload.sharing_broke(run.stage)
                self._call(run, run.payload.request(run.stage, share=False))
            else:
                self._loop.call_soon_threadsafe(self._failed, run, code, details)
        elif not run.is_last:
            try:
                run.payload.answered(answer)
            except ScatterError as error:
                self._loop.call_soon_threadsafe(self._failed, run, grpc.StatusCode.INTERNAL, str(error))
            else:
                self.finish(run)
        elif self.finish(run):
            # The engine first: the next batch is on its way before this one's answers are divided.
            divided_ns = time.monotonic_ns()
            outcomes = _divided(answer, run)
            run.payload.close(finished=True)
            self.clients.settle(run, outcomes, time.monotonic_ns() - divided_ns)

    def finish(self, run: LegRun) -> bool:
        """Tell the engine that a leg has ended, now; False where its worker was given up and its requests with it."""
        effect = run.effect
        with self.lock:
            if self._running.get(effect.batch.id) is not run:
                return False
            del self._running[effect.batch.id]
            if not run.is_last:
                self._between[effect.batch.id] = run
            ended_ns = time.monotonic_ns()
            effects = self._handle(
                LegFinished(ended_ns, effect.batch.id, effect.leg, run.worker_id, run.started_ns, ended_ns)
            )
        if run.is_last:
            for client in run.clients:
                client.ended_ns = ended_ns
        self._perform(effects)
        self._observability.batch_ended(run.execution, ended_ns)
        return True

    def _finish_as_planned(self, run: LegRun) -> None:
        """Triton does not say when it stops what was cancelled: its worker counts as busy for as long as planned."""
        left_ns = run.started_ns + run.effect.batch.legs[run.effect.leg].duration_ns - time.monotonic_ns()
        self._loop.call_later(max(0, left_ns) / 1e9, self.finish, run)

    def _failed(self, run: LegRun, code: grpc.StatusCode, details: str) -> None:
        """In the loop: a leg's call did not end well."""
        if self._running.get(run.effect.batch.id) is not run:
            return
        if code is grpc.StatusCode.CANCELLED and run.abandoned:
            self._finish_as_planned(run)
            return
        run.recovery = self._loop.create_task(recover(self, run, code, details))
        self._tasks.add(run.recovery)
        run.recovery.add_done_callback(self._tasks.discard)

    def abort(self, run: LegRun, reason: str) -> bool:
        """Its requests have their answers or will have none: it does not go on. As `finish` otherwise."""
        if run.is_last:
            finished = self.finish(run)
        else:
            with self.lock:
                finished = self._running.pop(run.effect.batch.id, None) is run
                effects: list[AnyEffect] = []
                if finished:
                    batch_id, now_ns = run.effect.batch.id, time.monotonic_ns()
                    for client in run.clients:
                        client.ended_ns = now_ns
                    effects = self._handle(BatchFailed(now_ns, batch_id, run.effect.leg, run.worker_id, reason))
            self._perform([effect for effect in effects if not isinstance(effect, Fail)])
            self._observability.batch_ended(run.execution, time.monotonic_ns(), reason)
        if finished:
            run.payload.close(finished=True)
        return finished

    def give_up_overdue(self, backend: Backend) -> None:
        """In the loop: end legs that take so long that they will never end, though their Triton answers probes."""
        now_ns = time.monotonic_ns()
        for run in list(self._running.values()):
            leg = run.effect.batch.legs[run.effect.leg]
            limit_ns = self.limits.leg_ns(leg.duration_ns)
            if run.backend is backend and now_ns - run.started_ns > limit_ns:
                self._give_up_run(run, limit_ns)

    def _give_up_run(self, run: LegRun, limit_ns: int) -> None:
        """Elsewhere its requests may be answered; where there is no elsewhere, they have failed."""
        catalog = self._directory.catalog
        worker = next((worker for worker in catalog.workers if worker.id == run.worker_id), None)
        reason = f"Triton at {run.backend.address} did not answer within {limit_ns / 1e9:g} s"
        elsewhere: set[str] = set()
        for other in catalog.workers:
            if other is not worker and catalog.backend_of[other.id].alive:
                elsewhere.update(other.hosts)
        with self.lock:
            if self._running.pop(run.effect.batch.id, None) is None:
                return
            now_ns = time.monotonic_ns()
            events: tuple[AnyEvent, ...] = (
                (WorkerLost(now_ns, worker.id), WorkerJoined(now_ns, worker))
                if worker and elsewhere.issuperset(worker.hosts)
                else (BatchFailed(now_ns, run.effect.batch.id, run.effect.leg, run.worker_id, reason),)
            )
            effects = [effect for event in events for effect in self._handle(event)]
        log.error("a batch is given up: %s", reason)
        self._perform(effects)
        run.stop()

    # Tritons that come and go ------------------------------------------------------------------------------------

    async def lost(self, backend: Backend, details: str) -> bool:
        """Whether a failed call means that the Triton is gone; if so the engine is told, once."""
        if await backend.is_live():
            return False
        self.give_up(backend, details)
        return True

    def give_up(self, backend: Backend, details: str) -> None:
        """A Triton is gone: tell the engine, once."""
        if not backend.alive:
            return
        backend.alive = False
        log.error("Triton at %s is lost: %s", backend.address, details)
        mine = {worker_id for worker_id, other in self._directory.catalog.backend_of.items() if other is backend}
        with self.lock:
            runs = [run for run in self._running.values() if run.worker_id in mine]
            for run in runs:
                del self._running[run.effect.batch.id]
            busy = {run.worker_id for run in runs}
            # The idle ones first: what ran on a busy one must not be tried again on another of the same Triton.
            effects = [
                effect
                for worker_id in sorted(mine, key=busy.__contains__)
                for effect in self._handle(WorkerLost(time.monotonic_ns(), worker_id))
            ]
            stranded = [run for batch_id, run in self._between.items() if self.engine.flight(batch_id) is None]
            for run in stranded:
                del self._between[run.effect.batch.id]
        self._perform(effects)
        for run in (*runs, *stranded):
            run.stop()
        if self.regions:
            self.regions.leave(backend)
        for call in list(backend.forwarded):
            call.cancel()

    def adopt(self, catalog: Catalog, profiles: Sequence[Profile], returning: Backend | None = None) -> None:
        """From now on this is what the Tritons serve; `returning` is one that was given up and answers again.

        Raises ValueError, and changes nothing, for a plan that the engine cannot follow.
        """
        with self.lock:
            before = self._directory.catalog
            self._directory.catalog = catalog
            if returning:
                returning.alive = True
            present = [worker for worker in catalog.workers if catalog.backend_of[worker.id].alive]
            now_ns = time.monotonic_ns()
            events: list[AnyEvent] = [
                WorkerJoined(now_ns, worker) for worker in present if catalog.backend_of[worker.id] is returning
            ]
            if not catalog.same_plan(before):
                events = [
                    PlanChanged(
                        now_ns, tuple(catalog.models.values()), tuple(present), tuple(profiles), catalog.network
                    )
                ]
            try:
                effects = [effect for event in events for effect in self._handle(event)]
            except ValueError:
                self._directory.catalog = before
                raise
        self._perform(effects)


def _rejected(limits: Limits, details: str, *, queued: bool = True, outcome: str = "") -> RequestFailed:
    return RequestFailed(limits.shed_status, details, queued=queued, reason="REJECTED", outcome=outcome)


def _divided(answer: bytes, run: LegRun) -> Sequence[Outcome]:
    try:
        return run.payload.outcomes(answer)
    except ScatterError as error:
        return [RequestFailed(grpc.StatusCode.INTERNAL, str(error), reason="BACKEND")] * len(run.clients)
