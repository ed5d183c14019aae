"""The clients that people use see no difference."""

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.proxy.servers.http.conftest import request_body
from tidegate_proxy.tritons.embedded import EmbeddedTriton

ARRAYS: dict[str, "np.ndarray[Any, Any]"] = {
    "FP32": np.array([[0.1, -2.5], [3, 1e30]], np.float32),
    "FP16": np.array([[0.1, -2.5], [3, 65504]], np.float16),
    "INT64": np.array([[1, -(2**62)], [3, 4]], np.int64),
    "BOOL": np.array([[True, False], [False, True]]),
    "STRING": np.array([[b"a", b""], [b"\xff\x00", "\u00e9".encode()]], np.object_),
}
WAYS = [(True, True), (True, False), (False, True), (False, False)]


def _inputs(module: Any, kinds: list[str], binary: bool) -> list[Any]:
    inputs = []
    for kind in kinds:
        array = ARRAYS[kind]
        inputs.append(module.InferInput(f"X_{kind}", array.shape, "BYTES" if kind == "STRING" else kind))
        inputs[-1].set_data_from_numpy(array, binary_data=binary or kind == "FP16")
    return inputs


def _outputs(module: Any, kinds: list[str], binary: bool) -> list[Any]:
    return [module.InferRequestedOutput(f"Y_{kind}", binary_data=binary or kind == "FP16") for kind in kinds]


def _seen(result: Any, kinds: list[str]) -> tuple[Any, list[Any]]:
    return result.get_response(), [result.as_numpy(f"Y_{kind}").tolist() for kind in kinds]


@pytest.mark.parametrize(("binary_input", "binary_output"), WAYS)
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritonclient(
    triton: EmbeddedTriton,
    http_server: Any,
    scheduling: Any,
    binary_input: bool,
    binary_output: bool,
    compression: str | None,
) -> None:
    # A byte that is no UTF-8 fits no JSON that a client could read.
    kinds = [kind for kind in ARRAYS if kind != "STRING" or (binary_input and binary_output)]
    seen = []
    before = len(scheduling.messages)
    for server in (triton, http_server):
        with triton_http.InferenceServerClient(server.http_address) as client:
            result = client.infer(
                "all",
                _inputs(triton_http, kinds, binary_input),
                outputs=_outputs(triton_http, kinds, binary_output),
                request_id="mine",
                priority=0,
                timeout=10_000_000,
                request_compression_algorithm=compression,
                response_compression_algorithm=compression,
                parameters={"any": 1.5},
            )
            seen.append(_seen(result, kinds))
    assert seen[0] == seen[1]
    assert len(scheduling.messages) == before + 1


def test_tritonclients_other_calls(triton: EmbeddedTriton, http_server: Any) -> None:
    seen: list[list[Any]] = []
    for server in (triton, http_server):
        with triton_http.InferenceServerClient(server.http_address) as client:
            seen.append(
                [
                    *(client.is_server_live(), client.is_server_ready(), client.is_model_ready("echo")),
                    *(client.get_server_metadata(), client.get_model_metadata("echo"), client.get_model_config("echo")),
                    *(client.get_model_repository_index(), client.get_inference_statistics("bf16")),
                    *(client.get_trace_settings(), client.get_log_settings(), client.get_system_shared_memory_status()),
                    *(client.is_model_ready("nope"), client.get_cuda_shared_memory_status()),
                ]
            )
            with pytest.raises(InferenceServerException) as unknown:
                client.infer("nope", _inputs(triton_http, ["FP32"], True))
            seen[-1].append((unknown.value.status(), unknown.value.message()))
    assert seen[0] == seen[1]


def test_tritonclient_many_at_once(http_server: Any) -> None:
    with triton_http.InferenceServerClient(http_server.http_address, concurrency=8) as client:
        pending = [
            client.async_infer("all", _inputs(triton_http, ["FP32"], True), request_id=str(number))
            for number in range(64)
        ]
        assert [one.get_result().get_response()["id"] for one in pending] == [str(number) for number in range(64)]


@pytest.mark.parametrize(("binary_input", "binary_output"), WAYS)
def test_the_asyncio_client(triton: EmbeddedTriton, http_server: Any, binary_input: bool, binary_output: bool) -> None:
    kinds = ["FP32", "FP16", "INT64", "BOOL"]

    async def infer(server: Any) -> tuple[Any, list[Any]]:
        async with triton_aio.InferenceServerClient(server.http_address) as client:
            result = await client.infer(
                "all",
                _inputs(triton_aio, kinds, binary_input),
                outputs=_outputs(triton_aio, kinds, binary_output),
                request_id="mine",
            )
            return _seen(result, kinds)

    assert asyncio.run(infer(http_server)) == asyncio.run(infer(triton))


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(triton: EmbeddedTriton, http_server: Any, tmp_path: Path) -> None:
    large = tmp_path / "large.json"  # large enough for curl to wait for the go-ahead
    large.write_bytes(request_body({"data": [0.25] * 300_000, "shape": [1, 300_000]}))
    small = request_body({"data": [1]}).decode()

    def curl(server: Any, *arguments: str) -> tuple[str, str]:
        path, *options = arguments
        command = ["curl", "-sS", "--http2", "-w", "%{stderr}%{http_code} %{content_type}", *options]
        run = subprocess.run(
            [*command, f"http://{server.http_address}{path}"], capture_output=True, text=True, check=True, timeout=30
        )
        return run.stdout, run.stderr

    calls = [
        ("/v2/models/echo/infer", "-d", small),
        ("/v2/models/echo/infer", "-d", small, "--compressed"),
        ("/v2/models/echo/infer", "-d", f"@{large}"),
        ("/v2/models/echo/infer", "-H", "Transfer-Encoding: chunked", "-d", small),
        ("/v2/models/nope/infer", "-d", f"@{large}"),
        ("/v2/models/word/generate", "-d", '{"X":"hello"}'),
    ]
    for arguments in calls:
        assert curl(http_server, *arguments) == curl(triton, *arguments)
