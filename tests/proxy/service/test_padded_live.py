"""Requests of near shapes in one padded batch on a real Triton, whichever way they come; and those that stay alone."""

import asyncio
import json
import logging
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.models import add_model
from tests.python_models import write_model
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.tritons.backend import BackendError
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_proxy.tritons.shared_memory import REGION_PREFIX

Make = Callable[..., Any]
CONFIG = """
backend: "python"
max_batch_size: 16
input { name: "X" data_type: TYPE_FP32 dims: [ 2, -1 ] }
output { name: "HALF" data_type: TYPE_FP32 dims: [ -1, 2 ] }
output { name: "SEEN" data_type: TYPE_INT32 dims: [ 2 ] }
output { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""
# Every second column, times two; how many rows it ran with, and how wide; a word about the first column.
SOURCE = """
import time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb.get_input_tensor_by_name(request, "X").as_numpy()
            while (x == 666).any() and not Path("GATE").exists():
                Path("GATE").with_name("entered").touch()
                time.sleep(0.002)
            outputs = {
                "HALF": np.ascontiguousarray(2 * x[:, :, ::2].transpose(0, 2, 1)),
                "SEEN": np.array([[x.shape[0], x.shape[2]]] * len(x), np.int32),
                "WORD": np.array([[b"%d" % row[0, 0]] for row in x], dtype=object),
            }
            wanted = request.requested_output_names()
            tensors = [pb.Tensor(name, value) for name, value in outputs.items() if name in wanted]
            answers.append(pb.InferenceResponse(tensors))
        return answers
"""
PAD = {"sizes": [8, 16, 30_000], "value": -7, "outputs": {"HALF": {"stride": 2}}}
"""HALF has the half of the columns, rounded up."""


class Jam:
    """Keeps the one worker of a Tidegate busy, so that what comes meanwhile shares batches."""

    def __init__(self, folder: Path) -> None:
        self.gate = folder / "gate"

    @contextmanager
    def __call__(self, here: Any) -> Iterator[None]:
        """Until as many requests wait as the block sends."""
        self.gate.unlink(missing_ok=True)
        self.gate.with_name("entered").unlink(missing_ok=True)
        with triton_grpc.InferenceServerClient(here.address) as client, ThreadPoolExecutor(1) as pool:
            first = pool.submit(client.infer, "steps", [tensor(np.full((1, 2, 8), 666, np.float32))])
            try:
                eventually(self.gate.with_name("entered").exists, "the worker to be busy")
                yield
            finally:
                self.gate.touch()
            first.result()


@pytest.fixture(scope="module")
def jam(tmp_path_factory: pytest.TempPathFactory) -> Jam:
    return Jam(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="module")
def repository(jam: Jam, tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository: Path = tmp_path_factory.mktemp("padded")
    write_model(repository, "steps", SOURCE.replace("GATE", str(jam.gate)), CONFIG)
    return repository


@pytest.fixture(scope="module")
def stepping(start_triton: Make, repository: Path) -> EmbeddedTriton:
    """A Triton with a model whose output is half as long as its input."""
    server: EmbeddedTriton = start_triton([repository])
    return server


@pytest.fixture
def padding(serve_here: Make, stepping: EmbeddedTriton) -> Any:
    """A Tidegate in front of it that pads."""
    return serve_here(
        [],
        tritons=[{"grpc": stepping.grpc_address, "http": stepping.http_address}],
        listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "metrics": "127.0.0.1:0"},
        models={"steps": {"merge": {"pad": PAD}}},
    )


def array(columns: int, rows: int = 1) -> Any:
    return 1 + np.arange(rows * 2 * columns, dtype=np.float32).reshape(rows, 2, columns)


def tensor(x: Any, kind: Any = triton_grpc, **options: Any) -> Any:
    given = kind.InferInput("X", x.shape, "FP32")
    given.set_data_from_numpy(x, **options)
    return given


def check(answer: Any, x: Any) -> tuple[int, int]:
    """Whether it is what the model answers to this; with how many rows it ran, and how wide."""
    np.testing.assert_array_equal(answer.as_numpy("HALF"), 2 * x[:, :, ::2].transpose(0, 2, 1))
    assert [int(word) for (word,) in answer.as_numpy("WORD")] == [int(row[0, 0]) for row in x]
    seen = answer.as_numpy("SEEN")
    assert len(seen) == len(x)
    assert len({tuple(row) for row in seen}) == 1
    return int(seen[0][0]), int(seen[0][1])


def id_of(answer: Any) -> str:
    response = answer.get_response()
    return str(response["id"] if isinstance(response, dict) else response.id)


def over_grpc(here: Any, x: Any) -> Any:
    with triton_grpc.InferenceServerClient(here.address) as client:
        return client.infer("steps", [tensor(x)], request_id="mine")


def over_a_stream(here: Any, x: Any) -> Any:
    answers: list[Any] = []
    with triton_grpc.InferenceServerClient(here.address) as client:
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer("steps", [tensor(x)], request_id="mine")
        client.stop_stream()
    return answers[0]


def over_http(binary: bool) -> Make:
    def ask(here: Any, x: Any) -> Any:
        with triton_http.InferenceServerClient(here.serving.http_address) as client:
            outputs = [triton_http.InferRequestedOutput(name, binary) for name in ("WORD", "SEEN", "HALF")]
            given = tensor(x, triton_http, binary_data=binary)
            return client.infer("steps", [given], outputs=outputs, request_id="mine")

    return ask


WAYS = {"gRPC": over_grpc, "stream": over_a_stream, "HTTP, JSON": over_http(False), "HTTP, binary": over_http(True)}


def test_near_shapes_share_a_batch_whichever_way_they_come(padding: Any, jam: Jam) -> None:
    sent = [(way, array(columns, rows)) for way in WAYS for columns, rows in ((9, 1), (13, 2), (16, 1))]
    for half in (sent[::2], sent[1::2]):
        with ThreadPoolExecutor(len(half)) as pool:
            with jam(padding):
                answers = [pool.submit(WAYS[way], padding, x) for way, x in half]
                eventually(lambda: padding.engine.queued == len(half), "all of them to wait")  # noqa: B023
            ran = {check(answer.result(), x) for answer, (_, x) in zip(answers, half, strict=True)}
        assert ran == {(sum(len(x) for _, x in half), 16)}, "all in one batch"
        assert {id_of(answer.result()) for answer in answers} == {"mine"}


@pytest.mark.parametrize("way", WAYS)
def test_each_alone_runs_in_the_next_larger_shape_or_in_its_own(padding: Any, way: str) -> None:
    ran = {columns: check(WAYS[way](padding, array(columns)), array(columns)) for columns in (1, 7, 8, 9, 30_001)}
    assert ran == {1: (1, 8), 7: (1, 8), 8: (1, 8), 9: (1, 16), 30_001: (1, 30_001)}


def test_a_request_that_is_only_bytes(padding: Any) -> None:
    x = array(5)
    url = f"http://{padding.serving.http_address}/v2/models/steps/infer"
    answer = requests.post(url, x.tobytes(), headers={"Inference-Header-Content-Length": "0"}, timeout=60)
    size = int(answer.headers["Inference-Header-Content-Length"])
    document = json.loads(answer.content[:size])
    outputs = {output["name"]: output for output in document["outputs"]}
    assert outputs["HALF"]["shape"] == [1, 3, 2]
    assert outputs["HALF"]["parameters"]["binary_data_size"] == 24
    assert len(answer.content) - size == sum(each["parameters"]["binary_data_size"] for each in outputs.values())


def test_only_the_outputs_that_were_asked_for(padding: Any, jam: Jam) -> None:
    def ask(columns: int, names: list[str]) -> Any:
        with triton_grpc.InferenceServerClient(padding.address) as client:
            outputs = [triton_grpc.InferRequestedOutput(name) for name in names]
            return client.infer("steps", [tensor(array(columns))], outputs=outputs)

    with ThreadPoolExecutor(3) as pool:
        with jam(padding):
            asked = ((3, ["SEEN"]), (5, ["HALF"]), (7, ["WORD", "HALF"]))
            answers = [pool.submit(ask, columns, names) for columns, names in asked]
            eventually(lambda: padding.engine.queued == 3, "all of them to wait")
        seen, half, both = (answer.result() for answer in answers)
    assert [[output.name for output in each.get_response().outputs] for each in (seen, half)] == [["SEEN"], ["HALF"]]
    np.testing.assert_array_equal(seen.as_numpy("SEEN"), [[3, 8]])
    assert list(half.get_response().outputs[0].shape) == [1, 3, 2]
    np.testing.assert_array_equal(both.as_numpy("HALF"), 2 * array(7)[:, :, ::2].transpose(0, 2, 1))


def test_large_tensors_go_through_memory_that_is_shared_with_the_triton(padding: Any, stepping: EmbeddedTriton) -> None:
    arrays = [array(20_000 + 7 * number, 1 + number % 2) for number in range(12)]
    for _ in range(3):
        with ThreadPoolExecutor(6) as pool:
            for x, answer in zip(arrays, pool.map(lambda x: over_grpc(padding, x), arrays), strict=True):
                assert check(answer, x)[1] == 30_000
    with triton_grpc.InferenceServerClient(stepping.grpc_address) as client:
        assert any(name.startswith(REGION_PREFIX) for name in client.get_system_shared_memory_status().regions)


def test_shared_memory_of_clients_goes_as_it_came_and_typed_contents_are_padded(padding: Any, call: Make) -> None:
    x = array(5)
    message = service_pb2.ModelInferRequest(model_name="steps")
    message.inputs.add(name="X", datatype="FP32", shape=x.shape).contents.fp32_contents.extend(x.flatten())
    code, answer = call(padding, "ModelInfer", message)
    assert code is grpc.StatusCode.OK
    assert check(triton_grpc.InferResult(service_pb2.ModelInferResponse.FromString(answer)), x) == (1, 8)
    region = shm.create_shared_memory_region("padded", "/padded_live", x.nbytes + 24)
    try:
        shm.set_shared_memory_region(region, [x])
        with triton_grpc.InferenceServerClient(padding.address) as client:
            client.register_system_shared_memory("padded", "/padded_live", x.nbytes + 24)
            there = triton_grpc.InferInput("X", x.shape, "FP32")
            there.set_shared_memory("padded", x.nbytes)
            half = triton_grpc.InferRequestedOutput("HALF")
            half.set_shared_memory("padded", 24, x.nbytes)
            others = [triton_grpc.InferRequestedOutput(name) for name in ("SEEN", "WORD")]
            for given, wanted in ((there, []), (tensor(x), [half, *others])):
                result = client.infer("steps", [given], outputs=wanted or None)
                np.testing.assert_array_equal(result.as_numpy("SEEN"), [[1, 5]])
            written = shm.get_contents_as_numpy(region, np.float32, (1, 3, 2), x.nbytes)
            np.testing.assert_array_equal(written, 2 * x[:, :, ::2].transpose(0, 2, 1))
            client.unregister_system_shared_memory("padded")
    finally:
        shm.destroy_shared_memory_region(region)


def test_every_client_sees_the_shape_in_which_it_ran(padding: Any) -> None:
    for columns in (3, 5, 8, 12, 30_001):
        over_grpc(padding, array(columns))
    page = f"http://{padding.serving.metrics_address}"
    with urllib.request.urlopen(f"{page}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    counts = {
        line.partition('shape="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("tidegate_shape_request_duration_seconds_count")
    }
    padded = dict(line.rsplit(" ", 1) for line in lines if line.startswith("tidegate_padded"))
    assert padded == {
        'tidegate_padded_rows_total{model="steps"}': "3.0",
        'tidegate_padded_elements_total{model="steps",part="sent"}': str(2.0 * (3 + 5 + 12)),
        'tidegate_padded_elements_total{model="steps",part="added"}': str(2.0 * (5 + 3 + 4)),
    }
    assert counts == {"X:2,8": 3, "X:2,16": 1, "X:2,30001": 1}
    with urllib.request.urlopen(f"{page}/models", timeout=60) as answer:
        (model,) = json.load(answer)
    assert set(model["shapes"]) == {"X:2,8", "X:2,16", "X:2,30001"}
    with triton_grpc.InferenceServerClient(padding.address) as client:
        (statistics,) = client.get_inference_statistics("steps").model_stats
    assert (statistics.inference_count, statistics.inference_stats.success.count) == (5, 5)


def test_two_tritons(serve_here: Make, start_triton: Make, stepping: EmbeddedTriton, repository: Path) -> None:
    tritons = [stepping, start_triton([repository])]
    here = serve_here(tritons, models={"steps": {"merge": {"pad": PAD}}})
    assert len(here.serving.catalog.workers) == 2
    arrays = [array(1 + number % 16, 1 + number % 3) for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        for x, answer in zip(arrays, pool.map(lambda x: over_grpc(here, x), arrays), strict=True):
            assert check(answer, x)[1] == (8 if x.shape[2] <= 8 else 16)


def reconfigure(here: Any, **models: Any) -> None:
    config = here.serving.config.model_dump(mode="json", exclude_unset=True)
    changed = ServeConfig.model_validate_json(json.dumps({**config, "models": models}))
    asyncio.run_coroutine_threadsafe(here.serving.reconfigure(changed), here.loop).result(60)


def test_it_may_be_switched_on_changed_and_off_while_it_runs(
    serve_here: Make, stepping: EmbeddedTriton, jam: Jam, caplog: pytest.LogCaptureFixture
) -> None:
    here = serve_here([stepping])
    assert check(over_grpc(here, array(5)), array(5)) == (1, 5)
    reconfigure(here, steps={"merge": {"pad": PAD}})
    assert check(over_grpc(here, array(5)), array(5)) == (1, 8)
    with pytest.raises(BackendError, match=r"models.steps.merge.pad.0.input: the model has no input 'Z'; it has 'X'"):
        reconfigure(here, steps={"merge": {"pad": {**PAD, "input": "Z"}}})
    assert check(over_grpc(here, array(5)), array(5)) == (1, 8), "a change that makes no sense changes nothing"
    with ThreadPoolExecutor(2) as pool:
        with jam(here):
            waiting = [pool.submit(over_grpc, here, array(columns)) for columns in (5, 6)]
            eventually(lambda: here.engine.queued == 2, "both to wait")
            reconfigure(here, steps={"merge": {"pad": {**PAD, "sizes": [6]}}})
            waiting.append(pool.submit(over_grpc, here, array(5)))
        ran = [check(each.result(), array(columns)) for each, columns in zip(waiting, (5, 6, 5), strict=True)]
    assert ran == [(2, 8), (2, 8), (1, 6)], "who came before runs as it was to"
    reconfigure(here)
    assert check(over_grpc(here, array(5)), array(5)) == (1, 5)
    assert "nothing is padded" not in caplog.text


def test_what_is_said_wrongly_of_an_output_is_told_and_harms_no_other_client(
    serve_here: Make, stepping: EmbeddedTriton
) -> None:
    here = serve_here([stepping], models={"steps": {"merge": {"pad": {**PAD, "outputs": {"HALF": {"stride": 1}}}}}})
    words = (
        r"'HALF' of the padded request is FP32 of shape \[1, 4, 2\], where models.steps.merge.pad says that axis 1 is 8"
    )
    with pytest.raises(InferenceServerException, match=words):
        over_grpc(here, array(5))
    assert check(over_grpc(here, array(8)), array(8)) == (1, 8)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("counter", "sequence_batching: requests of one sequence belong to one instance"),
        ("repeater", "decoupled: a request may have any number of responses"),
        ("chain", "ensemble: its steps are scheduled by Triton"),
        ("flat", "max_batch_size is 0"),
    ],
)
def test_where_nothing_is_merged_it_is_refused(
    triton: EmbeddedTriton, serve_here: Make, model: str, words: str
) -> None:
    said = {model: {"scheduling": "batched", "merge": {"pad": [8]}}}
    with pytest.raises(
        BackendError, match=rf"models.{model}.merge.pad: its requests share no batches \({words}.*leave it"
    ):
        serve_here([triton], models=said)


def test_a_model_that_no_triton_has_is_not_padded(triton: EmbeddedTriton, serve_here: Make) -> None:
    with pytest.raises(
        BackendError, match=r"scheduling, max_concurrency or merge.pad is set for nope, which no Triton has"
    ):
        serve_here([triton], models={"nope": {"merge": {"pad": [8]}}})


def test_an_ensemble_with_a_padded_model_among_its_steps(triton: EmbeddedTriton, serve_here: Make, call: Make) -> None:
    """Its steps are Triton's: nothing of it is padded, and it is answered as ever."""
    here = serve_here([triton], models={"echo": {"merge": {"pad": {"sizes": [8], "outputs": {"Y": {"stride": 1}}}}}})
    x = np.ones((1, 3), np.float32)
    for model in ("chain", "echo"):
        code, answer = call(here, "ModelInfer", request_of(model, {"X": x}))
        assert code is grpc.StatusCode.OK
        response = service_pb2.ModelInferResponse.FromString(answer)
        assert (list(response.outputs[0].shape), response.raw_output_contents[0]) == ([1, 3], x.tobytes())


def test_a_model_that_becomes_another_is_not_padded_and_that_is_said(
    start_triton: Make, serve_here: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    add_model(tmp_path, "echo", "max_batch_size: 4")
    triton = start_triton([tmp_path], options=["--model-control-mode=explicit", "--load-model=*"])
    here = serve_here([triton], models={"echo": {"merge": {"pad": {"sizes": [8], "outputs": {"Y": {"stride": 1}}}}}})
    assert here.serving.catalog.signatures["echo"].padding
    config = tmp_path / "echo" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "Y"', 'name: "Z"'))
    with triton_grpc.InferenceServerClient(here.address) as client:
        client.load_model("echo")
        eventually(lambda: not here.serving.catalog.signatures["echo"].padding, "the new form to be taken up")
        given = triton_grpc.InferInput("X", (1, 3), "FP32")
        given.set_data_from_numpy(np.ones((1, 3), np.float32))
        np.testing.assert_array_equal(client.infer("echo", [given]).as_numpy("Z"), [[1, 1, 1]])
    assert (
        "attention: nothing is padded: models.echo.merge.pad.0.outputs: the model has no output 'Y'; it has 'Z'"
        in caplog.text
    )
