"""The live driver: the engine under the monotonic clock, its legs on real Tritons, its answers to real clients.

Events come from the thread that takes clients' calls, from the threads that take Tritons' answers, from the alarm and
from the event loop. A lock makes the engine see one after the other; effects are carried out by whoever caused them.
"""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import grpc

from tidegate.api import (
    NEVER,
    Advise,
    AnyEvent,
    BatchFailed,
    ClockAdvanced,
    Drop,
    LegFinished,
    Request,
    RequestArrived,
    RequestCancelled,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import AnyEffect, CancelLeg, Engine, Fail, PolicyReplaced, StartLeg
from tidegate_proxy.alarm import Alarm
from tidegate_proxy.backend import INFER, Backend
from tidegate_proxy.catalog import Catalog
from tidegate_proxy.client import TIMEOUT_EXPIRED, Client, Outcome, RequestFailed
from tidegate_proxy.completion_queue import PendingCall
from tidegate_proxy.headroom import Headroom
from tidegate_proxy.limits import Limits
from tidegate_proxy.merging import ScatterError, gather, scatter

log = logging.getLogger(__name__)

QUEUE_FULL = "Exceeds maximum queue size"
"""Triton's own words for a request that is not even queued."""


@dataclass(slots=True, eq=False)
class _Run:
    """A leg on its Triton."""

    effect: StartLeg
    worker_id: int
    backend: Backend
    clients: list[Client]
    started_ns: int
    waiting: int
    """Clients that have not left."""
    call: PendingCall | None = None

    @property
    def abandoned(self) -> bool:
        return self.waiting == 0


class Driver:
    """Drives one engine. Made in an event loop, which it uses for what is rare; its methods may be called anywhere."""

    def __init__(self, engine: Engine, catalog: Catalog, limits: Limits) -> None:
        self.engine = engine
        self._catalog = catalog
        self._limits = limits
        self._workers = {worker.id: worker for worker in catalog.workers}
        self._ids = itertools.count()
        self._headroom = Headroom()
        self._clients: dict[int, Client] = {}
        """Those who wait, by request."""
        self._held_bytes = 0
        self._running: dict[int, _Run] = {}
        """By batch."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._alarm = Alarm(self._advance)

    # Clients -----------------------------------------------------------------------------------------------------

    def submit(self, client: Client, arrival_ns: int, deadline_ns: int) -> None:
        """Have a request scheduled; the client is told its outcome, before this returns if it is refused."""
        envelope = client.envelope
        if deadline_ns <= arrival_ns:
            client.resolve(RequestFailed(grpc.StatusCode.UNAVAILABLE, TIMEOUT_EXPIRED))
            return
        due_ns = NEVER if deadline_ns == NEVER else self._headroom.before(deadline_ns, arrival_ns)
        client.request_id = request_id = next(self._ids)
        request = Request(request_id, envelope.model, envelope.rows, arrival_ns, due_ns, envelope.merge_key)
        with self._lock:
            full = len(self._clients) >= self._limits.requests or self._held_bytes >= self._limits.bytes
            if not full:
                self._clients[request_id] = client
                self._held_bytes += len(envelope.message)
                effects = self._handle(RequestArrived(time.monotonic_ns(), request))
        if full:
            client.resolve(RequestFailed(self._limits.shed_status, QUEUE_FULL))
        else:
            self._perform(effects)

    def leave(self, client: Client) -> None:
        """The client does not wait any more. Whom nobody waits for is not run, or not to its end."""
        if self._take(client.request_id) is None:
            return
        with self._lock:
            effects = self._handle(RequestCancelled(time.monotonic_ns(), client.request_id))
            run = None if client.batch_id is None else self._running.get(client.batch_id)
            if run:
                run.waiting -= 1
        self._perform(effects)
        if run and run.abandoned and run.call:
            run.call.cancel()

    def delivered(self, client: Client) -> None:
        """The client's answer is on its way: what that took is learned."""
        if client.ended_ns:
            self._headroom.observe(time.monotonic_ns() - client.ended_ns)

    @property
    def waiting(self) -> int:
        """Requests whose clients wait."""
        return len(self._clients)

    async def close(self) -> None:
        """Forget what is still under way: clients that wait are told."""
        self._alarm.close()
        for request_id in list(self._clients):
            self._resolve(request_id, RequestFailed(grpc.StatusCode.UNAVAILABLE, "Tidegate is shutting down"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take(self, request_id: int) -> Client | None:
        """The client of a request, to be told its outcome; None if it was told or has left."""
        with self._lock:
            client = self._clients.pop(request_id, None)
            if client:
                self._held_bytes -= len(client.envelope.message)
        return client

    def _resolve(self, request_id: int, outcome: Outcome) -> None:
        if client := self._take(request_id):
            client.resolve(outcome)

    # The engine --------------------------------------------------------------------------------------------------

    def _handle(self, event: AnyEvent) -> list[AnyEffect]:
        """With the lock held: let the engine take in what happened. The effects are to be performed without it."""
        effects = self.engine.handle(event)
        self._alarm.set(self.engine.next_wake_ns)
        return effects

    def _advance(self) -> None:
        with self._lock:
            effects = self._handle(ClockAdvanced(time.monotonic_ns()))
        self._perform(effects)

    def _perform(self, effects: Iterable[AnyEffect]) -> None:
        for effect in effects:
            match effect:
                case StartLeg():
                    self._start(effect)
                case CancelLeg():
                    pass  # Triton finishes what it began; a cancelled call would only hide that its worker is busy
                case Drop():
                    self._resolve(effect.request_id, RequestFailed(self._limits.shed_status, TIMEOUT_EXPIRED))
                case Fail():
                    self._resolve(effect.request_id, RequestFailed(grpc.StatusCode.UNAVAILABLE, effect.reason))
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
        clients = [client for request_id in batch.request_ids if (client := self._clients.get(request_id))]
        backend = self._catalog.backend_of[worker_id]
        run = _Run(effect, worker_id, backend, clients, time.monotonic_ns(), len(clients))
        with self._lock:
            if clients:
                self._running[batch.id] = run
                for client in clients:
                    client.batch_id = batch.id
                effects: list[AnyEffect] = []
            else:  # all of them left before it started
                effects = self._handle(
                    BatchFailed(time.monotonic_ns(), batch.id, effect.leg, worker_id, "every client left")
                )
        if clients:
            message = gather([client.envelope for client in clients])
            run.call = backend.channel.unary(
                INFER, message, lambda answer, code, details: self._ended(run, answer, code, details)
            )
        self._perform(effects)

    def _ended(self, run: _Run, answer: bytes | None, code: grpc.StatusCode, details: str) -> None:
        """A leg's call is over."""
        if self._running.get(run.effect.batch.id) is not run:
            return  # its worker was given up, and its requests with it
        if answer is not None:
            # The engine first: the next batch is on its way before this one's answers are divided.
            if self._finish(run):
                self._settle(run, _divided(answer, run.clients))
        elif code is grpc.StatusCode.CANCELLED and run.abandoned:
            self._loop.call_soon_threadsafe(self._finish_as_planned, run)
        else:
            asyncio.run_coroutine_threadsafe(self._recover(run, code, details), self._loop)

    def _finish(self, run: _Run) -> bool:
        """Tell the engine that a leg has ended, now; False where its worker was given up and its requests with it."""
        effect = run.effect
        with self._lock:
            if self._running.get(effect.batch.id) is not run:
                return False
            del self._running[effect.batch.id]
            ended_ns = time.monotonic_ns()
            effects = self._handle(
                LegFinished(ended_ns, effect.batch.id, effect.leg, run.worker_id, run.started_ns, ended_ns)
            )
        for client in run.clients:
            client.ended_ns = ended_ns
        self._perform(effects)
        return True

    def _finish_as_planned(self, run: _Run) -> None:
        """Triton does not say when it stops what was cancelled: its worker counts as busy for as long as planned."""
        left_ns = run.started_ns + run.effect.batch.legs[run.effect.leg].duration_ns - time.monotonic_ns()
        self._loop.call_later(max(0, left_ns) / 1e9, self._finish, run)

    async def _recover(self, run: _Run, code: grpc.StatusCode, details: str) -> None:
        """A leg's call failed: its Triton is gone, or refuses the batch."""
        if code is grpc.StatusCode.UNAVAILABLE and await self.lost(run.backend, details):
            with self._lock:
                self._running.pop(run.effect.batch.id, None)  # it was on its way when the engine was told
            return
        outcomes = await self._each_alone(run, code, details)
        if self._finish(run):
            self._settle(run, outcomes)

    async def _each_alone(self, run: _Run, code: grpc.StatusCode, details: str) -> list[Outcome]:
        """Triton refused the batch: every request gets its own answer, so that one's fault is not another's."""
        if len(run.clients) == 1:
            return [RequestFailed(code, details)]
        outcomes: list[Outcome] = []
        for client in run.clients:
            try:
                outcomes.append(await run.backend.unary(INFER)(client.envelope.message))
            except grpc.aio.AioRpcError as error:
                outcomes.append(RequestFailed(error.code(), error.details() or ""))
        return outcomes

    def _settle(self, run: _Run, outcomes: Sequence[Outcome]) -> None:
        for client, outcome in zip(run.clients, outcomes, strict=True):
            self._resolve(client.request_id, outcome)

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
        mine = {worker_id for worker_id, other in self._catalog.backend_of.items() if other is backend}
        with self._lock:
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
        self._perform(effects)
        for run in runs:
            if run.call:
                run.call.cancel()

    def take_back(self, backend: Backend) -> None:
        """A Triton that was given up answers again."""
        backend.alive = True
        log.warning("Triton at %s is back", backend.address)
        with self._lock:
            effects = [
                effect
                for worker_id, other in self._catalog.backend_of.items()
                if other is backend
                for effect in self._handle(WorkerJoined(time.monotonic_ns(), self._workers[worker_id]))
            ]
        self._perform(effects)


def _divided(answer: bytes, clients: list[Client]) -> Sequence[Outcome]:
    try:
        return scatter(answer, [client.envelope for client in clients])
    except ScatterError as error:
        return [RequestFailed(grpc.StatusCode.INTERNAL, str(error))] * len(clients)
