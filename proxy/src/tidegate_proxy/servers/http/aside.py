"""Large JSON is read and written in another process: one parse holds the interpreter, and everybody, for seconds."""

import asyncio
import ctypes
import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tritonclient.grpc import service_pb2

from tidegate_proxy.messages.model_signature import Signature
from tidegate_proxy.servers.http import infer_request, infer_response
from tidegate_proxy.servers.http.fair_queue import FairQueue
from tidegate_proxy.servers.http.infer_request import ResponseForm
from tidegate_proxy.service.passthrough import sequence_in_json

FROM_BYTES: Final = 1 << 18
"""From this size on: what is smaller is done within 30 ms, and a way to another process and back takes 2."""
_PROCESSES: Final = 2
_PR_SET_PDEATHSIG: Final = 1


class _Place:
    """One process, started when it is needed: what ends it ends no other's work."""

    pool: ProcessPoolExecutor | None = None


class Aside:
    """Processes that are started when the first large request comes. Lives in one event loop."""

    def __init__(self) -> None:
        self._places = [_Place() for _ in range(_PROCESSES)]
        self._turns = FairQueue(self._places)

    async def translate(
        self, signature: Signature, version: str, body: bytes, json_bytes: int, owner: str = ""
    ) -> tuple[bytes, ResponseForm]:
        """As `infer_request.translate`, wherever it is better done."""
        if json_bytes < FROM_BYTES:
            return infer_request.translate(signature, version, body, json_bytes)
        result: tuple[bytes, ResponseForm] = await self._run(
            owner, len(body), infer_request.translate, signature, version, body, json_bytes
        )
        return result

    async def render(self, answer: bytes, form: ResponseForm, owner: str = "") -> infer_response.Body:
        """As `infer_response.render`, wherever it is better done."""
        all_binary = all(form.named.values()) if form.named else form.binary
        if len(answer) < FROM_BYTES or all_binary:
            return infer_response.render(answer, form)
        pieces, json_bytes = await self._run(owner, len(answer), _rendered, answer, form)
        return infer_response.Body(pieces, json_bytes)

    async def outline(self, text: bytes, owner: str = "") -> tuple[str, service_pb2.ModelInferRequest | None]:
        """The id of the sequence that a request is of, by its JSON, and what it says of its tensors, if known."""
        if len(text) < FROM_BYTES:
            return sequence_in_json(text), infer_request.outline(text, len(text))
        sequence, header = await self._run(owner, len(text), _outlined, text)
        return sequence, service_pb2.ModelInferRequest.FromString(header) if header is not None else None

    def close(self) -> None:
        """Let the processes end."""
        for place in self._places:
            if place.pool:
                place.pool.shutdown(wait=False, cancel_futures=True)
                place.pool = None

    async def _run(self, owner: str, size: int, work: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - whatever it gives
        place = await self._turns.take(owner, size)
        try:
            if place.pool is None:
                spawn = multiprocessing.get_context("spawn")  # a fork would take gRPC's locks along, not its threads
                place.pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_prepare)
            done = asyncio.get_running_loop().run_in_executor(place.pool, work, *arguments)
        except BaseException:
            place.pool = None
            self._turns.give_back(place)
            raise

        def over(done: "asyncio.Future[Any]") -> None:
            if not done.cancelled() and isinstance(done.exception(), BrokenProcessPool):
                place.pool = None  # the next one gets a new one
            self._turns.give_back(place)

        done.add_done_callback(over)
        return await asyncio.shield(done)  # whose client leaves keeps its place until the process is done with it


def _rendered(answer: bytes, form: ResponseForm) -> tuple[list[bytes], int | None]:
    body = infer_response.render(answer, form)
    return [bytes(piece) for piece in body.pieces], body.json_bytes


def _outlined(text: bytes) -> tuple[str, bytes | None]:
    header = infer_request.outline(text, len(text))
    return sequence_in_json(text), header.SerializeToString() if header is not None else None


def _prepare() -> None:
    """In the process: a signal to the terminal's group is for the parent, and without it there is nothing to do.

    Where memory ends, the system is to end this process, whose work the client sees fail, rather than the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
