"""The live driver: the engine under the monotonic clock, its legs on real Tritons, its answers to real clients."""

import asyncio
import itertools
import logging
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
from tidegate_proxy.backend import Backend
from tidegate_proxy.catalog import Catalog
from tidegate_proxy.envelope import Envelope
from tidegate_proxy.headroom import Headroom
from tidegate_proxy.merging import ScatterError, gather, scatter

log = logging.getLogger(__name__)

PROBE_EVERY_S = 0.5
TIMEOUT_EXPIRED = "Request timeout expired"
"""Triton's own words for a request whose time ran out in the queue."""


class RequestFailed(Exception):
    """What a client gets instead of an answer."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


@dataclass(slots=True)
class _Waiting:
    """A client that waits for its answer."""

    envelope: Envelope
    answer: asyncio.Future[bytes]
    ended_ns: int = 0
    """When its last leg ended."""

    def resolve(self, outcome: bytes | RequestFailed) -> None:
        if self.answer.done():
            return
        if isinstance(outcome, RequestFailed):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class Driver:
    """Drives one engine; lives in one event loop."""

    def __init__(self, engine: Engine, catalog: Catalog) -> None:
        self.engine = engine
        self._catalog = catalog
        self._workers = {worker.id: worker for worker in catalog.workers}
        self._ids = itertools.count()
        self._headroom = Headroom()
        self._waiting: dict[int, _Waiting] = {}
        self._running: dict[int, int] = {}  # batch id -> worker id, of the legs that are on their way
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns: int | None = None

    async def infer(self, envelope: Envelope, arrival_ns: int, deadline_ns: int) -> bytes:
        """Have a request scheduled; its answer. Raises RequestFailed."""
        request_id = next(self._ids)
        due_ns = NEVER if deadline_ns == NEVER else self._headroom.before(deadline_ns, arrival_ns)
        waiting = self._waiting[request_id] = _Waiting(envelope, self._loop.create_future())
        request = Request(request_id, envelope.model, envelope.rows, arrival_ns, due_ns, envelope.merge_key)
        self._handle(RequestArrived(time.monotonic_ns(), request))
        try:
            answer = await waiting.answer
            self._headroom.observe(time.monotonic_ns() - waiting.ended_ns)
            return answer
        except asyncio.CancelledError:
            self._handle(RequestCancelled(time.monotonic_ns(), request_id))
            raise
        finally:
            del self._waiting[request_id]

    async def close(self) -> None:
        """Forget what is still under way: clients that wait are told."""
        if self._timer:
            self._timer.cancel()
        for waiting in self._waiting.values():
            waiting.resolve(RequestFailed(grpc.StatusCode.UNAVAILABLE, "Tidegate is shutting down"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _handle(self, event: AnyEvent) -> None:
        self._perform(self.engine.handle(event))
        self._arm()

    def _perform(self, effects: Iterable[AnyEffect]) -> None:
        for effect in effects:
            match effect:
                case StartLeg():
                    self._start(effect)
                case CancelLeg():
                    pass  # Triton finishes what it began; a cancelled call would only hide that its worker is busy
                case Drop():
                    self._fail(effect.request_id, TIMEOUT_EXPIRED)
                case Fail():
                    self._fail(effect.request_id, effect.reason)
                case PolicyReplaced():
                    log.error(
                        "policy %s broke and was replaced by first come, first served: %s", effect.policy, effect.reason
                    )
                case Advise():
                    log.info("the policy asks for %+d workers: %s", effect.workers, effect.reason)

    def _fail(self, request_id: int, reason: str) -> None:
        if waiting := self._waiting.get(request_id):
            waiting.resolve(RequestFailed(grpc.StatusCode.UNAVAILABLE, reason))

    # Time --------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Have the loop wake the engine when it wants to be woken."""
        wake_ns = self.engine.next_wake_ns
        if wake_ns == self._armed_ns:
            return
        if self._timer:
            self._timer.cancel()
        self._armed_ns = wake_ns
        self._timer = None
        if wake_ns is not None:
            delay_s = max(0, wake_ns - time.monotonic_ns()) / 1e9
            self._timer = self._loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._armed_ns = None
        self._handle(ClockAdvanced(time.monotonic_ns()))

    # Legs --------------------------------------------------------------------------------------------------------

    def _start(self, effect: StartLeg) -> None:
        batch = effect.batch
        leg = batch.legs[effect.leg]
        clients = [waiting for request_id in batch.request_ids if (waiting := self._waiting.get(request_id))]
        self._running[batch.id] = leg.worker_id
        self._spawn(self._run(effect, leg.worker_id, clients))

    async def _run(self, effect: StartLeg, worker_id: int, clients: list[_Waiting]) -> None:
        """Run a leg on its Triton, tell the engine, answer the clients."""
        backend = self._catalog.backend_of[worker_id]
        batch_id = effect.batch.id
        started_ns = time.monotonic_ns()
        if not clients:  # all of them left before it started
            del self._running[batch_id]
            self._handle(BatchFailed(started_ns, batch_id, effect.leg, worker_id, "every client left"))
            return
        envelopes = [client.envelope for client in clients]
        try:
            response = await backend.infer(gather(envelopes))
        except grpc.aio.AioRpcError as error:
            if await self.lost(backend, error):
                return  # the engine was told that the worker is gone, and with it this batch
            outcomes = await self._each_alone(backend, clients, error)
            if ended_ns := self._finish(effect, worker_id, started_ns):
                _answer(clients, outcomes, ended_ns)
        else:
            # The engine first: the next batch is on its way before this one's answers are divided.
            if ended_ns := self._finish(effect, worker_id, started_ns):
                _answer(clients, _divided(response, envelopes), ended_ns)

    def _finish(self, effect: StartLeg, worker_id: int, started_ns: int) -> int | None:
        """Tell the engine that a leg has ended, now; None where its worker was given up and its requests with it."""
        ended_ns = time.monotonic_ns()
        if self._running.pop(effect.batch.id, None) is None:
            return None
        self._handle(LegFinished(ended_ns, effect.batch.id, effect.leg, worker_id, started_ns, ended_ns))
        return ended_ns

    async def _each_alone(
        self, backend: Backend, clients: list[_Waiting], error: grpc.aio.AioRpcError
    ) -> list[bytes | RequestFailed]:
        """Triton refused the batch: every request gets its own answer, so that one's fault is not another's."""
        if len(clients) == 1:
            return [_failure(error)]
        outcomes: list[bytes | RequestFailed] = []
        for client in clients:
            try:
                outcomes.append(await backend.infer(client.envelope.message))
            except grpc.aio.AioRpcError as own_error:
                outcomes.append(_failure(own_error))
        return outcomes

    # Tritons that come and go ------------------------------------------------------------------------------------

    async def lost(self, backend: Backend, error: grpc.aio.AioRpcError) -> bool:
        """Whether a failed call means that the Triton is gone; if so the engine is told, once."""
        if error.code() is not grpc.StatusCode.UNAVAILABLE or await backend.is_ready():
            return False
        if backend.alive:
            backend.alive = False
            log.error("Triton at %s is lost: %s", backend.address, error.details())
            mine = [worker_id for worker_id, other in self._catalog.backend_of.items() if other is backend]
            # The idle ones first: what ran on a busy one must not be tried again on another of the same Triton.
            mine.sort(key=set(self._running.values()).__contains__)
            self._running = {batch: worker for batch, worker in self._running.items() if worker not in mine}
            for worker_id in mine:
                self._handle(WorkerLost(time.monotonic_ns(), worker_id))
            self._spawn(self._await_return(backend, mine))
        return True

    async def _await_return(self, backend: Backend, worker_ids: list[int]) -> None:
        while not await backend.is_ready():
            await asyncio.sleep(PROBE_EVERY_S)
        backend.alive = True
        log.warning("Triton at %s is back", backend.address)
        for worker_id in worker_ids:
            self._handle(WorkerJoined(time.monotonic_ns(), self._workers[worker_id]))

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)


def _answer(clients: list[_Waiting], outcomes: Sequence[bytes | RequestFailed], ended_ns: int) -> None:
    for client, outcome in zip(clients, outcomes, strict=True):
        client.ended_ns = ended_ns
        client.resolve(outcome)


def _divided(response: bytes, envelopes: list[Envelope]) -> Sequence[bytes | RequestFailed]:
    try:
        return scatter(response, envelopes)
    except ScatterError as error:
        return [RequestFailed(grpc.StatusCode.INTERNAL, str(error))] * len(envelopes)


def _failure(error: grpc.aio.AioRpcError) -> RequestFailed:
    return RequestFailed(error.code(), error.details() or "")
