"""The open loop, against a server that answers, fails, or keeps silent."""

import time
from typing import TYPE_CHECKING

import numpy as np
import uvloop
from tritonclient.grpc import service_pb2 as pb

from bench.closed_loop import closed_loop
from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.model_inputs import infer_request
from tidegate_loadtest.open_loop import Progress, RequestFactory, run_open_loop
from tidegate_loadtest.result import RunResult

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton

MS = 1_000_000


def to(model: str) -> RequestFactory:
    """Requests that carry their own index."""

    def request_of(index: int) -> pb.ModelInferRequest:
        request = infer_request(model, {"X": np.full((1, 4), index, np.float32)})
        request.id = str(index)
        return request

    return request_of


def open_loop(triton: "FakeTriton", arrivals_ns: list[int], request_of: RequestFactory, **options: object) -> RunResult:
    async def run() -> RunResult:
        async with Connection(triton.target, channels=2) as connection:
            return await run_open_loop(connection, arrivals_ns, request_of, **options)  # type: ignore[arg-type]

    return uvloop.run(run())


def test_every_request_is_sent_once_and_never_early(triton: "FakeTriton") -> None:
    arrivals_ns = [index * MS for index in range(50)]
    run = open_loop(triton, arrivals_ns, to("echo"), window_ns=50 * MS)
    assert run.scheduled_ns.tolist() == arrivals_ns
    assert run.ok.all()
    assert (run.lateness_ns >= 0).all()
    assert (run.finished_ns > run.issued_ns).all()
    assert sorted(int(request.id) for request in triton.requests) == list(range(50))


def test_the_open_loop_does_not_wait_for_answers(triton: "FakeTriton") -> None:
    # The server answers nobody before all twenty are there: whoever waits for one answer waits for ever.
    run = open_loop(triton, [index * MS for index in range(20)], to("crowd"), window_ns=20 * MS)
    assert run.ok.all()
    assert run.latency_ns[0] >= 19 * MS


def test_requests_of_the_warm_up_are_sent_but_not_counted(triton: "FakeTriton") -> None:
    run = open_loop(triton, [0, 5 * MS, 10 * MS, 15 * MS], to("echo"), warmup_ns=10 * MS, window_ns=10 * MS)
    assert run.scheduled_ns.tolist() == [0, 5 * MS]
    assert len(triton.requests) == 4


def test_failures_are_counted_by_status_with_their_first_message(triton: "FakeTriton") -> None:
    run = open_loop(triton, [0, MS, 2 * MS], to("failing"), window_ns=3 * MS)
    assert run.summary(slo_ms=1000).failed == {"UNAVAILABLE": 3}
    assert run.messages == {"UNAVAILABLE": "no worker left"}


def test_what_a_scheduler_gave_up_is_no_failure_of_the_server(triton: "FakeTriton") -> None:
    run = open_loop(triton, [0, MS], to("expiring"), window_ns=3 * MS)
    assert run.status.tolist() == ["timeout", "timeout"]


def test_rows_come_in_the_order_of_the_requests_not_of_their_answers(triton: "FakeTriton") -> None:
    models = ("patient", "failing", "echo")  # the first is answered once the others are
    run = open_loop(triton, [0, 0, 0], lambda index: to(models[index])(index), window_ns=MS)
    assert run.status.tolist() == ["OK", "UNAVAILABLE", "OK"]


def test_a_silent_server_costs_the_timeout_and_sees_no_deadline(triton: "FakeTriton") -> None:
    run = open_loop(triton, [0, MS], to("silent"), window_ns=2 * MS, timeout_s=0.05)
    assert run.status.tolist() == ["CLIENT_TIMEOUT", "CLIENT_TIMEOUT"]
    assert (run.latency_ns >= 49 * MS).all()  # uvloop's timers are whole milliseconds, rounded
    assert min(triton.patience_s) > 24 * 3600


def test_a_stalled_generator_owns_up(triton: "FakeTriton") -> None:
    request_of = to("echo")

    def stalling(index: int) -> pb.ModelInferRequest:
        if index == 0:
            time.sleep(0.03)  # the event loop stands still, as under a garbage collection or a full CPU
        return request_of(index)

    run = open_loop(triton, [0, MS, 2 * MS], stalling, window_ns=3 * MS, lateness_limit_ms=20)
    assert (run.lateness_ns >= 28 * MS).all()
    assert (run.latency_ns >= 28 * MS).all()
    assert run.fell_behind


def test_progress_ends_with_everything_accounted_for(triton: "FakeTriton") -> None:
    seen: list[Progress] = []
    open_loop(triton, [0, MS, 2 * MS], to("echo"), window_ns=3 * MS, progress=seen.append)
    assert (seen[-1].answered, seen[-1].failed) == (3, 0)
    assert seen[-1].elapsed_ns >= 2 * MS


def test_a_window_without_arrivals_is_refused(triton: "FakeTriton") -> None:
    try:
        open_loop(triton, [0], to("echo"), warmup_ns=MS, window_ns=MS)
    except LoadTestError as error:
        assert "no request was due" in str(error)
    else:
        raise AssertionError("a run that measured nothing gave a result")


def test_the_callers_of_the_benches_each_ask_again_after_their_answer(triton: "FakeTriton") -> None:
    figures = closed_loop(triton.target, "echo", 4, 0.2, "X:4", warmup_s=0.1)
    assert 1 <= triton.most_in_flight <= 4
    assert 0 < figures["rps"] * 0.2 <= len(triton.requests)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
