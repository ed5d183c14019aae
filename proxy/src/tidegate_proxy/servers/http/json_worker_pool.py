"""Worker processes that parse and write large JSON, which would block the event loop for seconds."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, Final, Generic, ParamSpec, TypeVar

from tritonclient.grpc import service_pb2

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.messages.model_signature import ModelSignature
from tidegate_proxy.messages.request import NotSchedulable
from tidegate_proxy.servers.http import infer_request, infer_response
from tidegate_proxy.servers.http.infer_request import ResponseForm
from tidegate_proxy.service.passthrough import SequencePosition, sequence_in_json

Place = TypeVar("Place")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class FairQueue(Generic[Place]):
    """Fair queue of tasks that wait for a place. Use it only in one event loop.

    Weighted fair queueing: a newcomer's turn comes when all that wait have had as much as it requests and recently
    used. So neither large tasks nor many tasks of one client delay a small one of another. Source: A. Demers, S.
    Keshav, S. Shenker, "Analysis and Simulation of a Fair Queueing Algorithm" (SIGCOMM 1989).
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._free = list(places)
        self._waiting: list[tuple[float, int, int, asyncio.Future[Place]]] = []
        """A heap: when each is due, its number, its cost, and what tells it."""
        self._now = 0.0
        """How much each of those who wait would have had, if all were served at once."""
        self._due: dict[str, float] = {}
        """When the last of each owner is due, where that is still to come."""
        self._count = 0

    async def take(self, owner: str, cost: int) -> Place:
        """Wait for a place and return it; give it back later. `owner`: "" is a separate client each time."""
        due = max(self._now, self._due.get(owner, 0)) + cost
        if owner:
            self._due[owner] = due
        if self._free:
            self._served(cost)
            return self._free.pop()
        self._count += 1
        turn: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (due, self._count, cost, turn))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # both at once
                self.give_back(turn.result())
            else:  # who left holds no memory
                self._waiting = [entry for entry in self._waiting if entry[3] is not turn]
                heapify(self._waiting)
            raise

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits for a place."""
        return any(not turn.done() for *_, turn in self._waiting)

    def give_back(self, place: Place) -> None:
        """Give a place back, to the next in the queue if there is one."""
        while self._waiting:
            _, _, cost, turn = heappop(self._waiting)
            if not turn.done():
                self._served(cost)
                turn.set_result(place)
                return
        self._free.append(place)

    def _served(self, cost: int) -> None:
        self._now += cost / (len(self._waiting) + 1)
        self._due = {owner: until for owner, until in self._due.items() if until > self._now}


FROM_BYTES: Final = 1 << 18
"""Size in bytes from which a worker is used: smaller JSON takes at most 30 ms, a round trip to a process 2 ms."""
QUEUED_FROM_BYTES: Final = 1 << 14
"""Size in bytes from which JSON is queued for the event loop, of which it takes about two milliseconds."""
_PROCESSES: Final = 2
_PR_SET_PDEATHSIG: Final = 1


class _JsonProcess:
    """One process, started when it is needed: what ends it ends no other's work."""

    pool: ProcessPoolExecutor | None = None
    is_up: bool = False
    """Whether the process has finished something."""


class JsonWorkerPool:
    """Pool of processes, started by the first large request. Use it only in one event loop."""

    def __init__(self) -> None:
        self._processes = [_JsonProcess() for _ in range(_PROCESSES)]
        self._queue = FairQueue(self._processes)
        self._loop_queue = FairQueue(["event loop"])
        """Queue for the one text that the event loop parses or writes in an iteration."""
        self._starting: list[asyncio.Task[None]] = []
        self._rendering: asyncio.Future[infer_response.ResponseBody] | None = None
        """The response that a thread renders."""

    async def translate(
        self,
        signature: ModelSignature,
        version: str,
        body: bytes,
        json_bytes: int,
        owner: str = "",
        *,
        may_bypass: bool = False,
    ) -> tuple[bytes, ResponseForm]:
        """Translate a request like `infer_request.translate`, in a worker process if it is large.

        `body`: the request's; `owner`: its client, for fair queueing. `may_bypass`: raise NotSchedulable while no
        process is up, which takes a second of a core: a Triton parses it meanwhile.
        """
        if json_bytes < FROM_BYTES:
            return await self._in_loop(owner, json_bytes, infer_request.translate, signature, version, body, json_bytes)
        if may_bypass and not self._is_up():
            raise NotSchedulable("the processes that parse large JSON are being started")
        result: tuple[bytes, ResponseForm] = await self._run(
            owner, len(body), infer_request.translate, signature, version, body, json_bytes
        )
        return result

    async def render(self, answer: bytes, form: ResponseForm, owner: str = "") -> infer_response.ResponseBody:
        """Render a response like `infer_response.render`, in a worker process if it is large.

        While no process is up, one response at a time is rendered in a thread: slowly, but before a process would be.

        `answer`: serialized ModelInferResponse; `owner`: client, for fair queueing.
        """
        all_binary = all(form.named.values()) if form.named else form.binary
        if all_binary:
            return infer_response.render(answer, form)
        if len(answer) < FROM_BYTES:
            return await self._in_loop(owner, len(answer), infer_response.render, answer, form)
        while not self._is_up():
            if self._rendering is None or self._rendering.done():
                loop = asyncio.get_running_loop()
                self._rendering = loop.run_in_executor(None, infer_response.render, answer, form)
                return await asyncio.shield(self._rendering)  # a client that leaves does not stop the thread
            awaited: list[asyncio.Future[Any]] = [task for task in self._starting if not task.done()]
            await asyncio.wait([self._rendering, *awaited], return_when=asyncio.FIRST_COMPLETED)
        pieces, json_bytes = await self._run(owner, len(answer), _rendered, answer, form)
        return infer_response.ResponseBody(pieces, json_bytes)

    async def outline(
        self, text: bytes, owner: str = ""
    ) -> tuple[SequencePosition, service_pb2.ModelInferRequest | None]:
        """Return the sequence in a request's JSON, and the description of its tensors, if known."""
        if len(text) < FROM_BYTES:
            return await self._in_loop(
                owner, len(text), lambda: (sequence_in_json(text), infer_request.outline(text, len(text)))
            )
        sequence, header = await self._run(owner, len(text), _outlined, text)
        return SequencePosition(*sequence), service_pb2.ModelInferRequest.FromString(
            header
        ) if header is not None else None

    async def _in_loop(
        self,
        owner: str,
        size: int,
        work: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """Do work in the event loop, on one queued text in each iteration, so that other requests go on in between."""
        if size < QUEUED_FROM_BYTES:
            return work(*arguments, **named)
        place = await self._loop_queue.take(owner, size)
        try:
            return work(*arguments, **named)
        finally:
            if self._loop_queue.is_awaited:  # the next one runs in the next iteration
                self._loop_queue.give_back(place)
            else:
                asyncio.get_running_loop().call_soon(self._loop_queue.give_back, place)

    def _is_up(self) -> bool:
        """Whether a process is up; if not, all are started, unless they are being started."""
        if any(process.is_up for process in self._processes):
            return True
        if all(task.done() for task in self._starting):
            self._starting = [asyncio.create_task(self._start()) for _ in self._processes]
        return False

    async def _start(self) -> None:
        with faults.contained("starting a process for large JSON"):  # the next large request tries again
            await self._run("", 0, _greet)

    def close(self) -> None:
        """Stop the processes."""
        for task in self._starting:
            task.cancel()
        for process in self._processes:
            if process.pool:
                process.pool.shutdown(wait=False, cancel_futures=True)
                process.pool = None

    async def _run(self, owner: str, size: int, work: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - whatever it gives
        process = await self._queue.take(owner, size)
        try:
            if process.pool is None:
                spawn = multiprocessing.get_context("spawn")  # a fork would take gRPC's locks along, not its threads
                process.pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_prepare, initargs=(os.getpid(),))
            done = asyncio.get_running_loop().run_in_executor(process.pool, work, *arguments)
        except BaseException:
            process.pool = None
            self._queue.give_back(process)
            raise

        def over(done: "asyncio.Future[Any]") -> None:
            process.is_up = not (done.cancelled() or isinstance(done.exception(), BrokenProcessPool))
            if not done.cancelled() and not process.is_up:
                process.pool = None  # the next one gets a new one
            self._queue.give_back(process)

        done.add_done_callback(over)
        return await asyncio.shield(done)  # whose client leaves keeps its place until the process is done with it


def _greet() -> None:
    """In the process: it is up."""


def _rendered(answer: bytes, form: ResponseForm) -> tuple[list[bytes], int | None]:
    body = infer_response.render(answer, form)
    return [bytes(piece) for piece in body.pieces], body.json_bytes


def _outlined(text: bytes) -> tuple[SequencePosition, bytes | None]:
    header = infer_request.outline(text, len(text))
    return sequence_in_json(text), header.SerializeToString() if header is not None else None


def _prepare(parent: int) -> None:
    """In the process: a signal to the terminal's group is for the parent, and without it there is nothing to do.

    `parent`: its process id; it may have ended while this process started.

    Where memory ends, the system is to end this process, whose work the client sees fail, rather than the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
