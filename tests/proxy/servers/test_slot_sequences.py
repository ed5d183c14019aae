"""Sequences in slots on a real Triton: one slot from the first request to the last response, in order, as Triton's."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import rest_of
from tests.proxy.fixtures.here import ProxyHere
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
LISTEN = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
IDLE_US = 1_000_000
OK = grpc.StatusCode.OK

# Adds up what each sequence has sent, and refuses negative values; waits for the gate at a value of 100.
SUMS = """
import json, time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.gate = Path(json.loads(args["model_config"])["parameters"]["gate"]["string_value"])
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        names = ("X", "START", "CORRID")
        value, start, key = (pb_utils.get_input_tensor_by_name(request, name).as_numpy().flat[0] for name in names)
        while value == 100 and not self.gate.exists():
            time.sleep(0.002)
        self.sums[key] = value + (0 if start else self.sums.get(key, 0))
        if value < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("negative"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([[self.sums[key]]], np.float32))])
"""
CONTROLS = """
sequence_batching { %s max_sequence_idle_microseconds: %d control_input [
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
  { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } ] }
] }
"""


@pytest.fixture(scope="module")
def gate_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a value of 100 waits for a file."""
    return tmp_path_factory.mktemp("gate") / "open"


def _add(repository: Path, gate_file: Path) -> None:
    oldest = "oldest { max_candidate_sequences: 3 }"
    for name, strategy, ids in (("sums", "direct {}", "UINT64"), ("oldest", oldest, "STRING")):
        config = f"max_batch_size: 1 {CONTROLS % (strategy, IDLE_US, ids)}"
        (add_model(repository, name, config, gate=gate_file) / "model.py").write_text(SUMS)


@pytest.fixture(scope="module")
def sums(start_triton: Make, gate_file: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """A Triton with a model of one sequence at a time, and one of three."""
    repository = tmp_path_factory.mktemp("models")
    _add(repository, gate_file)
    server: EmbeddedTriton = start_triton([repository])
    return server


@pytest.fixture
def proxy(sums: EmbeddedTriton, gate_file: Path, serve_here: Make) -> ProxyHere:
    """Tidegate with as many slots as the models have; the gate is shut."""
    gate_file.unlink(missing_ok=True)
    tritons = [{"grpc": sums.grpc_address, "http": sums.http_address}]
    models = {"sums": {"max_concurrency": "instances"}, "oldest": {"max_concurrency": "instances"}}
    started: ProxyHere = serve_here([sums], tritons=tritons, models=models, listen=LISTEN)
    return started


def _step(
    sequence: int | str, value: float, flags: str = "", *, model: str = "sums", name: str = ""
) -> service_pb2.ModelInferRequest:
    """A request of a sequence; `flags`: `s`, its first, `e`, its last."""
    message = service_pb2.ModelInferRequest(model_name=model, id=name)
    message.inputs.add(name="X", datatype="FP32", shape=[1, 1])
    message.raw_input_contents.append(np.array([[value]], np.float32).tobytes())
    kind = "string_param" if isinstance(sequence, str) else "int64_param"
    setattr(message.parameters["sequence_id"], kind, sequence)
    message.parameters["sequence_start"].bool_param = "s" in flags
    message.parameters["sequence_end"].bool_param = "e" in flags
    return message


def _sums(answers: Sequence[Any]) -> list[float]:
    return [
        float(np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)[0])
        for answer in answers
        if answer.infer_response.raw_output_contents
    ]


CASES = {
    "one": [_step(1, 1, "s", name="a"), _step(1, 2), _step(1, 3, "e", name="c")],
    "one request": [_step(2, 5, "se")],
    "a name": [_step("name", 1, "s", model="oldest"), _step("name", 2, "e", model="oldest")],
    "the same id again": [_step(3, 1, "s"), _step(3, 2, "e"), _step(3, 4, "s"), _step(3, 5, "e")],
    "it starts over": [_step(4, 1, "s"), _step(4, 2), _step(4, 7, "s"), _step(4, 1, "e")],
    "one after the other": [_step(5, 1, "s"), _step(5, 2, "e"), _step(6, 3, "s"), _step(6, 4, "e")],
    "side by side": [_step(str(n), n, f, model="oldest") for f in ("s", "", "e") for n in (7, 8, 9)],
    "it was not started": [_step(10, 1)],
    "it ended before": [_step(11, 1, "s"), _step(11, 2, "e"), _step(11, 3)],
    "the model refuses one": [_step(12, 1, "s"), _step(12, -5), _step(12, 9, "e")],
    "no sequence": [_step(0, 1, "s")],
    "a wrong shape": [_step(13, 1, "s"), service_pb2.ModelInferRequest(model_name="sums"), _step(13, 1, "e")],
}


@pytest.mark.parametrize("name", CASES)
def test_streams_are_answered_as_by_triton(
    name: str, sums: EmbeddedTriton, proxy: ProxyHere, open_stream: Make
) -> None:
    expected, answered = (rest_of(open_stream(server, CASES[name])) for server in (sums, proxy))
    assert answered == expected
    assert expected[1] is OK
    eventually(lambda: not proxy.engine.in_flight, "its slots to be free")


@pytest.mark.parametrize("name", CASES)
def test_calls_are_answered_as_by_triton(name: str, sums: EmbeddedTriton, proxy: ProxyHere, call: Make) -> None:
    expected = [call(sums, "ModelInfer", message) for message in CASES[name]]
    assert [call(proxy, "ModelInfer", message) for message in CASES[name]] == expected


def test_http_is_answered_as_by_triton(sums: EmbeddedTriton, proxy: ProxyHere) -> None:
    def post(address: str, value: float, **parameters: object) -> tuple[int, Any]:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [value]}
        body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        try:
            with urlopen(Request(f"http://{address}/v2/models/sums/infer", body), timeout=60) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, json.load(error)

    for steps in ([(1, "s"), (2, ""), (3, "e")], [(1, "")], [(1, "s"), (-1, ""), (2, "e")]):
        answers = [
            [
                post(address, value, sequence_id="web", sequence_start="s" in flags, sequence_end="e" in flags)
                for value, flags in steps
            ]
            for address in (sums.http_address, proxy.serving.http_address)
        ]
        assert answers[0] == answers[1]
    eventually(lambda: proxy.engine.tally.answered == 2, "both sequences to be counted, each as one request")


def test_sequences_beyond_the_slots_wait_and_are_rejected(
    sums: EmbeddedTriton, gate_file: Path, serve_here: Make, open_stream: Make
) -> None:
    """At Triton the others would wait for ever; here for their deadline, or not at all."""
    gate_file.unlink(missing_ok=True)
    models = {"sums": {"max_concurrency": "instances", "slo_first_ms": 4000}}
    proxy = serve_here([sums], policy="symphony", models=models, limits={"max_queue_size": 3})
    running = open_stream(proxy, [_step(1, 1, "s"), _step(1, 100), _step(1, 3, "e")])
    assert _sums([next(running)]) == [1]
    waiting = [open_stream(proxy, [_step(n, 1, "s"), _step(n, 2, "e")]) for n in (2, 3)]
    eventually(lambda: proxy.engine.queued == 2, "two sequences to wait")
    [refused, *_], code, _ = rest_of(open_stream(proxy, [_step(4, 1, "se")]))
    assert "Exceeds maximum queue size" in refused.error_message
    assert code is OK
    for stream in waiting:
        answers, *_ = rest_of(stream)
        assert [answer.error_message for answer in answers] == ["Request timeout expired"] * 2
    gate_file.touch()
    assert _sums(rest_of(running)[0]) == [101, 104]
    eventually(lambda: not proxy.engine.in_flight, "the slot to be free")
    tally = proxy.engine.tally
    late = tally.dropped["deadline_unreachable"] + tally.dropped["fair_share"]
    assert (tally.answered, late) == (1, 2), tally.dropped


def test_a_sequence_that_pauses_for_too_long_frees_its_slot(
    proxy: ProxyHere,
    call: Make,
    start_call: Make,
) -> None:
    assert call(proxy, "ModelInfer", _step(1, 1, "s"))[0] is OK
    waiting = start_call(proxy, "ModelInfer", _step(2, 5, "se"))
    eventually(lambda: proxy.engine.queued == 1, "the other to wait")
    assert waiting.result(), "as Triton ends the first after its longest pause"
    code, words = call(proxy, "ModelInfer", _step(1, 2))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "must specify the START flag" in str(words)


def test_clients_that_leave(
    proxy: ProxyHere,
    gate_file: Path,
    open_stream: Make,
    start_call: Make,
) -> None:
    running = open_stream(proxy, [_step(1, 1, "s"), _step(1, 100)])
    assert _sums([next(running)]) == [1]
    leaving = start_call(proxy, "ModelInfer", _step(2, 1, "s"))
    staying = open_stream(proxy, [_step(3, 2, "s"), _step(3, 3, "e")])
    eventually(lambda: proxy.engine.queued == 2, "two sequences to wait")
    leaving.cancel()
    eventually(lambda: proxy.engine.queued == 1, "the one without a client to be forgotten")
    running.cancel()
    gate_file.touch()
    assert _sums(rest_of(staying)[0]) == [2, 5], "the slot is free once the sequence has paused for too long"
    eventually(lambda: not proxy.engine.in_flight, "the slot to be free")
    assert proxy.engine.tally.cancelled == 1
    assert proxy.engine.tally.answered == 2


def test_a_sequence_ends_at_its_triton_while_that_unloads_the_model(
    sums: EmbeddedTriton,
    start_triton: Make,
    gate_file: Path,
    serve_here: Make,
    open_stream: Make,
    start_call: Make,
    call: Make,
    tmp_path: Path,
) -> None:
    gate_file.unlink(missing_ok=True)
    tritons = []
    for number in range(2):
        repository = tmp_path / str(number)
        repository.mkdir()
        _add(repository, gate_file)
        tritons.append(start_triton([repository], options=["--model-control-mode=explicit", "--load-model=sums"]))
    proxy = serve_here(tritons, models={"sums": {"max_concurrency": "instances"}})
    begun = [open_stream(proxy, [_step(n, n, "s"), _step(n, 100), _step(n, 1, "e")]) for n in (1, 2)]
    assert [_sums([next(stream)]) for stream in begun] == [[1], [2]], "one at each Triton"
    unloading = start_call(proxy, "RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name="sums"))
    eventually(
        lambda: len(proxy.serving._directory.catalog.hosts.get("sums", ())) < 2, "the first Triton to take no more"
    )
    gate_file.touch()
    assert [_sums(rest_of(stream)[0]) for stream in begun] == [[101, 102], [102, 103]]
    unloading.result()
    assert call(proxy, "ModelInfer", _step(3, 1, "se"))[0] is not OK
    assert proxy.engine.tally.answered == 2


def test_a_lost_triton_fails_its_sequences(
    sums: EmbeddedTriton,
    start_triton: Make,
    gate_file: Path,
    serve_here: Make,
    open_stream: Make,
    call: Make,
    tmp_path: Path,
) -> None:
    """Their state is lost; the same ids may begin again, elsewhere."""
    gate_file.unlink(missing_ok=True)
    _add(tmp_path, gate_file)
    other = start_triton([tmp_path])
    proxy = serve_here([sums, other], models={"sums": {"max_concurrency": "instances"}})
    begun = [open_stream(proxy, [_step(n, n, "s"), _step(n, 100), _step(n, 1, "e")]) for n in (1, 2)]
    assert [_sums([next(stream)]) for stream in begun] == [[1], [2]]
    other.stop()
    gate_file.touch()
    ends = [rest_of(stream)[0] for stream in begun]
    lost = next(number for number, answers in enumerate(ends) if answers[0].error_message)
    assert all(answer.error_message for answer in ends[lost])
    assert _sums(ends[1 - lost]) == [102 - lost, 103 - lost]
    assert call(proxy, "ModelInfer", _step(1 + lost, 7, "se"))[0] is OK
    eventually(lambda: not proxy.engine.in_flight, "all to have ended")
    assert (proxy.engine.tally.answered, proxy.engine.tally.failed) == (2, 1)


def test_a_sequence_stays_where_a_canary_lets_it_begin(
    sums: EmbeddedTriton, serve_here: Make, call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {"sums": {"max_concurrency": "instances", "slo_first_ms": 60_000}}
    proxy = serve_here([sums], canary=0.5, models=models)
    for sequence, begins, goes_on in ((41, True, False), (42, False, True)):
        answers = []
        for value, flags, is_scheduled in ((1, "s", begins), (2, "", goes_on), (3, "e", goes_on)):
            monkeypatch.setattr(proxy.serving.rollout.canary, "schedules", lambda _, said=is_scheduled: said)
            answers.append(call(proxy, "ModelInfer", _step(sequence, value, flags)))
        assert [code for code, _ in answers] == [OK] * 3, answers
        parsed = [service_pb2.ModelInferResponse.FromString(answer).raw_output_contents[0] for _, answer in answers]
        assert [float(np.frombuffer(content, np.float32)[0]) for content in parsed] == [1, 3, 6]
        eventually(lambda: not proxy.engine.in_flight, "its slot to be free")
        assert proxy.engine.tally.answered == 1, "one of the two had a slot"
