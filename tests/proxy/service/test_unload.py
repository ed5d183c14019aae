"""A model that is unloaded answers what was accepted, as at Triton; models change at one Triton after the other."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import numpy as np
import pytest
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2 as messages

from tests.conftest import eventually
from tests.examples import few
from tests.proxy.fixtures.calls import outcome, request_of
from tests.proxy.fixtures.models import add_model

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
OK = grpc.StatusCode.OK
EXPLICIT = ["--model-control-mode=explicit"]


@pytest.fixture(params=few(["grpc", "http"]))
def change(request: pytest.FixtureRequest, start_call: Make) -> Callable[..., Callable[[], bool]]:
    """`ends = change(proxy, "Unload", "echo")`: a load or unload under way; `ends()`: whether it went well."""

    def over_grpc(proxy: Any, verb: str, model: str) -> Callable[[], bool]:
        message = getattr(messages, f"RepositoryModel{verb}Request")(model_name=model)
        under_way = start_call(proxy, f"RepositoryModel{verb}", message, timeout=60)
        return lambda: outcome(under_way)[0] is OK

    def over_http(proxy: Any, verb: str, model: str) -> Callable[[], bool]:
        client = triton_http.InferenceServerClient(proxy.serving.http_address, network_timeout=60)
        request.addfinalizer(client.close)
        pool = ThreadPoolExecutor(1)
        request.addfinalizer(pool.shutdown)
        under_way = pool.submit(getattr(client, f"{verb.lower()}_model"), model)
        return lambda: under_way.exception(60) is None

    return over_grpc if request.param == "grpc" else over_http


def _gated(gate: Path) -> str:
    return f'max_batch_size: 4\nparameters {{ key: "gate" value: {{ string_value: "{gate}" }} }}'


def _serve(serve_here: Make, tritons: list[Any], **fields: Any) -> Any:
    addresses = [{"grpc": triton.grpc_address, "http": triton.http_address} for triton in tritons]
    return serve_here([], tritons=addresses, listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}, **fields)


@pytest.fixture
def gated(start_triton: Make, serve_here: Make, tmp_path: Path) -> tuple[Any, Path]:
    """A Tidegate before a Triton with `other`, not loaded, and `echo`, which waits for the file."""
    repository, gate = tmp_path / "models", tmp_path / "gate"
    add_model(repository, "echo", _gated(gate))
    add_model(repository, "other", "max_batch_size: 4")
    return _serve(serve_here, [start_triton([repository], options=[*EXPLICIT, "--load-model=echo"])]), gate


def _schedules(proxy: Any, model: str) -> bool:
    return model in proxy.serving._directory.catalog.signatures


def test_requests_that_wait_are_answered_before_their_model_is_unloaded(
    gated: tuple[Any, Path], start_call: Make, call: Make, change: Make
) -> None:
    proxy, gate = gated
    calls = [start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}), timeout=60) for _ in range(12)]
    eventually(lambda: proxy.engine.tally.accepted == 12, "all of them to wait")
    ends = change(proxy, "Unload", "echo")
    eventually(lambda: not _schedules(proxy, "echo"), "the unload to begin")
    gate.touch()
    assert {outcome(one)[0] for one in calls} == {OK}
    assert ends()
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is not OK


@pytest.mark.parametrize("mode", few(["none", "poll"]))
def test_an_unload_that_triton_refuses_leaves_its_model_scheduled(
    start_triton: Make, serve_here: Make, start_call: Make, change: Make, tmp_path: Path, mode: str
) -> None:
    repository, gate = tmp_path / "models", tmp_path / "gate"
    add_model(repository, "echo", _gated(gate))
    proxy = _serve(serve_here, [start_triton([repository], options=[f"--model-control-mode={mode}"])])
    calls = [start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}), timeout=60) for _ in range(8)]
    eventually(lambda: proxy.engine.tally.accepted == 8, "all of them to wait")
    catalog = proxy.serving._directory.catalog
    ends = change(proxy, "Unload", "echo")
    assert not ends(), "though the requests still wait"
    assert proxy.serving._directory.catalog is catalog
    gate.touch()
    assert {outcome(one)[0] for one in calls} == {OK}


def test_an_unload_from_a_named_repository_leaves_its_model_scheduled(
    gated: tuple[Any, Path], start_call: Make, call: Make
) -> None:
    proxy, gate = gated
    waiting = start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}), timeout=60)
    eventually(gate.with_name("entered").exists, "it to run")
    catalog = proxy.serving._directory.catalog
    unload = messages.RepositoryModelUnloadRequest(repository_name="models", model_name="echo")
    assert call(proxy, "RepositoryModelUnload", unload)[0] is grpc.StatusCode.UNIMPLEMENTED
    path = f"http://{proxy.serving.http_address}/v2/repository/models/models/echo/unload"
    with pytest.raises(HTTPError, match="501"):
        urlopen(Request(path, data=b"{}", method="POST"), timeout=60)
    assert proxy.serving._directory.catalog is catalog
    gate.touch()
    assert outcome(waiting)[0] is OK


def test_loads_of_another_model_do_not_schedule_a_model_that_is_being_unloaded(
    gated: tuple[Any, Path], start_call: Make, call: Make, change: Make
) -> None:
    proxy, gate = gated
    calls = [start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}), timeout=60) for _ in range(12)]
    eventually(lambda: proxy.engine.tally.accepted == 12, "all of them to wait")
    ends = change(proxy, "Unload", "echo")
    eventually(lambda: not _schedules(proxy, "echo"), "the unload to begin")
    load = messages.RepositoryModelLoadRequest(model_name="other")
    assert call(proxy, "RepositoryModelLoad", load, timeout=60)[0] is OK
    assert _schedules(proxy, "other")
    assert not _schedules(proxy, "echo")
    assert proxy.engine.tally.cancelled == 0, "what was accepted stays with the policy"
    gate.touch()
    assert {outcome(one)[0] for one in calls} == {OK}
    assert ends()
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is grpc.StatusCode.NOT_FOUND
    again = messages.RepositoryModelLoadRequest(model_name="echo")
    assert call(proxy, "RepositoryModelLoad", again, timeout=60)[0] is OK
    assert _schedules(proxy, "echo")


def test_another_triton_answers_while_one_unloads(
    start_triton: Make, serve_here: Make, start_call: Make, call: Make, change: Make, tmp_path: Path
) -> None:
    gates = [tmp_path / name / "gate" for name in ("first", "second")]
    tritons = []
    for gate in gates:
        gate.parent.mkdir()
        repository = tmp_path / f"models_{gate.parent.name}"
        add_model(repository, "echo", _gated(gate))
        tritons.append(start_triton([repository], options=[*EXPLICIT, "--load-model=echo"]))
    gates[1].touch()
    proxy = _serve(serve_here, tritons)
    calls = [start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}), timeout=60) for _ in range(8)]
    eventually(gates[0].with_name("entered").exists, "the first Triton to execute")
    ends = change(proxy, "Unload", "echo")
    eventually(lambda: not _schedules(proxy, "echo"), "the unload to begin")
    meanwhile = [start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}), timeout=60) for _ in range(4)]
    assert {outcome(one)[0] for one in meanwhile} == {OK}, "while the first one still drains"
    gates[0].touch()
    assert {outcome(one)[0] for one in calls} == {OK}
    assert ends()
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is not OK


# Is loaded once a file is there.
SLOW_TO_LOAD = """
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        Path("{gate}").with_name("entered").touch()
        while not Path("{gate}").exists():
            time.sleep(0.002)

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]) for tensor in tensors]
"""


@pytest.fixture
def pair(start_triton: Make, tmp_path: Path) -> tuple[list[Any], Path]:
    """Two Tritons that have not loaded `echo`, and the file without which the second one does not."""
    gates = [tmp_path / name / "gate" for name in ("first", "second")]
    tritons = []
    for gate in gates:
        gate.parent.mkdir()
        repository = tmp_path / f"models_{gate.parent.name}"
        version = add_model(repository, "echo", "max_batch_size: 4")
        (version / "model.py").write_text(SLOW_TO_LOAD.format(gate=gate))
        tritons.append(start_triton([repository], options=EXPLICIT))
    gates[0].touch()
    return tritons, gates[1]


def test_what_one_triton_has_loaded_is_served_while_the_next_one_loads(
    pair: tuple[list[Any], Path], serve_here: Make, call: Make, change: Make
) -> None:
    tritons, gate = pair
    proxy = _serve(serve_here, tritons)
    ends = change(proxy, "Load", "echo")
    eventually(gate.with_name("entered").exists, "the second Triton to load")
    assert _schedules(proxy, "echo")
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    gate.touch()
    assert ends()
    assert len(proxy.serving._directory.catalog.hosts["echo"]) == 2


def test_a_triton_that_loads_gets_no_requests_where_that_is_wanted_and_none_is_lost(
    start_triton: Make, serve_here: Make, call: Make, change: Make, tmp_path: Path
) -> None:
    gates, tritons = [tmp_path / name / "gate" for name in ("first", "second")], []
    for gate in gates:
        gate.parent.mkdir()
        repository = tmp_path / f"models_{gate.parent.name}"
        version = add_model(repository, "echo", "max_batch_size: 4")
        (version / "model.py").write_text(SLOW_TO_LOAD.format(gate=gate))
        add_model(repository, "steady", "max_batch_size: 4")
        tritons.append(start_triton([repository], options=[*EXPLICIT, "--load-model=steady"]))
    proxy = _serve(serve_here, tritons, rollouts={"max_unavailable": 1})

    def used() -> set[str]:
        return {worker.name.partition("/")[0] for worker in proxy.serving._directory.catalog.workers}

    with ThreadPoolExecutor(4) as pool:
        stop = Event()

        def ask() -> set[grpc.StatusCode]:
            found = set()
            while not stop.is_set():
                found.add(call(proxy, "ModelInfer", request_of("steady", {"X": ROW}), timeout=60)[0])
            return found

        asking = [pool.submit(ask) for _ in range(4)]
        ends = change(proxy, "Load", "echo")
        for gate, other in zip(gates, reversed(tritons), strict=True):
            eventually(gate.with_name("entered").exists, "it to load")
            assert used() == {other.grpc_address}
            so_far = proxy.engine.tally.answered
            eventually(lambda seen=so_far: proxy.engine.tally.answered > seen + 50, "the other to answer")
            gate.touch()
        assert ends()
        stop.set()
        assert set().union(*(each.result(60) for each in asking)) == {OK}
    assert used() == {triton.grpc_address for triton in tritons}
    assert len(proxy.serving._directory.catalog.hosts["echo"]) == 2


def test_a_load_that_is_given_up_halfway_is_known_as_far_as_it_came(
    pair: tuple[list[Any], Path], serve_here: Make, start_call: Make, call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_proxy.service.discovery.DISCOVERY_INTERVAL_S", 0.1)
    tritons, gate = pair
    proxy = _serve(serve_here, tritons)
    load = messages.RepositoryModelLoadRequest(model_name="echo")
    under_way = start_call(proxy, "RepositoryModelLoad", load)
    eventually(gate.with_name("entered").exists, "the second Triton to load")
    under_way.cancel()
    assert outcome(under_way)[0] is grpc.StatusCode.CANCELLED
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is OK
    gate.touch()
    eventually(lambda: len(proxy.serving._directory.catalog.hosts["echo"]) == 2, "the rest to be noticed")


def test_an_unload_that_is_given_up_leaves_its_model_scheduled(gated: tuple[Any, Path], start_call: Make) -> None:
    proxy, gate = gated
    waiting = start_call(proxy, "ModelInfer", request_of("echo", {"X": ROW}), timeout=60)
    eventually(gate.with_name("entered").exists, "it to run")
    unload = start_call(proxy, "RepositoryModelUnload", messages.RepositoryModelUnloadRequest(model_name="echo"))
    eventually(lambda: not _schedules(proxy, "echo"), "the unload to begin")
    unload.cancel()
    eventually(lambda: _schedules(proxy, "echo"), "its model to be scheduled again")
    gate.touch()
    assert outcome(waiting)[0] is OK
