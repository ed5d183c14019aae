"""An ensemble whose steps Tidegate schedules is answered as by Triton, and its steps are requests like any others."""

import http.client
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of, rest_of
from tests.proxy.fixtures.clients import tensors
from tests.proxy.fixtures.gate import Gate
from tests.proxy.fixtures.here import ProxyHere
from tidegate_proxy.service import graph_load
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.array([[1, 2, 3]], np.float32)
GRAPHS = ("chain", "branches", "behind_gate")
EXPANDED = {name: {"scheduling": "expanded"} for name in GRAPHS}


def _branches(array: Any, wanted: tuple[str, ...] = (), **fields: Any) -> Any:
    words = b"".join(len(word).to_bytes(4, "little") + word for word in (b"", b"two")) * len(array)
    message = request_of("branches", {"X": array}, **fields)
    message.inputs.add(name="WORDS", datatype="BYTES", shape=[len(array), 2])
    message.raw_input_contents.append(words)
    for name in wanted:
        message.outputs.add(name=name)
    return message


def _messages() -> dict[str, Any]:
    typed = request_of("chain", {"X": ROW}, id="typed")
    typed.raw_input_contents.pop()
    typed.inputs[0].contents.fp32_contents.extend([1, 2, 3])
    named = _branches(np.vstack((ROW, ROW)), id="named")
    named.parameters["timeout"].int64_param = 60_000_000
    named.parameters["flavor"].string_param = "sweet"
    sequence = request_of("chain", {"X": ROW})
    sequence.parameters["sequence_id"].int64_param = 7
    reserved = request_of("chain", {"X": ROW})
    reserved.parameters["triton_mine"].bool_param = True
    unknown = request_of("chain", {"X": ROW})
    unknown.outputs.add(name="Z")
    return {
        "chain": request_of("chain", {"X": ROW}, id="mine"),
        "typed contents": typed,
        "a version": request_of("chain", {"X": ROW}, model_version="1"),
        "no such version": request_of("chain", {"X": ROW}, model_version="7"),
        "branches": named,
        "one output": _branches(ROW, ("SAID",)),
        "outputs in another order": _branches(ROW, ("SUM", "LEFT")),
        "a step fails": request_of("chain", {"X": -ROW}, id="bad"),
        "a branch fails": _branches(-ROW),
        "a branch that nobody wants fails not": _branches(-ROW, ("SUM",)),
        "too many rows": request_of("chain", {"X": np.repeat(ROW, 9, 0)}, id="large"),
        "another type": request_of("chain", {"X": ROW.astype(np.int32)}),
        "an unknown output": unknown,
        "a sequence": sequence,
        "a reserved parameter": reserved,
    }


def _parsed(outcome: tuple[grpc.StatusCode, Any]) -> Any:
    code, said = outcome
    return service_pb2.ModelInferResponse.FromString(said) if code is grpc.StatusCode.OK else (code, said)


@pytest.fixture
def expanded(triton: EmbeddedTriton, serve_here: Make) -> Any:
    """A Tidegate that schedules the steps of ensembles."""
    address = {"grpc": triton.grpc_address, "http": triton.http_address}
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    return serve_here([triton], models=EXPANDED, tritons=[address], listen=listen)


def test_answers_and_errors_are_tritons(
    triton: EmbeddedTriton, expanded: ProxyHere, call: Make, open_stream: Make
) -> None:
    messages = _messages()
    for name, message in messages.items():
        theirs = _parsed(call(triton, "ModelInfer", message))
        for _ in range(2):  # the first one of a form bypasses
            assert _parsed(call(expanded, "ModelInfer", message)) == theirs, name
    stages = expanded.engine.tally.accepted
    assert stages >= 2 * 2 + 3 * 2, "stages were scheduled"
    several = [messages["chain"], messages["branches"], messages["a step fails"], messages["one output"]]
    refused = [messages["no such version"], messages["a reserved parameter"]]
    for asked in (several, *([each] for each in refused)):
        theirs, ours = (rest_of(open_stream(server, asked)) for server in (triton, expanded))
        assert ours == theirs
    assert expanded.engine.tally.accepted > stages


def test_answers_over_http_are_tritons(triton: EmbeddedTriton, expanded: ProxyHere) -> None:
    def answer(address: str, document: dict[str, Any]) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(address)
        connection.request("POST", "/v2/models/chain/infer", json.dumps(document))
        response = connection.getresponse()
        body = response.read()
        length = response.getheader("inference-header-content-length")
        connection.close()
        head, tail = (body, b"") if length is None else (body[: int(length)], body[int(length) :])
        return response.status, (json.loads(head), tail)

    row = {"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2]}
    for document in (
        {"id": "mine", "inputs": [row]},
        {"inputs": [row], "outputs": [{"name": "Y", "parameters": {"binary_data": True}}]},
        {"inputs": [{**row, "data": [-1, 2]}]},
        {"inputs": [row], "outputs": [{"name": "Y", "parameters": {"classification": 1}}]},
    ):
        theirs = answer(triton.http_address, document)
        for _ in range(2):
            assert answer(expanded.serving.http_address, document) == theirs
    assert expanded.engine.tally.accepted


def test_two_ensembles_share_the_batches_of_a_step(
    triton: EmbeddedTriton, expanded: ProxyHere, connect: Make, start_call: Make, call: Make, jam: Make
) -> None:
    messages = [request_of("chain", {"X": ROW}), _branches(ROW)]

    def counts() -> list[tuple[int, int]]:
        statistics = [connect(triton).get_inference_statistics(name).model_stats[0] for name in ("echo", "picky")]
        return [(each.inference_count, each.execution_count) for each in statistics]

    start = counts()
    for message in messages:
        call(expanded, "ModelInfer", message)
    eventually(lambda: all(now[0] >= was[0] + 2 for now, was in zip(counts(), start, strict=True)), "these to count")
    before, release = counts(), jam(expanded)
    calls = [start_call(expanded, "ModelInfer", message) for message in messages]
    eventually(lambda: expanded.engine.tally.accepted >= 3, "both requests to wait")
    release()
    assert [outcome(each)[0] for each in calls] == [grpc.StatusCode.OK] * 2
    eventually(lambda: counts()[1][0] >= before[1][0] + 2, "Triton to count what it has answered")
    eventually(lambda: counts()[0][1] > before[0][1], "Triton to count the execution")
    assert counts()[0] == (before[0][0] + 2, before[0][1] + 1), "the first step ran both requests at once"
    # The ensembles count their requests, the steps those of both: what perf_analyzer reads.
    ours = {each.name: each for each in connect(expanded).get_inference_statistics().model_stats}
    assert [ours[name].inference_stats.success.count for name in ("chain", "branches", "echo")] == [2, 2, 4]


def test_a_client_that_leaves_takes_all_stages_along(
    expanded: ProxyHere, start_call: Make, call: Make, gate: Gate
) -> None:
    message = request_of("behind_gate", {"X": ROW})
    gate.open()
    assert call(expanded, "ModelInfer", message)[0] is grpc.StatusCode.OK
    gate.shut()
    under_way = start_call(expanded, "ModelInfer", message)
    eventually(gate.somebody_waits, "the first stage to run")
    under_way.cancel()
    eventually(lambda: expanded.engine.tally.cancelled == 1, "the stage to be cancelled")
    gate.open()
    eventually(lambda: not expanded.engine.in_flight, "the stage to end")
    assert expanded.engine.tally.accepted == 1
    counts = expanded.in_loop(
        lambda: expanded.serving.driver.observability.metrics.counts.models["behind_gate"].cancelled
    )
    assert counts == 1


def test_one_deadline_for_all_stages(
    triton: EmbeddedTriton, serve_here: Make, start_call: Make, call: Make, gate: Gate, tmp_path: Path
) -> None:
    models = {name: {"scheduling": "expanded", "slo_ms": 600_000} for name in GRAPHS}
    tidegate = serve_here([triton], models=models, event_log=str(tmp_path / "events"))
    slow, fresh = (request_of(name, {"X": ROW}) for name in ("behind_gate", "chain"))
    gate.open()
    for message in (slow, fresh):
        assert call(tidegate, "ModelInfer", message)[0] is grpc.StatusCode.OK
    gate.shut()
    calls = [start_call(tidegate, "ModelInfer", slow)]
    eventually(gate.somebody_waits, "the first stage to run")
    calls.append(start_call(tidegate, "ModelInfer", fresh))
    eventually(lambda: tidegate.engine.tally.accepted == 2, "the other request to wait")
    gate.open()
    assert [outcome(each)[0] for each in calls] == [grpc.StatusCode.OK] * 2
    hopeless = request_of("chain", {"X": ROW})
    hopeless.parameters["slo_ms"].int64_param = 0
    assert call(tidegate, "ModelInfer", hopeless) == (
        grpc.StatusCode.UNAVAILABLE,
        "in ensemble 'chain', Request timeout expired",
    )
    tidegate.stop()
    arrived = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines() if "RequestArrived" in line]
    requests = [each["event"]["request"] if "event" in each else each["request"] for each in arrived]
    due = {
        model: [each["deadline_ns"] for each in requests if each["model"] == model]
        for model in ("gated", "echo", "picky")
    }
    first, second = sorted(due["picky"])
    assert due["gated"][0] < first, "the first stage leaves time for the second"
    assert due["echo"][0] < second
    assert first < second, "the older request is due first, however long its first stage took"


def test_a_graph_of_the_configuration_is_a_model_like_others(
    triton: EmbeddedTriton, serve_here: Make, connect: Make, call: Make
) -> None:
    steps = [
        {"model": "echo", "input_map": {"X": "IN"}, "output_map": {"Y": "between"}},
        {"model": "picky", "version": 1, "input_map": {"X": "between"}, "output_map": {"Y": "LEFT"}},
        {"model": "echo", "input_map": {"X": "between"}, "output_map": {"Y": "RIGHT"}},
    ]
    graph = {"inputs": ["IN"], "outputs": ["RIGHT", "LEFT"], "steps": steps}
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    address = {"grpc": triton.grpc_address, "http": triton.http_address}
    tidegate = serve_here([triton], graphs={"both": graph}, tritons=[address], listen=listen)
    client = connect(tidegate)
    assert client.is_model_ready("both")
    metadata = client.get_model_metadata("both")
    assert [tensor.name for tensor in (*metadata.inputs, *metadata.outputs)] == ["IN", "RIGHT", "LEFT"]
    assert len(client.get_model_config("both").config.ensemble_scheduling.step) == 3
    assert "both" in {model.name for model in client.get_model_repository_index().models}
    answer = client.infer("both", tensors({"IN": ROW}), request_id="mine")
    assert (answer.get_response().id, answer.get_response().model_version) == ("mine", "1")
    assert [output.name for output in answer.get_response().outputs] == ["RIGHT", "LEFT"]
    assert answer.as_numpy("RIGHT").tolist() == answer.as_numpy("LEFT").tolist() == ROW.tolist()
    code, words = call(tidegate, "ModelInfer", request_of("both", {"IN": -ROW}))
    assert words.startswith("in ensemble 'both', ")
    assert code is grpc.StatusCode.INTERNAL
    code, words = call(tidegate, "ModelInfer", request_of("both", {"X": ROW}))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words.startswith("graph 'both' is run by Tidegate, and this request cannot be scheduled: input 'X' is not")
    connection = http.client.HTTPConnection(tidegate.serving.http_address)
    for method, path, body, status in (
        ("GET", "/v2/models/both", "", 200),
        ("GET", "/v2/models/echo", "", 200),
        ("POST", "/v2/repository/index", "", 200),
        ("POST", "/v2/models/both/infer", '{"inputs": []}', 400),
    ):
        connection.request(method, path, body)
        response = connection.getresponse()
        assert (path, response.status) == (path, status)
        assert (b"both" in response.read()) == ("echo" not in path)
    connection.close()
    (counts,) = client.get_inference_statistics("both").model_stats
    succeeded, failed = counts.inference_stats.success.count, counts.inference_stats.fail.count
    assert (succeeded, failed, counts.execution_count) == (1, 1, 1), "as at Triton, what cannot be run is no failure"
    states = tidegate.serving._inference._graphs._states["both"]
    remembered = len(states.headers), len(states.needed)
    for number in range(3):
        message = request_of("both", {"IN": ROW})
        message.parameters["note"].string_param = str(number) * 100_000
        for name in ("LEFT", "RIGHT") * (number + 2):
            message.outputs.add(name=name)
        assert call(tidegate, "ModelInfer", message)[0] is grpc.StatusCode.OK
    assert (len(states.headers), len(states.needed)) == remembered, "clients choose how large they are, and how many"


def test_auto_expands_while_requests_wait_for_each_other(
    triton: EmbeddedTriton, serve_here: Make, start_call: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_load, "LOAD_WINDOW_NS", 1)  # the mean is what is in flight just now
    tidegate = serve_here([triton], models={name: {"scheduling": "auto"} for name in GRAPHS})
    message = request_of("behind_gate", {"X": ROW})

    def passing() -> int:
        backends = tidegate.serving._directory.catalog.loaded
        return sum(backend.in_flight_by_model.get("behind_gate", 0) for backend in backends)

    gate.open()
    for _ in range(3):
        assert outcome(start_call(tidegate, "ModelInfer", message))[0] is grpc.StatusCode.OK
    assert not tidegate.engine.tally.accepted, "at light load all of them bypass"
    gate.shut()
    calls: list[Any] = []
    while not tidegate.engine.tally.accepted:
        calls.append(start_call(tidegate, "ModelInfer", message))
        eventually(lambda: tidegate.engine.tally.accepted or passing() == len(calls), "the request to arrive")
        assert len(calls) < 20, "many wait, and none is expanded"
    assert len(calls) > 1, "the first one found nothing in flight"
    gate.open()
    answers = [outcome(each) for each in calls]
    assert [code for code, _ in answers] == [grpc.StatusCode.OK] * len(calls)
    assert len({str(_parsed(each)) for each in answers}) == 1


def test_a_stage_whose_model_is_being_unloaded_bypasses(
    triton: EmbeddedTriton, expanded: ProxyHere, start_call: Make, call: Make, gate: Gate
) -> None:
    message = request_of("behind_gate", {"X": ROW})
    gate.open()
    expected = _parsed(call(expanded, "ModelInfer", message))
    gate.shut()
    under_way = start_call(expanded, "ModelInfer", message)
    eventually(gate.somebody_waits, "the first stage to run")
    directory = expanded.serving._directory
    backend, unloading = next(iter(directory.catalog.loaded)), ExitStack()
    expanded.in_loop(lambda: unloading.enter_context(directory.unloading("picky", backend)))
    gate.open()
    assert _parsed(outcome(under_way)) == expected
    assert _parsed(call(expanded, "ModelInfer", message)) == expected, "meanwhile the whole ensemble bypasses"
    assert expanded.engine.tally.accepted == 1, "of all stages only the first one was scheduled"
    expanded.in_loop(unloading.close)
