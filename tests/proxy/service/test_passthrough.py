"""What cannot be batched, and every call that is no inference, goes to Triton as it is."""

import queue
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2 as messages
from tritonclient.utils import shared_memory

from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.clients import tensors
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_proxy.tritons.shared_memory import REGION_PREFIX

ROW = np.array([[1, 2, 3]], np.float32)
Make = Callable[..., Any]


@pytest.mark.parametrize(("model", "array"), [("flat", ROW[0]), ("chain", ROW), ("echo", ROW)])
def test_models_of_every_sort(tidegate: object, connect: Make, model: str, array: Any) -> None:
    answer = connect(tidegate).infer(model, tensors({"X": array}), request_id="mine")
    assert answer.as_numpy("Y").tolist() == array.tolist()
    assert answer.get_response().id == "mine"


def test_sequences(tidegate: object, connect: Make) -> None:
    client = connect(tidegate)
    totals: dict[Any, list[float]] = {7: [], "name": []}
    for step in range(3):
        for sequence, seen in totals.items():
            options = {"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == 2}
            answer = client.infer("counter", tensors({"X": ROW}), **options)
            seen.append(answer.as_numpy("Y")[0, 0])
    # The model adds up over the sequences of its one instance: nothing was lost, doubled or reordered.
    assert totals[7] == sorted(totals[7])
    assert totals["name"] == sorted(totals["name"])
    assert sorted(totals[7] + totals["name"]) == [totals[7][0] + step for step in range(6)]


@pytest.mark.parametrize(("model", "answers"), [("repeater", 3), ("echo", 1), ("nope", 0)])
def test_streams(triton: EmbeddedTriton, tidegate: object, connect: Make, model: str, answers: int) -> None:
    def stream(server: object) -> list[tuple[str, Any, bool]]:
        arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client = connect(server)
        client.start_stream(callback=lambda result, error: arrived.put((result, error)))
        client.async_stream_infer(model, tensors({"X": ROW}), request_id="mine", enable_empty_final_response=True)
        received: list[tuple[str, Any, bool]] = []
        # To the end, and one request a stream: Triton 2.51 may abort on an error beside an unfinished decoupled one.
        while not received or not received[-1][2]:
            result, error = arrived.get(timeout=60)
            if error:
                received.append((str(error), None, True))
                continue
            response = result.get_response()
            array = result.as_numpy("Y")
            final = response.parameters["triton_final_response"].bool_param
            received.append((response.id, None if array is None else array.tolist(), final))
        client.stop_stream()
        return received

    received = stream(tidegate)
    assert received == stream(triton)
    assert [array for _, array, _ in received if array] == [ROW.tolist()] * answers


CALLS: dict[str, tuple[str, Any]] = {
    "live": ("ServerLive", messages.ServerLiveRequest()),
    "ready": ("ServerReady", messages.ServerReadyRequest()),
    "server metadata": ("ServerMetadata", messages.ServerMetadataRequest()),
    "model ready": ("ModelReady", messages.ModelReadyRequest(name="echo")),
    "model not ready": ("ModelReady", messages.ModelReadyRequest(name="nope")),
    "model metadata": ("ModelMetadata", messages.ModelMetadataRequest(name="mixer", version="1")),
    "metadata of no model": ("ModelMetadata", messages.ModelMetadataRequest(name="nope")),
    "model config": ("ModelConfig", messages.ModelConfigRequest(name="mixer")),
    "config of no version": ("ModelConfig", messages.ModelConfigRequest(name="mixer", version="9")),
    "index": ("RepositoryIndex", messages.RepositoryIndexRequest()),
    "load": ("RepositoryModelLoad", messages.RepositoryModelLoadRequest(model_name="echo")),
    "shared memory": ("SystemSharedMemoryStatus", messages.SystemSharedMemoryStatusRequest()),
    "no shared memory": ("SystemSharedMemoryRegister", messages.SystemSharedMemoryRegisterRequest(name="n", key="/n")),
    "CUDA shared memory": ("CudaSharedMemoryStatus", messages.CudaSharedMemoryStatusRequest()),
    "trace settings": ("TraceSetting", messages.TraceSettingRequest()),
    "log settings": ("LogSettings", messages.LogSettingsRequest()),
    "no such call": ("Nope", b""),
    "health": ("/grpc.health.v1.Health/Check", b""),
    "no such service": ("/nope.Nope/Nope", b""),
}
OK = grpc.StatusCode.OK
ANSWERS = {
    "ModelConfig": messages.ModelConfigResponse,
    "RepositoryIndex": messages.RepositoryIndexResponse,
    "TraceSetting": messages.TraceSettingResponse,
    "LogSettings": messages.LogSettingsResponse,
    "ServerMetadata": messages.ServerMetadataResponse,
}


@pytest.mark.parametrize("case", CALLS)
def test_every_other_call_is_tritons(case: str, triton: EmbeddedTriton, tidegate: object, call: Make) -> None:
    method, message = CALLS[case]
    (code, answer), (expected_code, expected) = call(tidegate, method, message), call(triton, method, message)
    if expected_code is grpc.StatusCode.OK and method in ANSWERS:
        # Parsed, for the entries of a map come in any order.
        answer, expected = (ANSWERS[method].FromString(data) for data in (answer, expected))
        assert len(expected.ListFields()) > 0
    if case == "shared memory":
        status = messages.SystemSharedMemoryStatusResponse
        answer, expected = (_regions(status.FromString(data)) for data in (answer, expected))
    assert (code, answer) == (expected_code, expected)


def _regions(status: Any) -> dict[str, Any]:
    """Without those that Tidegate and the Triton share, of which clients see nothing."""
    return {name: region for name, region in status.regions.items() if not name.startswith(REGION_PREFIX)}


def test_system_shared_memory(triton: EmbeddedTriton, tidegate: object, connect: Make) -> None:
    client, direct = connect(tidegate), connect(triton)
    size = ROW.nbytes
    region = shared_memory.create_shared_memory_region("both", f"/test-tidegate-{triton.pid}", 2 * size)
    try:
        shared_memory.set_shared_memory_region(region, [ROW])
        client.register_system_shared_memory("both", f"/test-tidegate-{triton.pid}", 2 * size)
        seen = client.get_system_shared_memory_status().regions
        assert {"both": seen["both"]} == dict(seen) == _regions(direct.get_system_shared_memory_status())
        given = triton_grpc.InferInput("X", ROW.shape, "FP32")
        given.set_shared_memory("both", size)
        wanted = triton_grpc.InferRequestedOutput("Y")
        wanted.set_shared_memory("both", size, offset=size)
        client.infer("echo", [given], outputs=[wanted])
        assert shared_memory.get_contents_as_numpy(region, np.float32, ROW.shape, size).tolist() == ROW.tolist()
        client.unregister_system_shared_memory("both")
        assert not _regions(direct.get_system_shared_memory_status())
    finally:
        shared_memory.destroy_shared_memory_region(region)


def test_settings_are_changed_through_it(triton: EmbeddedTriton, tidegate: object, connect: Make) -> None:
    client, direct = connect(tidegate), connect(triton)
    client.update_log_settings({"log_verbose_level": 1})
    assert direct.get_log_settings().settings["log_verbose_level"].uint32_param == 1
    client.update_log_settings({"log_verbose_level": 0})
    client.update_trace_settings("echo", {"trace_rate": "77"})
    assert list(direct.get_trace_settings("echo").settings["trace_rate"].value) == ["77"]


def test_a_models_name_in_another_order_of_fields(triton: EmbeddedTriton, tidegate: object, call: Make) -> None:
    message = messages.ModelInferRequest(id="mine", raw_input_contents=[ROW.tobytes()])
    message.inputs.add(name="X", datatype="FP32", shape=ROW.shape)
    reordered = message.SerializeToString() + messages.ModelInferRequest(model_name="echo").SerializeToString()
    assert call(tidegate, "ModelInfer", reordered) == call(triton, "ModelInfer", reordered)


@pytest.mark.parametrize("model", ["", "mixer", "repeater", "chain", "nope"])
def test_statistics_are_of_the_same_models(model: str, triton: EmbeddedTriton, tidegate: object, call: Make) -> None:
    message = messages.ModelStatisticsRequest(name=model)
    ours, theirs = call(tidegate, "ModelStatistics", message), call(triton, "ModelStatistics", message)
    assert ours[0] is theirs[0], ours
    if theirs[0] is not grpc.StatusCode.OK:
        assert ours == theirs
        return
    mine, tritons = (messages.ModelStatisticsResponse.FromString(answer).model_stats for _, answer in (ours, theirs))
    assert [(stats.name, stats.version) for stats in mine] == [(stats.name, stats.version) for stats in tritons]
    for one, other in zip(mine, tritons, strict=True):
        if one.name in ("flat", "counter", "repeater", "silent"):
            assert one == other  # nobody schedules it


def test_statistics_count_what_clients_sent(tidegate: object, call: Make) -> None:
    def successes() -> tuple[int, int]:
        _, answer = call(tidegate, "ModelStatistics", messages.ModelStatisticsRequest(name="echo"))
        (stats,) = messages.ModelStatisticsResponse.FromString(answer).model_stats
        return stats.inference_stats.success.count, stats.inference_count

    before = successes()
    for _ in range(5):
        assert call(tidegate, "ModelInfer", request_of("echo", {"X": np.ones((2, 3), np.float32)}))[0] is OK
    after = successes()
    assert (after[0] - before[0], after[1] - before[1]) == (5, 10)
