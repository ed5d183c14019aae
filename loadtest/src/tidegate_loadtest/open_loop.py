"""Open loop: requests leave on schedule whatever the server does, like those of many independent clients."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.result import CLIENT_TIMEOUT, OK_STATUS, RunResult, status_of
from tidegate_loadtest.tenant_headers import RequestHeaders

RequestFactory = Callable[[int], pb.ModelInferRequest]
"""Function that returns the i-th request. It runs on the sending thread, so it must be quick."""

PROGRESS_EVERY_S = 0.5


@dataclass(frozen=True)
class Progress:
    """Progress of a load test run."""

    elapsed_ns: int
    """Nanoseconds since the first request could be sent, warm-up included."""
    answered: int
    failed: int

    def __str__(self) -> str:
        return f"{self.answered} answered, {self.failed} failed"


async def run_open_loop(
    connection: Connection,
    arrivals_ns: Sequence[int],
    request_of: RequestFactory,
    *,
    window_ns: int,
    warmup_ns: int = 0,
    timeout_s: float = 30.0,
    lateness_limit_ms: float = 5.0,
    progress: Callable[[Progress], None] | None = None,
    is_stream: Callable[[int], bool] = lambda _index: False,
    headers_of: Callable[[int], RequestHeaders] = lambda _index: (),
) -> RunResult:
    """Send the i-th request `arrivals_ns[i]` nanoseconds from now; return when the last is answered or has failed.

    The arrivals, in order, span `warmup_ns + window_ns`; those of the warm-up are sent but leave no row in the result.
    A request is abandoned `timeout_s` after it was sent. Raises LoadTestError if no arrival falls into the window.
    `lateness_limit_ms`: see `RunResult`; `progress`: progress callback. `is_stream(i)`: whether the i-th request has
    many responses, over ModelStreamInfer. `headers_of(i)`: its headers.
    """
    stubs = connection.stubs
    # Imported modules and drawn requests stay: a garbage collection over them would delay requests by tens of ms.
    gc.collect()
    gc.freeze()
    recorder = Recorder(warmup_ns=warmup_ns, timeout_s=timeout_s)
    async with recorder.reporting(progress), asyncio.TaskGroup() as sending:
        for index, at_ns in enumerate(arrivals_ns):
            due_ns = at_ns - warmup_ns
            if due_ns <= recorder.now_ns():
                await asyncio.sleep(0)  # behind schedule: what was issued must still leave, what was answered come in
            # uvloop rounds a sleep to whole milliseconds: it may wake early, and then spins for the last half.
            while (early_ns := due_ns - recorder.now_ns()) > 0:
                await asyncio.sleep(early_ns * 1e-9)
            send = recorder.send_stream if is_stream(index) else recorder.send
            sending.create_task(send(stubs[index % len(stubs)], request_of(index), index, due_ns, headers_of(index)))
    return recorder.result(window_ns, lateness_limit_ms=lateness_limit_ms)


async def _only(request: pb.ModelInferRequest) -> AsyncIterator[pb.ModelInferRequest]:
    yield request


class Recorder:
    """Clock of one run and the rows of its result. The clock reads 0 where the measured window begins."""

    def __init__(self, *, warmup_ns: int, timeout_s: float) -> None:
        """Start the run, `warmup_ns` before the window. A request is abandoned after `timeout_s`."""
        self._warmup_ns = warmup_ns
        self._timeout_s = timeout_s
        self._zero_ns = time.monotonic_ns() + warmup_ns
        self._rows: list[tuple[int, int, int, int, str]] = []
        self._answered = 0
        self._messages: dict[str, str] = {}
        self._streams: dict[int, tuple[int, int]] = {}

    def now_ns(self) -> int:
        """Return the nanoseconds since the measured window began; negative during the warm-up."""
        return time.monotonic_ns() - self._zero_ns

    async def send(
        self,
        stub: GRPCInferenceServiceStub,
        request: pb.ModelInferRequest,
        index: int,
        scheduled_ns: int,
        headers: RequestHeaders = (),
    ) -> None:
        """Send request number `index`, which was due at `scheduled_ns`; wait until it is answered or has failed."""
        issued_ns = self.now_ns()
        message = ""
        try:
            # The wait is bounded here, not by a gRPC deadline: that would travel with the request, and a server
            # that schedules by deadlines would take our patience for the client's SLO.
            async with asyncio.timeout(self._timeout_s):
                await stub.ModelInfer(request, metadata=headers)
            status = OK_STATUS
            self._answered += 1
        except TimeoutError:
            status = CLIENT_TIMEOUT
            message = f"no answer within {self._timeout_s:g} s"
        except grpc.aio.AioRpcError as error:
            message = error.details() or ""
            status = status_of(message, error.code().name)
        self._rows.append((index, scheduled_ns, issued_ns, self.now_ns(), status))
        if message:
            self._messages.setdefault(status, message)

    async def send_stream(
        self,
        stub: GRPCInferenceServiceStub,
        request: pb.ModelInferRequest,
        index: int,
        scheduled_ns: int,
        headers: RequestHeaders = (),
    ) -> None:
        """Send request number `index` in a stream of its own, like `send`; it is answered with its first response."""
        issued_ns = self.now_ns()
        first_ns, last_ns, count, message, status = 0, 0, 0, "", OK_STATUS
        call = stub.ModelStreamInfer(_only(request), metadata=headers)
        try:
            async with asyncio.timeout(self._timeout_s):
                async for answer in call:
                    if answer.error_message:
                        message = answer.error_message
                        status = status_of(message, "UNAVAILABLE")
                        continue
                    last_ns = self.now_ns()
                    first_ns, count = first_ns or last_ns, count + 1
        except TimeoutError:
            call.cancel()
            status, message = CLIENT_TIMEOUT, f"the stream did not end within {self._timeout_s:g} s"
        except grpc.aio.AioRpcError as error:
            message = error.details() or ""
            status = status_of(message, error.code().name)
        if status == OK_STATUS:
            self._answered += 1
            self._streams[index] = last_ns, count
        self._rows.append((index, scheduled_ns, issued_ns, first_ns or self.now_ns(), status))
        if message:
            self._messages.setdefault(status, message)

    @asynccontextmanager
    async def reporting(self, progress: Callable[[Progress], None] | None) -> AsyncIterator[None]:
        """Call `progress` periodically, and once at the end."""
        if progress is None:
            yield
            return
        reports = asyncio.create_task(self._report(progress))
        try:
            yield
        finally:
            reports.cancel()
        progress(self._progress())

    def result(self, window_ns: int, *, lateness_limit_ms: float = 5.0) -> RunResult:
        """Return the rows of the window. Raises LoadTestError if no request was due in it."""
        rows = sorted(row for row in self._rows if row[1] >= 0)
        if not rows:
            raise LoadTestError("no request was due in the measured window: ask for a longer one, or for a higher rate")
        _index, scheduled_ns, issued_ns, finished_ns, status = zip(*rows, strict=True)
        return RunResult(
            window_ns=window_ns,
            began_ns=self._zero_ns,
            scheduled_ns=np.array(scheduled_ns, np.int64),
            issued_ns=np.array(issued_ns, np.int64),
            finished_ns=np.array(finished_ns, np.int64),
            status=np.array(status),
            messages=self._messages,
            lateness_limit_ms=lateness_limit_ms,
            streams=self._streams,
        )

    def _progress(self) -> Progress:
        return Progress(self.now_ns() + self._warmup_ns, self._answered, len(self._rows) - self._answered)

    async def _report(self, progress: Callable[[Progress], None]) -> None:
        while True:
            progress(self._progress())
            await asyncio.sleep(PROGRESS_EVERY_S)
