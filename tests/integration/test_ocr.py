"""The main job: real models, generated, served by the real Triton, asked through Tidegate and directly."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
import tritonclient.grpc as triton_grpc
import yaml

from demo.read_text import MODEL_FILES, model_path
from tests.conftest import UNHURRIED, Tidegate, eventually
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_repo_generator.generate import generate_model

ROOT = Path(__file__).parents[2]
PICTURE = Path(skimage.__file__).parent / "data" / "page.png"
SHAPES = {"text_detection": (3, 96, 128), "text_direction": (3, 48, 192), "text_recognition": (3, 48, 160)}
CLIENTS = 12
LEAST_QUEUED = 4
"""As many of the requests wait, by Tidegate's own metrics, before Triton goes on: they cannot all run alone."""


@pytest.fixture(scope="module")
def triton(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    repository = tmp_path_factory.mktemp("ocr")
    for name in MODEL_FILES:
        generate_model(model_path(name), repository, name=name, max_batch=8)
    return start_triton([repository])


@pytest.fixture(scope="module", params=[pytest.param("fifs", marks=pytest.mark.slow), "symphony"])
def tidegate(
    request: pytest.FixtureRequest,
    triton: EmbeddedTriton,
    start_tidegate: Callable[..., Tidegate],
    tmp_path_factory: pytest.TempPathFactory,
) -> Tidegate:
    """One that runs nothing of its own accord: the test counts what Triton executes."""
    config = tmp_path_factory.mktemp("tidegate") / "tidegate.yaml"
    told = {"tritons": [triton.grpc_address], "policy": request.param, **UNHURRIED}
    config.write_text(yaml.safe_dump(told))
    return start_tidegate([], config=config)


def ask(
    client: triton_grpc.InferenceServerClient, metadata: Any, model: str, pixels: "np.ndarray[Any, Any]"
) -> Callable[[], Any]:
    """Send a request; what is returned waits for its answer's only output."""
    tensor = triton_grpc.InferInput(metadata.inputs[0].name, pixels.shape, "FP32")
    tensor.set_data_from_numpy(pixels)
    outcome: Future[Any] = Future()
    client.async_infer(model, [tensor], callback=lambda result, error: outcome.set_result(error or result))
    return lambda: outcome.result(timeout=60).as_numpy(metadata.outputs[0].name)


def counts(client: triton_grpc.InferenceServerClient, model: str) -> tuple[int, int]:
    (statistic,) = client.get_inference_statistics(model).model_stats
    return int(statistic.inference_count), int(statistic.execution_count)


@pytest.mark.parametrize("model", MODEL_FILES)
def test_merged_requests_get_what_triton_answers_each(
    triton: EmbeddedTriton, tidegate: Tidegate, stand_still: Callable[..., Callable[[], None]], model: str
) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.random((1 + index % 2, *SHAPES[model]), np.float32) for index in range(CLIENTS)]
    with (
        triton_grpc.InferenceServerClient(triton.grpc_address) as direct,
        triton_grpc.InferenceServerClient(tidegate.address) as through,
    ):
        metadata = direct.get_model_metadata(model)
        rows = sum(len(picture) for picture in pictures)
        before, _ = counts(direct, model)
        expected = [ask(direct, metadata, model, picture)() for picture in pictures]
        eventually(lambda: counts(direct, model)[0] == before + rows, "Triton to count what it answered directly")
        inferences, executions = counts(direct, model)
        go_on = stand_still(triton)
        waits = [ask(through, metadata, model, picture) for picture in pictures]
        eventually(lambda: tidegate.queued(model) >= LEAST_QUEUED, "requests to queue while Triton stands still")
        go_on()
        answers = [wait() for wait in waits]
        eventually(lambda: counts(direct, model)[0] == inferences + rows, "Triton to count what it answered")
        assert counts(direct, model)[1] - executions < CLIENTS, "nothing was merged"
    for answer, right in zip(answers, expected, strict=True):
        assert answer.shape == right.shape
        # Relative to the largest: probabilities of thousands of letters are mostly dust.
        np.testing.assert_allclose(answer, right, rtol=1e-5, atol=1e-5 * float(np.abs(right).max()))


def read_text(address: str) -> str:
    command = [sys.executable, str(ROOT / "demo" / "read_text.py"), address, str(PICTURE)]
    return str(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def read_directly(triton: EmbeddedTriton) -> str:
    return read_text(triton.grpc_address)


def test_a_plain_client_reads_the_same_text(read_directly: str, tidegate: Tidegate) -> None:
    through = read_text(tidegate.address)
    assert "determine markers of the coins" in through
    assert through == read_directly
