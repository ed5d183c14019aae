"""A model whose answer depends on all rows of its request: merged without consent its answers would be wrong."""

import asyncio
import json
import logging
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.conftest import UNHURRIED, eventually
from tests.examples import few
from tests.proxy.fixtures.models import add_model
from tests.python_models import write_model
from tidegate_proxy.app.proxy import Proxy
from tidegate_proxy.configuration.config import ModelConfig
from tidegate_proxy.rollout import canary, comparison
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
NORMALIZED = """
import time
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            time.sleep(0.002)
            x = pb.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb.InferenceResponse([pb.Tensor("Y", x / x.sum())]))
        return answers
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
instance_group { count: 2 kind: KIND_CPU }
"""
DELAYED = "dynamic_batching { max_queue_delay_microseconds: 200000 }"
CLIENTS, EACH = 12, 10


@pytest.fixture(scope="module")
def normalizing(start_triton: Make, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """A Triton with the model as `unbatched`, as `batched` by Triton, and as `delayed` by it."""
    repository = tmp_path_factory.mktemp("normalizing")
    for name, more in (("unbatched", ""), ("batched", "dynamic_batching { }"), ("delayed", DELAYED)):
        write_model(repository, name, NORMALIZED, CONFIG + more)
    server: EmbeddedTriton = start_triton([repository], options=["--model-control-mode=explicit", "--load-model=*"])
    return server


def unary(address: str, model: str, arrays: list[Any]) -> Iterator[Any]:
    """The answers over gRPC."""
    with triton_grpc.InferenceServerClient(address) as client:
        for array in arrays:
            given = triton_grpc.InferInput("X", array.shape, "FP32")
            given.set_data_from_numpy(array)
            yield client.infer(model, [given]).as_numpy("Y")


def streamed(address: str, model: str, arrays: list[Any]) -> Iterator[Any]:
    """The answers of a stream, in which all is sent before anything is read."""
    with triton_grpc.InferenceServerClient(address) as client:
        answers: list[Any] = []
        client.start_stream(lambda result, error: answers.append(error or result))
        for array in arrays:
            given = triton_grpc.InferInput("X", array.shape, "FP32")
            given.set_data_from_numpy(array)
            client.async_stream_infer(model, [given])
        client.stop_stream()
        yield from (answer.as_numpy("Y") for answer in answers)


def http(address: str, model: str, arrays: list[Any]) -> Iterator[Any]:
    """The answers over HTTP."""
    with triton_http.InferenceServerClient(address) as client:
        for array in arrays:
            given = triton_http.InferInput("X", array.shape, "FP32")
            given.set_data_from_numpy(array)
            yield client.infer(model, [given]).as_numpy("Y")


def judge(proxy: Proxy, model: str, once_sent: Callable[[], object] = bool) -> Counter[str]:
    """How many answers are right and wrong, of many clients at once, a third of them each way.

    `once_sent` is called while they wait.
    """
    ways = (unary, streamed, http)

    def ask(number: int) -> Counter[str]:
        rng = np.random.default_rng(number)
        arrays = [rng.random((int(rng.integers(1, 4)), 2), np.float32) for _ in range(EACH)]
        way = ways[number % len(ways)]
        address = proxy.http_address if way is http else proxy.address
        answers = list(way(address, model, arrays))
        assert len(answers) == EACH
        return Counter(
            "right" if np.allclose(answer, array / array.sum()) else "wrong"
            for array, answer in zip(arrays, answers, strict=True)
        )

    with ThreadPoolExecutor(CLIENTS) as pool:
        asked = pool.map(ask, range(CLIENTS))
        once_sent()
        return sum(asked, Counter())


def serve_policy(serve_here: Make, triton: EmbeddedTriton, policy: str, **options: Any) -> Proxy:
    """A proxy over gRPC and HTTP."""
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
    tritons = [{"grpc": triton.grpc_address, "http": triton.http_address}]
    serving: Proxy = serve_here([], policy, tritons=tritons, listen=listen, **options).serving
    return serving


@pytest.mark.parametrize("policy", few(["symphony", "fifs"]))
@pytest.mark.parametrize(
    ("model", "said", "batch"),
    [
        ("unbatched", {}, "unbatched"),
        ("unbatched", {"slo_ms": 60_000}, "unbatched"),
        ("batched", {}, "bypass"),
        ("batched", {"slo_ms": 60_000}, "bypass"),
        ("batched", {"slo_ms": 60_000, "max_concurrency": 4}, "slots"),
        ("batched", {"scheduling": "unbatched"}, "unbatched"),
    ],
    ids=["unbatched", "unbatched-slo", "batched", "batched-slo", "batched-slots", "batched-alone"],
)
def test_no_answer_is_wrong(
    model: str, said: dict[str, Any], batch: str, policy: str, normalizing: EmbeddedTriton, serve_here: Make
) -> None:
    proxy = serve_policy(serve_here, normalizing, policy, models={model: said})
    assert proxy.catalog.consents[model].scheduling == batch
    assert judge(proxy, model) == {"right": CLIENTS * EACH}
    scheduled = 0 if batch == "bypass" else CLIENTS * EACH
    eventually(lambda: proxy.engine.tally.answered >= scheduled, "all answers to be counted")
    assert proxy.engine.tally.answered == scheduled


@pytest.mark.parametrize("model", ["unbatched", "batched"])
def test_what_the_operator_has_merged_is_merged(
    model: str, normalizing: EmbeddedTriton, serve_here: Make, stand_still: Make
) -> None:
    said = {model: {"scheduling": "batched"}}
    limits = UNHURRIED["limits"]
    proxy = serve_policy(serve_here, normalizing, "fifs", models=said, limits=limits)
    go_on = stand_still(normalizing)

    def once_sent() -> None:
        eventually(lambda: proxy.engine.queued > CLIENTS, "requests to queue while Triton stands still")
        go_on()

    assert judge(proxy, model, once_sent)["wrong"]  # which is why it takes a word


def test_what_happens_to_every_model_is_told(
    normalizing: EmbeddedTriton, serve_here: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    here = serve_here(
        [],
        tritons=[normalizing.grpc_address],
        listen={"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"},
        models={"batched": {"scheduling": "batched", "slo_ms": 50}},
    )
    proxy = here.serving

    def page() -> dict[str, dict[str, Any]]:
        with urllib.request.urlopen(f"http://{proxy.metrics_address}/models", timeout=60) as answer:
            return {model["name"]: model for model in json.load(answer)}

    def scheduling() -> list[str]:
        lines = [line.partition("model scheduling: ")[2] for line in caplog.text.splitlines()]
        return [line for line in lines if line]

    models = page()
    assert {name: model["scheduling"] for name, model in models.items()} == {
        "batched": "batched",
        "delayed": "bypass",
        "unbatched": "unbatched",
    }
    assert (models["batched"]["max_rows"], models["batched"]["merged_rows"], models["batched"]["slo_ms"]) == (8, 8, 50)
    assert (models["unbatched"]["max_rows"], models["unbatched"]["merged_rows"]) == (8, 1)
    assert "max_queue_delay_microseconds: 200000" in models["delayed"]["why"]
    told = scheduling()
    assert "batched: batched (the configuration says so)" in told
    assert any(line.startswith("unbatched: unbatched (no dynamic_batching") for line in told)
    assert any(line.startswith("bypassed: delayed (max_queue_delay") for line in told)
    caplog.clear()
    changed = proxy.config.model_copy(update={"models": {"batched": ModelConfig(scheduling="unbatched")}})
    asyncio.run_coroutine_threadsafe(proxy.reconfigure(changed), here.loop).result(60)
    assert page()["batched"]["scheduling"] == "unbatched"
    assert scheduling() == ["unbatched: batched (the configuration says so)"]


def test_a_canary_starts_and_says_of_which_model_with_an_slo_it_compares_nothing(
    normalizing: EmbeddedTriton, serve_here: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "FOLD_EVERY_S", 0.02)
    monkeypatch.setattr(comparison, "BLOCK_NS", 20_000_000)
    here = serve_here([normalizing], canary=0.5, models={"delayed": {"slo_ms": 50}})
    of_here = here.serving.rollout.canary
    eventually(lambda: of_here.compared, "a comparison")
    (compared,) = of_here.compared
    said = canary.describe("fifs", compared)
    assert said.startswith(
        "delayed: not compared: its requests are not scheduled: max_queue_delay_microseconds: 200000"
    )
    assert "scheduling: batched" in said


def test_a_model_is_loaded_without_its_delay_where_that_is_wanted(
    normalizing: EmbeddedTriton, serve_here: Make, caplog: pytest.LogCaptureFixture
) -> None:
    merged = {"scheduling": "batched"}
    proxy = serve_policy(serve_here, normalizing, "fifs", models={"delayed": merged})
    assert "drop `max_queue_delay_microseconds: 200000` from" in proxy.catalog.consents["delayed"].warning
    assert "delayed/config.pbtxt" in caplog.text
    with triton_grpc.InferenceServerClient(normalizing.grpc_address) as client:
        try:
            proxy = serve_policy(
                serve_here, normalizing, "fifs", models={"delayed": {**merged, "strip_queue_delay": True}}
            )
            assert proxy.catalog.consents["delayed"].warning == ""
            config = client.get_model_config("delayed", as_json=True)["config"]
            assert config["dynamic_batching"].get("max_queue_delay_microseconds", "0") == "0"
            assert judge(proxy, "delayed").total() == CLIENTS * EACH
        finally:
            client.load_model("delayed")  # as its file says


def test_a_triton_that_loads_nothing_keeps_the_delay_and_is_told_of(
    start_triton: Make, serve_here: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_model(tmp_path, "delayed", "max_batch_size: 4 " + DELAYED)
    said = {"delayed": {"scheduling": "batched", "strip_queue_delay": True}}
    proxy = serve_here([start_triton([tmp_path])], models=said).serving
    assert proxy.catalog.consents["delayed"].warning
    assert "does not load 'delayed': explicit model load / unload is not allowed" in caplog.text
