"""Models with slots (`max_concurrency`) on a real Triton: a bounded queue, first-response deadlines, cancellation."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from http.client import IncompleteRead
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of, rest_of
from tests.proxy.fixtures.models import add_model
from tidegate.control import concurrency_limit
from tidegate.control.concurrency_limit import INITIAL_LIMIT
from tidegate_proxy.commands.running import tell_tally
from tidegate_proxy.rollout import canary, comparison
from tidegate_proxy.servers import streams as streams_module
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
LISTEN = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
STREAMS = 6
SLOTS = 2
RESPONSES = 40

# Answers each request in a thread of its own: how many it has in flight at once, at once, and again when the gate is
# open or nobody wants it.
TOKENS = """
import json, threading, time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.gate = Path(json.loads(args["model_config"])["parameters"]["gate"]["string_value"])
        self.lock, self.running = threading.Lock(), 0

    def execute(self, requests):
        for request in requests:
            with self.lock:
                self.running += 1
                running = self.running
            threading.Thread(target=self.answer, args=(request, request.get_response_sender(), running)).start()

    def answer(self, request, sender, running):
        token = pb_utils.Tensor("Y", np.array([[running]], np.float32))
        sender.send(pb_utils.InferenceResponse([token]))
        while not self.gate.exists() and not request.is_cancelled():
            time.sleep(0.002)
        with self.lock:
            self.running -= 1
        sender.send(pb_utils.InferenceResponse([token]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Answers with many large responses, all requests side by side.
SENDS = "        sender.send(pb_utils.InferenceResponse([token]))\n"
MANY = TOKENS.replace("[[running]]", "[[running] * 50_000]").replace(
    SENDS, f"        for _ in range({RESPONSES // 2}):\n    {SENDS}"
)


def _running(answer: service_pb2.ModelStreamInferResponse) -> float:
    """How many streams the model had when it began this one."""
    return float(np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)[0])


@pytest.fixture(scope="module")
def gate_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the streams wait for a file."""
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="module")
def tokens(start_triton: Make, gate_file: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """A Triton with a decoupled model, and one without a batch dimension that waits in the same way."""
    repository = tmp_path_factory.mktemp("models")
    decoupled = "max_batch_size: 4 model_transaction_policy { decoupled: true }"
    (add_model(repository, "tokens", decoupled, gate=gate_file) / "model.py").write_text(TOKENS)
    add_model(repository, "flat", "max_batch_size: 0", gate=gate_file)
    (add_model(repository, "many", decoupled, gate=gate_file) / "model.py").write_text(MANY)
    server: EmbeddedTriton = start_triton([repository])
    return server


@pytest.fixture
def streams(open_stream: Make) -> Make:
    """`streams(proxy, count)`: streams of one request each."""
    row = np.ones((1, 1), np.float32)
    return lambda proxy, count: [
        open_stream(proxy, [request_of("tokens", {"X": row}, id=str(number))]) for number in range(count)
    ]


def test_streams_beyond_the_slots_wait_in_tidegate(
    tokens: EmbeddedTriton, gate_file: Path, serve_here: Make, streams: Make
) -> None:
    gate_file.unlink(missing_ok=True)
    direct = streams(tokens, STREAMS)
    assert max(_running(next(stream)) for stream in direct) == STREAMS, "Triton alone has no limit"
    gate_file.touch()
    rest = [rest_of(stream)[0] for stream in direct]

    gate_file.unlink()
    proxy = serve_here([tokens], models={"tokens": {"max_concurrency": SLOTS}})
    under_way = streams(proxy, STREAMS)
    eventually(lambda: proxy.engine.queued == STREAMS - SLOTS, "the others to wait in Tidegate")
    assert proxy.engine.in_flight == SLOTS
    consent = proxy.serving._directory.catalog.consents["tokens"]
    assert (consent.scheduling, consent.why.split(";")[0]) == ("slots", f"max_concurrency: {SLOTS} at each Triton")
    gate_file.touch()
    ended = [rest_of(stream) for stream in under_way]
    assert [code for _, code, _ in ended] == [grpc.StatusCode.OK] * STREAMS
    assert [len(answers) for answers, *_ in ended] == [1 + len(answers) for answers in rest]
    assert max(_running(answer) for answers, *_ in ended for answer in answers) <= SLOTS
    for answers, theirs in zip((answers for answers, *_ in ended), rest, strict=True):
        for answer in (*answers, *theirs):  # how many run is all that differs
            answer.infer_response.ClearField("raw_output_contents")
        assert answers[1:] == theirs
    tally = proxy.engine.tally
    assert (tally.answered, tally.failed, tally.dropped.total()) == (STREAMS, 0, 0)
    counts = proxy.serving.driver.observability.metrics.counts.models["tokens"]
    assert sum(counts.gaps.counts) == sum(len(answers) - 1 for answers, *_ in ended)
    assert not proxy.serving.driver.running
    assert not any(host.in_flight for host in proxy.serving._directory.catalog.hosts["tokens"])


def test_a_model_that_is_named_twice_has_slots_as_well(
    tokens: EmbeddedTriton, gate_file: Path, serve_here: Make, open_stream: Make, start_call: Make
) -> None:
    """The last name counts, at Triton and in Tidegate, wherever it stands."""
    gate_file.unlink(missing_ok=True)
    models = {name: {"max_concurrency": SLOTS} for name in ("tokens", "flat")}
    proxy = serve_here([tokens], models=models)
    other = service_pb2.ModelInferRequest(model_name="other").SerializeToString()
    message = request_of("tokens", {"X": np.ones((1, 1), np.float32)}).SerializeToString()
    under_way = [open_stream(proxy, [other + message]) for _ in range(STREAMS)]
    message = request_of("flat", {"X": np.ones((1,), np.float32)}).SerializeToString()
    version_first = b"\x12\x011" + message
    calls = [start_call(proxy, "ModelInfer", twice) for twice in (other + message, version_first, message)]
    eventually(lambda: proxy.engine.queued == STREAMS + len(calls) - 2 * SLOTS, "the others to wait in Tidegate")
    gate_file.touch()
    assert [rest_of(stream)[1] for stream in under_way] == [grpc.StatusCode.OK] * STREAMS
    assert [call.code() for call in calls] == [grpc.StatusCode.OK] * len(calls)
    assert proxy.engine.tally.answered == STREAMS + len(calls)


def test_streams_are_counted_by_the_time_between_their_responses(
    tokens: EmbeddedTriton,
    gate_file: Path,
    serve_here: Make,
    streams: Make,
    open_stream: Make,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gate_file.unlink(missing_ok=True)
    slots = {"max_concurrency": 1}
    models = {"tokens": {**slots, "slo_gap_ms": 100}, "many": {**slots, "slo_gap_ms": 60_000}, "flat": slots}
    proxy = serve_here([tokens], models=models, listen={"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"})
    [held] = streams(proxy, 1)
    next(held)
    responded_ns = time.monotonic_ns()
    eventually(lambda: time.monotonic_ns() - responded_ns > 200_000_000, "the gap to be too long")
    gate_file.touch()
    ended = [
        rest_of(stream)
        for stream in (
            held,
            open_stream(proxy, [request_of("many", {"X": np.ones((1, 1), np.float32)})]),
            open_stream(proxy, [request_of("flat", {"X": np.ones((1,), np.float32)})]),
        )
    ]
    assert [code for _, code, _ in ended] == [grpc.StatusCode.OK] * 3
    eventually(lambda: proxy.engine.tally.answered == 3, "all to be counted")
    metrics = proxy.serving.driver.observability.metrics
    assert metrics.gaps_on_time() == {"tokens": 0.0, "many": 1.0}, "a stream with one response has no gap"
    with urlopen(f"http://{proxy.serving.metrics_address}/metrics", timeout=30) as page:
        assert b'tidegate_response_gap_slo_streams_total{model="tokens",outcome="late"} 1.0' in page.read()
    tell_tally(proxy.serving)
    assert "many: 100.0 % of streams within slo_gap_ms; tokens: 0.0 %" in capsys.readouterr().out


def test_slots_follow_a_limit_that_is_found(
    tokens: EmbeddedTriton,
    gate_file: Path,
    serve_here: Make,
    open_stream: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Which limit that is depends on the times of streams; in virtual time it is the best one."""
    gate_file.unlink(missing_ok=True)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(concurrency_limit, "MIN_RESPONSES_PER_STREAM", 1)
    monkeypatch.setattr(concurrency_limit, "MIN_WINDOW_RESPONSES", INITIAL_LIMIT * RESPONSES // 2 + 1)
    proxy = serve_here([tokens], models={"many": {"max_concurrency": "auto"}})

    def why() -> str:
        words: str = proxy.serving._directory.catalog.consents["many"].why
        return words

    assert why().endswith(f"; {INITIAL_LIMIT} at {tokens.grpc_address}")
    began_ns = time.monotonic_ns()
    running = [
        open_stream(proxy, [request_of("many", {"X": np.ones((1, 1), np.float32)})]) for _ in range(INITIAL_LIMIT + 2)
    ]
    counts = proxy.serving.driver.observability.metrics.counts.models["many"]
    first = INITIAL_LIMIT * (RESPONSES // 2 - 1)
    eventually(lambda: sum(counts.gaps.counts) == first, "all slots to be busy")
    assert (proxy.engine.in_flight, proxy.engine.queued) == (INITIAL_LIMIT, 2)
    ramp_ns = time.monotonic_ns() - began_ns
    eventually(lambda: time.monotonic_ns() - began_ns > 2.5 * ramp_ns, "most of the time to be at the limit")
    gate_file.touch()
    assert [rest_of(stream)[1] for stream in running] == [grpc.StatusCode.OK] * (INITIAL_LIMIT + 2)
    changes = [vars(record)["limit"] for record in caplog.records if record.msg == "concurrency limit changed"]
    assert changes, "a level that is known to be better, or the next one, which is not known"
    eventually(lambda: why().endswith(f"; {changes[-1]} at {tokens.grpc_address}"), "the slots to follow")
    slots = [worker for worker in proxy.serving._directory.catalog.workers if worker.hosts == ("many",)]
    assert len(slots) == changes[-1]
    eventually(lambda: not proxy.engine.in_flight, "all slots to be free")
    assert proxy.engine.tally.answered == INITIAL_LIMIT + 2


def test_under_overload_what_cannot_begin_in_time_is_rejected(
    tokens: EmbeddedTriton, gate_file: Path, serve_here: Make, streams: Make
) -> None:
    gate_file.unlink(missing_ok=True)
    proxy = serve_here(
        [tokens],
        policy="symphony",
        models={"tokens": {"max_concurrency": SLOTS, "slo_first_ms": 4000}},
        limits={"max_queue_size": STREAMS},
        shedding={"status": "RESOURCE_EXHAUSTED"},
    )
    running = streams(proxy, SLOTS)
    assert all(next(stream).infer_response.outputs for stream in running)
    waiting = streams(proxy, STREAMS - SLOTS)
    eventually(lambda: proxy.engine.queued == STREAMS - SLOTS, "the others to wait")
    [beyond] = streams(proxy, 1)
    [refused], code, _ = rest_of(beyond)
    assert "Exceeds maximum queue size" in refused.error_message
    assert code is grpc.StatusCode.OK
    words = [rest_of(stream)[0][-1].error_message for stream in waiting]
    assert set(words) == {"Request timeout expired"}, "no slot was free before their deadline"
    dropped = proxy.engine.tally.dropped
    assert dropped["deadline_unreachable"] + dropped["fair_share"] == STREAMS - SLOTS, dropped
    gate_file.touch()
    assert [rest_of(stream)[1] for stream in running] == [grpc.StatusCode.OK] * SLOTS
    eventually(lambda: not proxy.engine.in_flight, "the slots to be free")
    on_time, all_of_them = proxy.serving.driver.observability.metrics.on_time()["tokens"]
    assert (on_time, all_of_them) == (SLOTS, STREAMS), "a stream is on time if its first response is"


def test_a_client_that_leaves_frees_its_slot(
    tokens: EmbeddedTriton, gate_file: Path, serve_here: Make, streams: Make
) -> None:
    gate_file.unlink(missing_ok=True)
    proxy = serve_here([tokens], models={"tokens": {"max_concurrency": 1}})
    [leaving] = streams(proxy, 1)
    next(leaving)
    [waiting], [staying] = (streams(proxy, 1) for _ in range(2))
    eventually(lambda: proxy.engine.queued == 2, "the others to wait")
    waiting.cancel()
    eventually(lambda: proxy.engine.queued == 1, "who waits no more to be forgotten")
    leaving.cancel()
    assert next(staying).infer_response.outputs, "the slot is free, though the gate is shut"
    gate_file.touch()
    assert rest_of(staying)[1] is grpc.StatusCode.OK
    assert proxy.engine.tally.cancelled == 2


def test_calls_and_http_wait_for_the_slots_of_a_model_without_batches(
    tokens: EmbeddedTriton, gate_file: Path, serve_here: Make, open_stream: Make, start_call: Make
) -> None:
    gate_file.unlink(missing_ok=True)
    tritons = [{"grpc": tokens.grpc_address, "http": tokens.http_address}]
    models = {"flat": {"max_concurrency": "instances", "slo_ms": 60_000}, "tokens": {"max_concurrency": 1}}
    proxy = serve_here([tokens], tritons=tritons, models=models, listen=LISTEN)
    message = request_of("flat", {"X": np.ones((1,), np.float32)}, id="mine")
    calls = [start_call(proxy, "ModelInfer", message) for _ in range(2)]
    stream = open_stream(proxy, [message, message])
    eventually(lambda: proxy.engine.queued == 3, "all but one to wait, for the model has one instance")
    gate_file.touch()
    assert calls[0].result() == calls[1].result()
    answers, code, _ = rest_of(stream)
    assert [answer.infer_response.id for answer in answers] == ["mine", "mine"]
    assert code is grpc.StatusCode.OK
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [7]}]}).encode()
    url = f"http://{proxy.serving.http_address}/v2/models/flat/infer"
    with urlopen(Request(url, body), timeout=30) as answer:
        assert json.load(answer)["outputs"][0]["data"] == [7]
    streamed = []
    for address in (tokens.http_address, proxy.serving.http_address):
        with urlopen(
            Request(f"http://{address}/v2/models/tokens/generate_stream", b'{"X": 1.0}'), timeout=30
        ) as answer:
            streamed.append(answer.read())
    assert streamed[0] == streamed[1]
    assert streamed[0].count(b"data:") == 2
    eventually(lambda: proxy.engine.tally.answered == 6, "all to be counted")
    assert sum(proxy.serving.driver.observability.metrics.counts.models["tokens"].gaps.counts) <= 1, "its end is none"
    with socket.create_connection(proxy.serving.http_address.split(":")) as slow:
        slow.sendall(
            b"POST /v2/models/flat/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n" + bytes(2_000_000)
        )
        eventually(lambda: proxy.engine.in_flight or proxy.serving.bounds.in_flight_bytes >= 2_000_000, "the body")
        assert not proxy.engine.in_flight, "a client that is still sending has no slot"


class _BrokenOff(BaseHTTPRequestHandler):
    """Answers half of what it announces."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "100")
        self.end_headers()
        self.wfile.write(b"half")
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output clean."""


@pytest.mark.parametrize("models", [{}, {"flat": {"max_concurrency": 1}}], ids=["bypassed", "slots"])
def test_a_response_that_breaks_off_is_no_answer(
    tokens: EmbeddedTriton, gate_file: Path, serve_here: Make, call: Make, models: dict[str, Any]
) -> None:
    gate_file.touch()
    with ThreadingHTTPServer(("127.0.0.1", 0), _BrokenOff) as broken:
        thread = threading.Thread(target=broken.serve_forever)
        thread.start()
        tritons = [{"grpc": tokens.grpc_address, "http": f"127.0.0.1:{broken.server_port}"}]
        proxy = serve_here([tokens], tritons=tritons, models=models, listen=LISTEN)
        metrics = proxy.serving.driver.observability.metrics
        message = request_of("flat", {"X": np.ones((1,), np.float32)})
        assert call(proxy, "ModelInfer", message)[0] is grpc.StatusCode.OK
        request = Request(f"http://{proxy.serving.http_address}/v2/models/flat/infer", b"{}")
        with pytest.raises(IncompleteRead), urlopen(request, timeout=60) as answer:
            answer.read()
        broken.shutdown()
        thread.join()
    if models:
        eventually(lambda: proxy.engine.tally.failed == 1, "the request to fail")
        assert proxy.engine.tally.answered == 1
    else:
        eventually(lambda: metrics.counts.bypassed["flat", "failed"] == 1, "it to be counted as failed")
        assert metrics.counts.bypassed["flat", "answered"] == 1


def test_a_client_that_reads_slowly_does_not_fill_the_memory(
    tokens: EmbeddedTriton, gate_file: Path, serve_here: Make, open_stream: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate_file.touch()
    limit, waiting = 8, list[int]()
    monkeypatch.setattr(streams_module, "MAX_UNDER_WAY", limit)
    send = streams_module.InferStream._send

    def watched(self: Any) -> None:
        waiting.append(len(self._outbox))
        send(self)

    monkeypatch.setattr(streams_module.InferStream, "_send", watched)
    proxy = serve_here([tokens], models={"many": {"max_concurrency": STREAMS}})
    stream = open_stream(proxy, [request_of("many", {"X": np.ones((1, 1), np.float32)})] * STREAMS)
    eventually(lambda: max(waiting, default=0) >= limit, "the client to be behind")
    for _ in range(4 * STREAMS):
        next(stream)
        eventually(lambda: waiting[-1] >= limit, "it to be behind again")
    answers, code, _ = rest_of(stream)
    assert (len(answers), code) == (STREAMS * (RESPONSES - 4), grpc.StatusCode.OK)
    assert max(waiting) < limit + STREAMS, "each slot may add one"


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({"tokens": {"max_concurrency": 0}}, "max_concurrency: must be at least 1, not 0"),
        ({"tokens": {"slo_first_ms": 5}}, "slo_first_ms: only with max_concurrency"),
        ({"tokens": {"slo_gap_ms": 5}}, "slo_gap_ms: only with max_concurrency"),
        ({"nope": {"max_concurrency": 2}}, "which no Triton has"),
    ],
)
def test_what_cannot_be_is_said(tokens: EmbeddedTriton, serve_here: Make, models: Any, words: str) -> None:
    with pytest.raises(Exception, match=words):
        serve_here([tokens], models=models)


def test_a_lost_triton_fails_what_was_answered_and_frees_nothing_else(
    tokens: EmbeddedTriton, start_triton: Make, gate_file: Path, serve_here: Make, streams: Make, tmp_path: Path
) -> None:
    """A stream that has begun cannot be tried again; the others go on, placed one at each Triton."""
    gate_file.unlink(missing_ok=True)
    decoupled = "max_batch_size: 4 model_transaction_policy { decoupled: true }"
    (add_model(tmp_path, "tokens", decoupled, gate=gate_file) / "model.py").write_text(TOKENS)
    other = start_triton([tmp_path])
    proxy = serve_here([tokens, other], models={"tokens": {"max_concurrency": SLOTS}})
    begun = [streams(proxy, 1)[0] for _ in range(2)]
    assert [_running(next(stream)) for stream in begun] == [1, 1], "placed by load"
    other.stop()
    [waiting] = streams(proxy, 1)
    gate_file.touch()
    errors = [answer.error_message for answers, *_ in map(rest_of, begun) for answer in answers if answer.error_message]
    assert len(errors) == 1, "of the stream at the lost Triton"
    answers, code, _ = rest_of(waiting)
    assert code is grpc.StatusCode.OK
    assert not any(answer.error_message for answer in answers)
    eventually(lambda: not proxy.engine.in_flight, "all to have ended")
    tally = proxy.engine.tally
    assert (tally.answered, tally.failed) == (2, 1)


def test_a_canary_gives_slots_to_streams_for_a_fraction_of_the_time(
    tokens: EmbeddedTriton, gate_file: Path, serve_here: Make, open_stream: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are answered alike, and each stream has its first response compared, once."""
    monkeypatch.setattr(canary, "FOLD_EVERY_S", 0.02)
    monkeypatch.setattr(comparison, "BLOCK_NS", 20_000_000)
    monkeypatch.setattr(comparison, "BURN_IN_NS", 0)
    monkeypatch.setattr(comparison, "SETTLING_BLOCKS", 100)
    monkeypatch.setattr(comparison, "MAX_BLOCKS", 100_000)
    gate_file.touch()
    models = {"tokens": {"max_concurrency": SLOTS, "slo_first_ms": 60_000}}
    tritons = [{"grpc": tokens.grpc_address, "http": tokens.http_address}]
    proxy = serve_here([tokens], canary=0.5, models=models, tritons=tritons, listen=LISTEN)
    row, count = np.ones((1, 1), np.float32), 60
    for number in range(count):
        answers, code, _ = rest_of(open_stream(proxy, [request_of("tokens", {"X": row}, id=str(number))] * 2))
        assert (code, len(answers)) == (grpc.StatusCode.OK, 4)
    body = b'{"X": 1.0}'
    for _ in range(count):
        with urlopen(Request(f"http://{proxy.serving.http_address}/v2/models/tokens/generate_stream", body)) as answer:
            assert answer.read().count(b"data: ") == 2
    eventually(lambda: not proxy.engine.in_flight, "its slots to be free")
    scheduled = proxy.engine.tally.answered
    assert 0 < scheduled < 3 * count

    def compared() -> list[Any]:
        return [each for each in proxy.serving.rollout.canary.compared if each.model == "tokens"]

    def is_whole() -> bool:
        return any(each.scheduled.requests + each.passed.requests == 3 * count for each in compared())

    eventually(is_whole, "all requests in the comparison")
    (found,) = compared()
    assert (found.scheduled.requests, found.scheduled.answered) == (scheduled, scheduled)
