"""A model in two partitions on several Tritons: clients see one model, and its answers are those of the whole."""

import json
import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import typer
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

from tests.conftest import UNHURRIED, eventually
from tests.proxy.fixtures.split_model import infer, write_config
from tests.python_models import write_model
from tidegate_proxy.commands.doctor import doctor
from tidegate_proxy.tritons.embedded import EmbeddedTriton

HEAD = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "HALF" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "SIGN" data_type: TYPE_STRING dims: [ 1 ] }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""
TAIL = """
backend: "python"
max_batch_size: 4
input { name: "HALF" data_type: TYPE_FP32 dims: [ -1 ] }
input { name: "SIGN" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""
HEAD_MODEL = """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb.get_input_tensor_by_name(request, "X").as_numpy()
            if (x == 666).any():
                answers.append(pb.InferenceResponse(error=pb.TritonError("evil")))
                continue
            sign = np.array([[b"+" if row[0] > 0 else b"-"] for row in x], dtype=object)
            answers.append(pb.InferenceResponse([pb.Tensor("HALF", x / 2), pb.Tensor("SIGN", sign)]))
        return answers
"""
TAIL_MODEL = """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            half = pb.get_input_tensor_by_name(request, "HALF").as_numpy()
            if (half == 13).any():
                answers.append(pb.InferenceResponse(error=pb.TritonError("unlucky")))
                continue
            said = pb.get_input_tensor_by_name(request, "SIGN").as_numpy()
            outputs = [pb.Tensor("Y", half + 1), pb.Tensor("SAID", said)]
            wanted = request.requested_output_names()
            answers.append(pb.InferenceResponse([tensor for tensor in outputs if tensor.name() in wanted]))
        return answers
"""
LAYOUT: dict[str, Any] = {
    "models": [
        {"name": "m", "slo_ms": 10_000, "pipelines": [{"partitions": ["m.0-3", "m.3-5"], "batch": 4}]},
    ],
    "partitions": [
        {"name": "m.0-3", "model": "m", "blocks": [0, 3], "bytes_per_row": 1000, "latency_ms": {"slow": [2, 3, 4, 5]}},
        {"name": "m.3-5", "model": "m", "blocks": [3, 5], "latency_ms": {"fast": [1, 1.5, 2, 2.5]}},
    ],
    "workers": [
        {"name": "slow-0", "device": {"node": "a", "id": 0, "product": "slow"}, "hosts": ["m.0-3"]},
        {"name": "slow-1", "device": {"node": "a", "id": 1, "product": "slow"}, "hosts": ["m.0-3"]},
        {"name": "fast-0", "device": {"node": "a", "id": 2, "product": "fast"}, "hosts": ["m.3-5"]},
    ],
}
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each device class."""
    folder = tmp_path_factory.mktemp("partitions")
    for kind, name, config, source in (
        ("slow", "m.0-3", HEAD, HEAD_MODEL),
        ("fast", "m.3-5", TAIL, TAIL_MODEL),
    ):
        write_model(folder / kind, name, source, config)
    return {kind: folder / kind for kind in ("slow", "fast")}


@pytest.fixture(scope="module")
def tritons(start_triton: Make, repositories: dict[str, Path]) -> dict[str, EmbeddedTriton]:
    """By the worker that each is."""
    return {name: start_triton([repositories[name.partition("-")[0]]]) for name in ("slow-0", "slow-1", "fast-0")}


@pytest.fixture(scope="module")
def tidegate(tritons: dict[str, EmbeddedTriton], start_tidegate: Make, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """in front of all three."""
    listen = {**UNHURRIED["listen"], "http": "127.0.0.1:0"}
    config = write_config(tmp_path_factory.mktemp("config"), tritons, LAYOUT, **{**UNHURRIED, "listen": listen})
    return start_tidegate([], config=config)


def http_address(tidegate: Any) -> str:
    found = re.search(r"HTTP +(\S+)\n", tidegate.output)
    assert found, tidegate.output
    return found[1]


def check(answer: Any, x: "np.ndarray[Any, Any]") -> None:
    np.testing.assert_array_equal(answer.as_numpy("Y"), x.astype(np.float32) / 2 + 1)
    assert answer.as_numpy("SAID").tolist() == [[b"+" if row[0] > 0 else b"-"] for row in x]


@pytest.mark.parametrize("width", [3, 40_000], ids=["sent", "shared"])
def test_the_answer_is_that_of_the_whole_model(tidegate: Any, connect: Make, width: int) -> None:
    client = connect(tidegate)
    for index in range(6):
        x = np.random.default_rng(index).normal(size=(1 + index % 4, width))
        answer = infer(client, x, request_id=f"request {index}")
        check(answer, x.astype(np.float32))
        response = answer.get_response()
        assert (response.id, response.model_name, response.model_version) == (f"request {index}", "m", "1")


def test_many_clients_share_batches(
    tidegate: Any, tritons: dict[str, EmbeddedTriton], connect: Make, stand_still: Make
) -> None:
    """Whether their tensors are sent or shared."""
    client, counting = connect(tidegate), connect(tritons["fast-0"])

    def executions() -> int:
        (counted,) = counting.get_inference_statistics("m.3-5").model_stats
        return int(counted.execution_count)

    def ask(index: int, width: int) -> None:
        x = np.full((1, width), index - 30.0)
        outputs = None if index % 3 else [triton_grpc.InferRequestedOutput("Y")]
        answer = infer(client, x, outputs=outputs)
        np.testing.assert_array_equal(answer.as_numpy("Y"), x / 2 + 1)
        assert (answer.as_numpy("SAID") is None) == (index % 3 == 0)

    for width in (3, 40_000):
        before, go_on = executions(), stand_still(*tritons.values())
        with ThreadPoolExecutor(24) as pool:
            asked = [pool.submit(ask, number, width) for number in range(24)]
            eventually(lambda: tidegate.queued("m") >= 12, "requests to queue while the Tritons stand still")
            go_on()
            for one in asked:
                one.result()
        assert executions() - before < 24, "nothing was merged"


def test_the_doctor_sees_one_model_and_holds_its_slo_against_the_layout(
    tritons: dict[str, EmbeddedTriton], tmp_path: Path
) -> None:
    app = typer.Typer()
    app.command()(doctor)
    said = {}
    for slo_ms in (500, 2.5):
        path = write_config(tmp_path, tritons, LAYOUT, models={"m": {"slo_ms": slo_ms}})
        said[slo_ms] = json.loads(CliRunner().invoke(app, [str(path), "--json"]).stdout)
    (model,) = said[500]["models"]
    assert (model["name"], model["scheduling"], model["workers"], model["kinds"]) == (
        "m",
        "batched",
        3,
        ["fast", "slow"],
    )
    assert [row["expected_ms"] for row in model["one_row"]] == [3.0]
    assert said[500]["findings"] == []
    (finding,) = said[2.5]["findings"]
    assert finding["severity"] == "error"
    assert "2.5 ms are less than the 3 ms that one row takes (the layout, without links)" in finding["what"]


def test_clients_see_one_model(tidegate: Any, connect: Make) -> None:
    client = connect(tidegate)
    assert client.is_model_ready("m")
    assert [(model.name, model.state) for model in client.get_model_repository_index().models] == [("m", "READY")]
    metadata = client.get_model_metadata("m")
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [("X", "FP32", [-1, -1])]
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.outputs] == [
        ("Y", "FP32", [-1, -1]),
        ("SAID", "BYTES", [-1, 1]),
    ]
    config = client.get_model_config("m").config
    assert (config.name, config.max_batch_size, [output.name for output in config.output]) == ("m", 4, ["Y", "SAID"])
    infer(client, np.ones((2, 3)))
    (counted,) = client.get_inference_statistics().model_stats
    assert (counted.name, counted.version) == ("m", "1")
    assert counted.inference_count >= 2
    assert client.get_inference_statistics("m").model_stats[0].inference_stats.success.count >= 1


def test_over_http_too(tidegate: Any) -> None:
    client = triton_http.InferenceServerClient(http_address(tidegate))
    try:
        assert client.is_model_ready("m")
        assert client.get_model_metadata("m")["outputs"][0] == {"name": "Y", "datatype": "FP32", "shape": [-1, -1]}
        assert client.get_model_config("m")["max_batch_size"] == 4
        assert [model["name"] for model in client.get_model_repository_index()] == ["m"]
        tensor = triton_http.InferInput("X", [1, 3], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
        assert client.infer("m", [tensor]).as_numpy("Y").tolist() == [[1.5] * 3]
    finally:
        client.close()
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [4, 6]}]}).encode()
    with urllib.request.urlopen(f"http://{http_address(tidegate)}/v2/models/m/infer", body) as response:
        assert json.load(response)["outputs"][0]["data"] == [3, 4]


@pytest.mark.parametrize(("value", "words"), [(666, "evil"), (26, "unlucky")], ids=["first stage", "second stage"])
def test_a_request_that_fails_takes_no_other_with_it(tidegate: Any, connect: Make, value: float, words: str) -> None:
    client = connect(tidegate)

    def ask(index: int) -> str:
        try:
            check(infer(client, np.full((1, 3), value if index % 5 == 0 else float(index))), np.full((1, 3), index))
        except InferenceServerException as error:
            return str(error.message())
        return ""

    with ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(ask, range(20)))
    assert all((words in outcome) if index % 5 == 0 else not outcome for index, outcome in enumerate(outcomes)), (
        outcomes
    )


@pytest.mark.parametrize("width", [3, 40_000], ids=["sent", "shared"])
def test_a_partition_that_is_all_of_a_pipeline(
    tritons: dict[str, EmbeddedTriton], start_tidegate: Make, connect: Make, tmp_path: Path, width: int
) -> None:
    layout = deepcopy(LAYOUT)
    layout["models"][0]["pipelines"] = [{"partitions": ["m.0-3"], "batch": 4}]
    layout["partitions"], layout["workers"] = layout["partitions"][:1], layout["workers"][:2]
    config = write_config(tmp_path, {name: tritons[name] for name in ("slow-0", "slow-1")}, layout)
    client = connect(start_tidegate([], config=config))
    for rows in (1, 2, 4):
        x = np.ones((rows, width), np.float32)
        answer = infer(client, x)
        np.testing.assert_array_equal(answer.as_numpy("HALF"), x / 2)
        assert answer.get_response().model_name == "m"


def test_what_cannot_be_split_is_refused(tidegate: Any, connect: Make) -> None:
    client = connect(tidegate)
    with pytest.raises(InferenceServerException, match="model 'm' is split over several Tritons") as refused:
        infer(client, np.ones((1, 3)), sequence_id=3, sequence_start=True)
    assert refused.value.status() == str(grpc.StatusCode.INVALID_ARGUMENT)
    assert "it belongs to a sequence" in str(refused.value)
    with pytest.raises(InferenceServerException, match=r"cannot go through them: its rows .* exceed max_batch_size, 4"):
        infer(client, np.ones((5, 3)))


@contextmanager
def mortal(start_triton: Make, repository: Path) -> Iterator[EmbeddedTriton]:
    triton = start_triton([repository])
    try:
        yield triton
    finally:
        triton.stop()


def test_a_pool_that_loses_a_worker_goes_on_with_the_rest(
    tritons: dict[str, EmbeddedTriton],
    start_triton: Make,
    start_tidegate: Make,
    repositories: dict[str, Path],
    connect: Make,
    tmp_path: Path,
) -> None:
    with mortal(start_triton, repositories["slow"]) as other:
        config = write_config(tmp_path, {**tritons, "slow-1": other}, LAYOUT)
        client = connect(start_tidegate([], config=config))
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(infer, client, np.full((1, 3), float(index))) for index in range(300)]
            asked[30].result()
            os.kill(other.pid, signal.SIGKILL)
            for index, answer in enumerate(asked):
                check(answer.result(), np.full((1, 3), float(index))) if index not in (26,) else None


def test_a_worker_that_was_lost_takes_part_again_at_another_address(
    start_triton: Make, start_tidegate: Make, repositories: dict[str, Path], connect: Make, tmp_path: Path
) -> None:
    layout = deepcopy(LAYOUT)
    layout["models"][0]["pipelines"] = [{"partitions": ["m.0-3"], "batch": 4}]
    layout["partitions"], layout["workers"] = layout["partitions"][:1], layout["workers"][:1]
    x = np.ones((1, 3), np.float32)
    with mortal(start_triton, repositories["slow"]) as first, mortal(start_triton, repositories["slow"]) as second:
        config = write_config(tmp_path, {"slow-0": first}, layout)
        tidegate = start_tidegate([], config=config)
        client = connect(tidegate)
        assert infer(client, x).as_numpy("HALF") is not None
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: "triton lost" in tidegate.log, "the loss to be noticed")
        with pytest.raises(InferenceServerException, match="no worker is left"):
            infer(client, x)
        write_config(tmp_path, {"slow-0": second}, layout)
        os.kill(tidegate.pid, signal.SIGHUP)
        eventually(lambda: "configuration applied" in tidegate.log, "the other address")
        np.testing.assert_array_equal(infer(client, x).as_numpy("HALF"), x / 2)


def test_another_layout_is_taken_up_without_losing_a_request(
    tritons: dict[str, EmbeddedTriton], start_tidegate: Make, connect: Make, tmp_path: Path
) -> None:
    config = write_config(tmp_path, tritons, LAYOUT)
    tidegate = start_tidegate([], config=config)
    client = connect(tidegate)
    smaller = deepcopy(LAYOUT)
    smaller["models"][0]["pipelines"][0]["batch"] = 2
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(infer, client, np.full((1, 3), float(index))) for index in range(30, 400)]
        asked[30].result()
        write_config(tmp_path, tritons, smaller)
        os.kill(tidegate.pid, signal.SIGHUP)
        eventually(lambda: client.get_model_config("m").config.max_batch_size == 2, "the new layout")
        for index, answer in enumerate(asked, 30):
            check(answer.result(), np.full((1, 3), float(index)))


@pytest.mark.parametrize(
    ("workers", "layout", "message"),
    [
        (["slow-0", "slow-1"], LAYOUT, "model 'm': no Triton is a worker that hosts m.3-5"),
        (
            ["fast-0=slow-0", "slow-0=fast-0"],
            LAYOUT,
            "is worker '....-0', which hosts 'm.[^']*' in the layout, but it has m.",
        ),
        (["slow-0", "fast-0", "slow-1=fast-9"], LAYOUT, "is worker 'fast-9', which is not in the layout"),
    ],
)
def test_a_layout_that_is_not_what_the_tritons_have(
    tritons: dict[str, EmbeddedTriton],
    start_tidegate: Make,
    tmp_path: Path,
    workers: list[str],
    layout: dict[str, Any],
    message: str,
) -> None:
    named = {entry.partition("=")[2] or entry: entry.partition("=")[0] for entry in workers}
    config = write_config(tmp_path, {name: tritons[triton] for name, triton in named.items()}, layout)
    with pytest.raises(AssertionError, match=message):
        start_tidegate([], config=config)


def test_a_split_model_is_padded_before_its_first_partition_and_cut_after_its_last(
    tritons: dict[str, EmbeddedTriton], start_tidegate: Make, connect: Make, tmp_path: Path
) -> None:
    listen = {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
    said = {"m": {"merge": {"pad": {"sizes": [8, 30_000], "outputs": {"Y": {}}}}}}
    tidegate = start_tidegate([], config=write_config(tmp_path, tritons, LAYOUT, models=said, listen=listen))
    client = connect(tidegate)

    def ask(number: int) -> None:
        columns = (5, 8, 29_000)[number % 3]
        x = np.full((1 + number % 2, columns), number + 1.0)
        answer = infer(client, x)
        np.testing.assert_array_equal(answer.as_numpy("Y"), x / 2 + 1)
        np.testing.assert_array_equal(answer.as_numpy("SAID"), [[b"+"]] * len(x))

    for _ in range(2):
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(ask, range(18)))
    found = re.search(r"metrics +(\S+)\n", tidegate.output)
    assert found, tidegate.output
    with urllib.request.urlopen(f"http://{found[1].removesuffix('/metrics')}/models", timeout=60) as page:
        (model,) = json.load(page)
    assert {shape: told["requests"] for shape, told in model["shapes"].items()} == {"X:8": 24, "X:30000": 12}
