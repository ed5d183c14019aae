"""An ensemble of real models, whose rows are pictures before its second step and lines of text after it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2

from bench.ocr_ensemble import BATCHED_STEPS, ENSEMBLE, requests, write_models
from tests.conftest import UNHURRIED

PICTURES = 6


@pytest.mark.slow
def test_the_same_text_is_read_with_its_steps_scheduled(
    start_triton: Callable[..., Any], start_tidegate: Callable[..., Any], tmp_path: Path
) -> None:
    write_models(tmp_path / "models", {})
    triton = start_triton([tmp_path / "models"])
    models = {ENSEMBLE: {"scheduling": "expanded"}, **{name: {"scheduling": "batched"} for name in BATCHED_STEPS}}
    document = {"tritons": [triton.grpc_address], "models": models, **UNHURRIED}
    (tmp_path / "tidegate.json").write_text(json.dumps(document))
    tidegate = start_tidegate([], config=tmp_path / "tidegate.json")

    def texts(address: str) -> list[list[str]]:
        with triton_grpc.InferenceServerClient(address) as client:
            answers = [client._client_stub.ModelInfer(message) for message in requests()[:PICTURES]]
        assert all(isinstance(answer, service_pb2.ModelInferResponse) for answer in answers)
        return [triton_grpc.InferResult(answer).as_numpy("TEXT")[:, 0].tolist() for answer in answers]

    expected = texts(triton.grpc_address)
    assert sum(len(word) > 5 for lines in expected for word in lines) >= PICTURES, "it reads something"
    assert texts(tidegate.address) == expected
    assert tidegate.stop()["accepted"] >= 4 * (PICTURES - 1), "the first one for a set of outputs bypasses"
