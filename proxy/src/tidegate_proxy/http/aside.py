"""Large JSON is read and written in another process: one parse holds the interpreter, and everybody, for seconds."""

import asyncio
import ctypes
import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

from tidegate_proxy.http import infer_request, infer_response
from tidegate_proxy.http.infer_request import ResponseForm
from tidegate_proxy.signature import Signature

FROM_BYTES: Final = 1 << 18
"""From this size on: what is smaller is done within 30 ms, and a way to another process and back takes 2."""
_PROCESSES: Final = 2
_PR_SET_PDEATHSIG: Final = 1


class Aside:
    """Processes that are started when the first large request comes. Lives in one event loop."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def translate(
        self, signature: Signature, version: str, body: bytes, json_bytes: int
    ) -> tuple[bytes, ResponseForm]:
        """As `infer_request.translate`, wherever it is better done."""
        if json_bytes < FROM_BYTES:
            return infer_request.translate(signature, version, body, json_bytes)
        result: tuple[bytes, ResponseForm] = await self._run(
            infer_request.translate, signature, version, body, json_bytes
        )
        return result

    async def render(self, answer: bytes, form: ResponseForm) -> infer_response.Body:
        """As `infer_response.render`, wherever it is better done."""
        all_binary = all(form.named.values()) if form.named else form.binary
        if len(answer) < FROM_BYTES or all_binary:
            return infer_response.render(answer, form)
        pieces, json_bytes = await self._run(_rendered, answer, form)
        return infer_response.Body(pieces, json_bytes)

    def close(self) -> None:
        """Let the processes end."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    async def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - whatever it gives
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")  # a fork would take gRPC's locks along, not its threads
            self._pool = ProcessPoolExecutor(_PROCESSES, mp_context=spawn, initializer=_end_with_parent)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        except BrokenProcessPool:
            self._pool = None  # the next one gets a new one
            raise


def _rendered(answer: bytes, form: ResponseForm) -> tuple[list[bytes], int | None]:
    body = infer_response.render(answer, form)
    return [bytes(piece) for piece in body.pieces], body.json_bytes


def _end_with_parent() -> None:
    """In the process: a signal to the terminal's group is for the parent, and without it there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
