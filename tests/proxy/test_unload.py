"""A model that is unloaded answers what was accepted, as at Triton."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as messages

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)


def test_requests_that_wait_are_answered_before_their_model_is_unloaded(
    add_model: Make,
    start_triton: Make,
    serve_here: Make,
    start_call: Make,
    call: Make,
    outcome: Make,
    request_of: Make,
    eventually: Make,
    tmp_path: Path,
) -> None:
    repository, gate = tmp_path / "models", tmp_path / "gate"
    waits = f'parameters {{ key: "gate" value: {{ string_value: "{gate}" }} }}'
    add_model(repository, "echo", "max_batch_size: 4\n" + waits)
    triton = start_triton([repository], options=["--model-control-mode=explicit", "--load-model=echo"])
    proxy = serve_here([triton])
    calls = [start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}), timeout=60) for _ in range(12)]
    eventually(lambda: proxy.engine.tally.accepted == 12, "all of them to wait")
    unload = messages.RepositoryModelUnloadRequest(model_name="echo")
    unloading = start_call(proxy, "RepositoryModelUnload", unload, timeout=60)
    catalog = proxy.serving._directory
    eventually(lambda: "echo" not in catalog.catalog.signatures, "the unload to begin")
    gate.touch()
    assert {outcome(one)[0] for one in calls} == {grpc.StatusCode.OK}
    assert outcome(unloading)[0] is grpc.StatusCode.OK
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is not grpc.StatusCode.OK
