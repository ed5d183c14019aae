"""One request of some batches runs again alone: a model that mixes rows is found out, any other one is left alone."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.clients import infer_all, tensors
from tests.proxy.fixtures.here import ProxyHere
from tests.python_models import write_model
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.service import batch_verification
from tidegate_proxy.service.batch_verification import difference, wait_until_idle
from tidegate_proxy.tritons.backend import Backend
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
parameters { key: "does" value: { string_value: "%s" } }
"""
MODEL = """
import json, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.does = json.loads(args["model_config"])["parameters"]["does"]["string_value"]
        self.count = 0

    def execute(self, requests):
        time.sleep(0.02)
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            self.count += 1
            y = {"center": x - x.mean(axis=0), "double": 2 * x, "count": x * 0 + self.count}[self.does]
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y.astype(np.float32))]))
        return answers
"""


@pytest.fixture(scope="module")
def models(start_triton: Make, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """A Triton with a model that mixes rows, one that does not, and one that never gives the same answer twice."""
    repository = tmp_path_factory.mktemp("verified")
    for name in ("center", "double", "count"):
        write_model(repository, name, MODEL, CONFIG % name)
    server: EmbeddedTriton = start_triton([repository], options=["--model-control-mode=explicit", "--load-model=*"])
    return server


@pytest.fixture
def proxy(models: EmbeddedTriton, serve_here: Make, monkeypatch: pytest.MonkeyPatch) -> ProxyHere:
    """A Tidegate before it that verifies as many batches as it can."""
    monkeypatch.setattr(batch_verification, "FIRST_BATCH", 1)
    monkeypatch.setattr(batch_verification, "PAUSE_S", 0.0)
    started: ProxyHere = serve_here([models], policy="eager", batch_verification={"fraction": 1.0})
    return started


def _verified(proxy: ProxyHere, model: str) -> dict[str, int]:
    counts = proxy.in_loop(proxy.serving.driver.observability.metrics.counts.verified.copy)
    return {result: count for (name, result), count in counts.items() if name == model}


def _mode(proxy: ProxyHere, model: str) -> str:
    return proxy.serving.catalog.consents[model].scheduling


def _ask(connect: Make, proxy: ProxyHere, model: str) -> None:
    """Batches: while the first request runs the others come."""
    arrays = [np.full((1, 32), index + 1, np.float32) for index in range(9)]
    answers = infer_all(connect(proxy), model, [{"inputs": tensors({"X": array})} for array in arrays])
    assert all(not isinstance(answer, Exception) for answer in answers)


def test_a_model_that_mixes_rows_is_batched_no_more(
    proxy: ProxyHere, connect: Make, caplog: pytest.LogCaptureFixture
) -> None:
    assert _mode(proxy, "center") == "batched"
    _ask(connect, proxy, "center")
    eventually(lambda: _mode(proxy, "center") == "unbatched", "batching of the model to end")
    assert "output 'Y': 32 of 32 elements" in proxy.serving.catalog.consents["center"].why
    assert "batching stopped" in caplog.text
    assert _verified(proxy, "center") == {"different": 1}
    answers = infer_all(
        connect(proxy), "center", [{"inputs": tensors({"X": np.full((1, 2), n, np.float32)})} for n in range(9)]
    )
    assert [answer.as_numpy("Y").tolist() for answer in answers] == [[[0.0, 0.0]]] * 9
    assert _mode(proxy, "double") == "batched"


def test_it_is_batched_again_when_another_configuration_is_loaded(
    proxy: ProxyHere, models: EmbeddedTriton, connect: Make
) -> None:
    _ask(connect, proxy, "center")
    eventually(lambda: _mode(proxy, "center") == "unbatched", "batching of the model to end")
    client = connect(proxy)
    config = client.get_model_config("center", as_json=True)["config"]
    config["parameters"]["does"] = {"string_value": "double"}
    client.load_model("center", config=json.dumps(config))
    eventually(lambda: _mode(proxy, "center") == "batched", "batching of the mended model")
    connect(models).load_model("center")


def test_a_model_with_independent_rows_goes_on_being_batched(proxy: ProxyHere, connect: Make) -> None:
    _ask(connect, proxy, "double")
    eventually(lambda: _verified(proxy, "double").get("same"), "a verification")
    assert _mode(proxy, "double") == "batched"


def test_a_model_that_is_not_deterministic_is_no_evidence(proxy: ProxyHere, connect: Make) -> None:
    _ask(connect, proxy, "count")
    eventually(lambda: _verified(proxy, "count"), "a verification")
    _ask(connect, proxy, "count")
    assert _verified(proxy, "count") == {"nondeterministic": 1}
    assert _mode(proxy, "count") == "batched"


def _answer(datatype: str, array: "np.ndarray[Any, Any]") -> bytes:
    answer = service_pb2.ModelInferResponse(model_name="m")
    answer.outputs.add(name="Y", datatype=datatype, shape=array.shape)
    raw = array.tobytes()
    if datatype == "BYTES":
        raw = b"".join(len(each).to_bytes(4, "little") + each for each in array.flat)
    answer.raw_output_contents.append(raw)
    return bytes(answer.SerializeToString())


ONES = np.ones((1, 40), np.float32)


@pytest.mark.parametrize(
    ("datatype", "one", "other", "unequal"),
    [
        ("FP32", ONES, ONES + 0.04, 0),
        ("FP32", ONES, ONES + 0.2, 40),
        ("FP32", ONES * 1e-6, ONES * 3e-6, 40),  # small outputs are compared by their own magnitude
        ("FP32", ONES * np.nan, ONES * np.nan, 0),
        ("FP32", ONES * np.nan, ONES, 40),
        ("FP32", ONES * np.inf, ONES * -np.inf, 40),
        ("FP16", ONES.astype(np.float16), (ONES * 2).astype(np.float16), 40),
        ("BF16", np.full((1, 40), 0x3F80, np.uint16), np.full((1, 40), 0x4000, np.uint16), 40),
        ("INT64", np.arange(40), np.arange(40), 0),
        ("INT64", np.arange(40), np.arange(40) // 39, 39),
        ("INT64", np.arange(40), np.where(np.arange(40) == 3, 0, np.arange(40)), 0),  # a near tie of forty
        ("BYTES", np.array([b"a", b"bc"], object), np.array([b"a", b"bd"], object), 1),
    ],
)
def test_answers_differ_by_the_magnitude_of_floats_and_the_share_of_labels(
    datatype: str, one: "np.ndarray[Any, Any]", other: "np.ndarray[Any, Any]", unequal: int
) -> None:
    found = difference(_answer(datatype, one), _answer(datatype, other), 0.05)
    assert (found.unequal if found else 0) == unequal


def test_answers_of_other_shapes_differ() -> None:
    found = difference(_answer("FP32", ONES), _answer("FP32", ONES[:, :3]), 0.05)
    assert found
    assert found.unequal == 40


def test_a_triton_with_a_bypassed_request_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_verification, "IDLE_POLL_S", 0.001)
    monkeypatch.setattr(batch_verification, "IDLE_TIMEOUT_S", 0.01)
    driver: Any = SimpleNamespace(engine=SimpleNamespace(queued=0), running=[])

    async def look() -> list[bool]:
        backend = Backend(TritonAddress(grpc="127.0.0.1:1"))
        backend.passes("m")
        busy = await wait_until_idle(backend, driver)
        backend.passed("m")
        return [busy, await wait_until_idle(backend, driver)]

    assert asyncio.run(look()) == [False, True]
