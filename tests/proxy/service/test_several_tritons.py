"""Several Tritons behind one Tidegate look like one server."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2 as messages
from tritonclient.utils import shared_memory

from tests.conftest import SHARDS, eventually
from tests.proxy.fixtures.calls import request_of, rest_of
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
HEALTH = "/grpc.health.v1.Health/Check"
SEQUENCE = "sequence_batching { oldest { max_candidate_sequences: 16 } max_sequence_idle_microseconds: 60000000 }"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


@pytest.fixture(scope="module")
def pair(start_triton: Make, tmp_path_factory: pytest.TempPathFactory) -> list[EmbeddedTriton]:
    """Two Tritons in explicit mode: both have `echo`, each one other model; `spare` is loaded on neither."""
    tritons = []
    for name in ("left", "right"):
        repository = tmp_path_factory.mktemp(name)
        add_model(repository, "echo", "max_batch_size: 4")
        add_model(repository, "spare", "max_batch_size: 0")
        add_model(repository, name, "max_batch_size: 0")
        loaded = [f"--load-model={model}" for model in ("echo", name)]
        tritons.append(start_triton([repository], options=["--model-control-mode=explicit", *loaded]))
    return tritons


@pytest.fixture(scope="module")
def tidegate(pair: list[EmbeddedTriton], start_tidegate: Make) -> Any:
    """One Tidegate in front of both."""
    return start_tidegate(pair)


def test_the_index_is_of_both(tidegate: object, call: Make) -> None:
    code, answer = call(tidegate, "RepositoryIndex", messages.RepositoryIndexRequest())
    assert code is OK
    states = [(model.name, model.state) for model in messages.RepositoryIndexResponse.FromString(answer).models]
    assert states == [("echo", "READY"), ("left", "READY"), ("right", "READY"), ("spare", "")]
    _, answer = call(tidegate, "RepositoryIndex", messages.RepositoryIndexRequest(ready=True))
    ready = messages.RepositoryIndexResponse.FromString(answer).models
    assert [model.name for model in ready] == ["echo", "left", "right"]


def test_models_of_either_are_found(tidegate: object, call: Make, open_stream: Make) -> None:
    asked = [request_of(model, {"X": ROW[0]}, id=model) for model in ("left", "right")]
    for request in asked:
        assert call(tidegate, "ModelInfer", request)[0] is OK
        metadata = call(tidegate, "ModelMetadata", messages.ModelMetadataRequest(name=request.model_name))
        assert messages.ModelMetadataResponse.FromString(metadata[1]).name == request.model_name
    answers, code, _ = rest_of(open_stream(tidegate, [*asked, request_of("echo", {"X": ROW}, id="echo"), *asked]))
    assert code is OK
    names = sorted(answer.infer_response.model_name for answer in answers)
    assert names == ["echo", "left", "left", "right", "right"]


def test_models_are_loaded_and_unloaded_on_both(pair: list[EmbeddedTriton], tidegate: object, connect: Make) -> None:
    client = connect(tidegate)
    client.load_model("spare")
    assert all(connect(triton).is_model_ready("spare") for triton in pair)
    client.unload_model("spare")
    assert not any(connect(triton).is_model_ready("spare") for triton in pair)


def test_an_error_of_one_is_the_answer_and_the_others_are_asked_all_the_same(
    pair: list[EmbeddedTriton], tidegate: object, connect: Make, call: Make
) -> None:
    direct = connect(pair[1])
    direct.unload_model("right")
    load = messages.RepositoryModelLoadRequest(model_name="right")
    assert call(tidegate, "RepositoryModelLoad", load) == call(pair[0], "RepositoryModelLoad", load)
    assert direct.is_model_ready("right")


def test_settings_are_those_of_both(pair: list[EmbeddedTriton], tidegate: object, connect: Make) -> None:
    client = connect(tidegate)
    client.update_log_settings({"log_verbose_level": 1})
    client.update_trace_settings("echo", {"trace_rate": "77"})
    for triton in pair:
        direct = connect(triton)
        assert direct.get_log_settings().settings["log_verbose_level"].uint32_param == 1
        assert list(direct.get_trace_settings("echo").settings["trace_rate"].value) == ["77"]
    client.update_log_settings({"log_verbose_level": 0})


def test_shared_memory_is_that_of_both(pair: list[EmbeddedTriton], tidegate: object, connect: Make) -> None:
    client = connect(tidegate)
    key = f"/test-tidegate-{pair[0].pid}"
    region = shared_memory.create_shared_memory_region("both", key, ROW.nbytes)
    try:
        client.register_system_shared_memory("both", key, ROW.nbytes)
        assert all("both" in connect(triton).get_system_shared_memory_status().regions for triton in pair)
        # One that does not know it any more hinders nobody.
        connect(pair[0]).unregister_system_shared_memory("both")
        client.unregister_system_shared_memory("both")
        assert not any(connect(triton).get_system_shared_memory_status().regions for triton in pair)
    finally:
        shared_memory.destroy_shared_memory_region(region)


def test_it_is_ready_while_one_of_them_is(
    start_triton: Make, start_tidegate: Make, call: Make, tmp_path: Path, transport_of_tests: str
) -> None:
    if transport_of_tests == SHARDS:
        pytest.skip("the empty Triton of the other shard is ready still")
    add_model(tmp_path, "echo", "max_batch_size: 4")
    pair = [start_triton([tmp_path]) for _ in range(2)]
    tidegate = start_tidegate(pair)

    def says(ready: bool) -> bool:
        served = call(tidegate, HEALTH, b"")[1] == (SERVING if ready else NOT_SERVING)
        code, answer = call(tidegate, "ServerReady", b"")
        assert code is OK
        assert call(tidegate, "ServerLive", b"")[1] == messages.ServerLiveResponse(live=True).SerializeToString()
        return bool(served and messages.ServerReadyResponse.FromString(answer).ready == ready)

    assert says(ready=True)
    os.kill(pair[0].pid, signal.SIGKILL)
    eventually(
        lambda: re.search(rf"triton lost: .*\(triton={pair[0].grpc_address}", tidegate.log), "the loss to be noticed"
    )
    assert says(ready=True)
    index = call(tidegate, "RepositoryIndex", messages.RepositoryIndexRequest())
    assert [model.name for model in messages.RepositoryIndexResponse.FromString(index[1]).models] == ["echo"]
    assert (
        call(tidegate, "RepositoryModelLoad", messages.RepositoryModelLoadRequest(model_name="echo"))[0] is UNAVAILABLE
    )
    os.kill(pair[1].pid, signal.SIGKILL)
    eventually(lambda: says(ready=False), "Tidegate not to be ready")
    assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is UNAVAILABLE
    assert call(tidegate, "ServerMetadata", b"")[0] is UNAVAILABLE
    assert call(tidegate, "RepositoryIndex", b"")[0] is UNAVAILABLE
    assert call(tidegate, "LogSettings", b"")[0] is UNAVAILABLE


def test_a_triton_that_is_added_later_is_seen_over_http_too(
    pair: list[EmbeddedTriton], start_tidegate: Make, tmp_path: Path
) -> None:
    config = tmp_path / "tidegate.json"

    def write(*tritons: EmbeddedTriton) -> None:
        addresses = [{"grpc": triton.grpc_address, "http": triton.http_address} for triton in tritons]
        listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
        config.write_text(json.dumps({"tritons": addresses, "listen": listen, "policy": "fifs"}))

    write(pair[0])
    tidegate = start_tidegate([], config=config)
    found = re.search(r"HTTP +(\S+)\n", tidegate.output)
    assert found
    client = triton_http.InferenceServerClient(found[1])
    try:
        assert "right" not in [model["name"] for model in client.get_model_repository_index()]
        write(*pair)
        os.kill(tidegate.pid, signal.SIGHUP)
        eventually(
            lambda: "right" in [model["name"] for model in client.get_model_repository_index()], "the second Triton"
        )
    finally:
        client.close()


def test_a_sequence_stays_with_its_triton_over_grpc_and_http_when_another_is_lost(
    start_triton: Make, start_tidegate: Make, connect: Make, tmp_path: Path
) -> None:
    add_model(tmp_path / "models", "counter", f"max_batch_size: 4 {SEQUENCE}")
    tritons = [start_triton([tmp_path / "models"]) for _ in range(3)]
    addresses = [{"grpc": triton.grpc_address, "http": triton.http_address} for triton in tritons]
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    config = tmp_path / "tidegate.json"
    config.write_text(json.dumps({"tritons": addresses, "listen": listen, "policy": "fifs"}))
    tidegate = start_tidegate([], config=config)
    found = re.search(r"HTTP +(\S+)\n", tidegate.output)
    assert found
    over_grpc, over_http = connect(tidegate), triton_http.InferenceServerClient(found[1])
    directly = [connect(triton) for triton in tritons]

    def counts() -> list[int]:
        answers = [each.get_inference_statistics("counter") for each in directly]
        return [int(answer.model_stats[0].inference_count) for answer in answers]

    def place(client: Any, module: Any, sequence: int, **options: Any) -> int:
        before = counts()
        tensor = module.InferInput("X", list(ROW.shape), "FP32")
        tensor.set_data_from_numpy(ROW)
        client.infer("counter", [tensor], sequence_id=sequence, sequence_start=True, **options)
        eventually(lambda: sum(counts()) > sum(before), "it to be counted")
        (here,) = [index for index, (old, new) in enumerate(zip(before, counts(), strict=True)) if new > old]
        return here

    try:
        places: dict[int, int] = {}  # drawn from the Tritons' names, whose ports are others each time
        while len(places) < 6 or {*places.values()} != {0, 1, 2}:
            sequence = len(places) + 1
            assert sequence < 100
            places[sequence] = place(over_grpc, triton_grpc, sequence)
        for number, sequence in enumerate(places):
            compressed = {"request_compression_algorithm": "gzip"} if number % 2 else {}
            assert place(over_http, triton_http, sequence, **compressed) == places[sequence]
        os.kill(tritons[2].pid, signal.SIGKILL)
        eventually(
            lambda: re.search(rf"triton lost: .*\(triton={tritons[2].grpc_address}", tidegate.log),
            "the loss to be noticed",
        )
        directly.pop()
        for sequence, before in places.items():
            if before < 2:
                assert place(over_grpc, triton_grpc, sequence) == before
                assert place(over_http, triton_http, sequence) == before
    finally:
        over_http.close()
