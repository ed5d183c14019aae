"""Two shards with two Tritons each behind the same frontends: to clients they are one server."""

import http.client
import json
import os
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import yaml
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.command_line import invoke
from tests.conftest import Tidegate, eventually
from tests.proxy.fixtures.calls import outcome, request_of, rest_of
from tests.proxy.fixtures.clients import tensors
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.frontends.shard_connection import SCHEDULER_UNAVAILABLE, SHARD_LOST
from tidegate_proxy.frontends.supervisor import SHARD
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.array([[1.0, 2.0]], np.float32)
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
INFERENCE = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]})
SHARD_OF = {"ant": 0, "bee": 0, "cat": 1, "dog": 1}


@pytest.fixture(scope="module")
def tritons(start_triton: Make, tmp_path_factory: pytest.TempPathFactory) -> list[EmbeddedTriton]:
    """Four, that have all models in their repository: two for each shard."""
    repository = tmp_path_factory.mktemp("models")
    for name in SHARD_OF:
        add_model(repository, name, "max_batch_size: 4")
    loaded: list[EmbeddedTriton] = []
    for number in (0, 0, 1, 1):
        names = [name for name, shard in SHARD_OF.items() if shard == number]
        options = [f"--load-model={name}" for name in names]
        loaded.append(start_triton([repository], options=["--model-control-mode=explicit", *options]))
    return loaded


def address_of(triton: EmbeddedTriton) -> dict[str, str]:
    return {"grpc": triton.grpc_address, "http": triton.http_address, "metrics": triton.metrics_address}


def write_plan(folder: Path, assignment: dict[str, int]) -> None:
    (folder / "plan.json").write_text(json.dumps({"kind": "subclusters", "objective": 1.0, "assignment": assignment}))


@pytest.fixture(scope="module")
def folder(tritons: list[EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration and a plan."""
    folder: Path = tmp_path_factory.mktemp("shards")
    addresses = [address_of(triton) for triton in tritons]
    document = {
        "shards": [{"tritons": addresses[:2]}, {"tritons": addresses[2:]}],
        "plan": "plan.json",
        "frontends": 2,
        "policy": "fifs",
        "models": {"ant": {"slo_ms": 60_000}, "cat": {"slo_ms": 60_000}},
        "listen": {"http": "127.0.0.1:0", "metrics": "127.0.0.1:0"},
    }
    (folder / "tidegate.yaml").write_text(yaml.safe_dump(document))
    write_plan(folder, SHARD_OF)
    return folder


@pytest.fixture(scope="module")
def tidegate(folder: Path, start_tidegate: Make) -> Tidegate:
    served: Tidegate = start_tidegate([], config=folder / "tidegate.yaml")
    return served


def address(tidegate: Tidegate, service: str) -> str:
    found = re.search(rf"{service} +(\S+)\n", tidegate.output)
    assert found, tidegate.output
    return found[1]


@pytest.fixture
def clients(tidegate: Tidegate) -> Iterator[list[triton_grpc.InferenceServerClient]]:
    """On so many connections that surely both frontends have some."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    some = [triton_grpc.InferenceServerClient(tidegate.address, channel_args=options) for _ in range(6)]
    yield some
    for client in some:
        client.close()


def test_every_model_is_found_whichever_frontend_is_asked(clients: list[triton_grpc.InferenceServerClient]) -> None:
    for client in clients:
        for name in SHARD_OF:
            assert client.infer(name, tensors({"X": ROW})).as_numpy("Y").tolist() == ROW.tolist()
            assert client.is_model_ready(name)
            assert client.get_model_metadata(name).name == client.get_model_config(name).config.name == name
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.get_server_metadata().name == "triton"
        index = client.get_model_repository_index().models
        assert [(model.name, model.state) for model in index] == [(name, "READY") for name in SHARD_OF]


def test_statistics_and_metrics_are_those_of_all_shards(
    tidegate: Tidegate, clients: list[triton_grpc.InferenceServerClient]
) -> None:
    def counted() -> dict[str, int]:
        (said,) = {str(client.get_inference_statistics()) for client in clients}
        assert said
        return {model.name: model.inference_count for model in clients[0].get_inference_statistics().model_stats}

    before = counted()
    for client in clients[:3]:
        client.infer("cat", tensors({"X": ROW}))
    assert {name: count - before[name] for name, count in counted().items()} == {"ant": 0, "bee": 0, "cat": 3, "dog": 0}
    assert [model.name for model in clients[0].get_inference_statistics("cat").model_stats] == ["cat"]
    with urllib.request.urlopen(f"http://{address(tidegate, 'metrics')}", timeout=60) as page:
        text = page.read().decode()
    for name, shard in SHARD_OF.items():
        assert re.search(rf'nv_inference_count{{model="{name}",version="1",shard="{shard}"}} \d', text)
    assert len(re.findall(r"^# TYPE tidegate_requests_total", text, re.MULTILINE)) == 1
    assert len(re.findall(r"tidegate_triton_up{.*} 1", text)) == 4


def test_what_is_one_shards_is_told_by_its_number_and_the_dashboard_says_that_it_is_of_one(tidegate: Tidegate) -> None:
    page = f"http://{address(tidegate, 'metrics').removesuffix('/metrics')}"
    for path in ("shadow", "canary"):
        with urllib.request.urlopen(f"{page}/{path}", timeout=60) as answer:
            told = json.load(answer)["shards"]
        assert set(told) == {"0", "1"}
    for path in ("dashboard", "dashboard/events"):
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"{page}/{path}", timeout=60)
        assert b"several shards" in refused.value.read()


def test_over_http_as_well(tidegate: Tidegate) -> None:
    connection = http.client.HTTPConnection(address(tidegate, "HTTP"), timeout=60)

    def ask(method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None

    for name in SHARD_OF:
        status, answer = ask("POST", f"/v2/models/{name}/infer", INFERENCE)
        assert (status, answer["outputs"][0]["data"]) == (200, [1, 2])
        assert ask("GET", f"/v2/models/{name}/ready")[0] == 200
    assert ask("GET", "/v2/health/ready") == (200, None)
    assert [model["name"] for model in ask("GET", "/v2/models/stats")[1]["model_stats"]] == list(SHARD_OF)
    assert [model["name"] for model in ask("POST", "/v2/repository/index")[1]] == list(SHARD_OF)
    assert ask("GET", "/v2")[1]["name"] == "triton"
    status, answer = ask("POST", "/v2/models/cow/infer", INFERENCE)
    assert (status, answer) == (404, {"error": "Request for unknown model: 'cow' is not found"})
    connection.close()


def test_what_no_shard_has_is_answered_as_triton_does(
    tidegate: Tidegate, tritons: list[EmbeddedTriton], call: Make
) -> None:
    for method, message in (
        ("ModelInfer", request_of("cow", {"X": ROW})),
        ("ModelMetadata", service_pb2.ModelMetadataRequest(name="cow")),
        ("ModelConfig", service_pb2.ModelConfigRequest(name="cow")),
        ("ModelStatistics", service_pb2.ModelStatisticsRequest(name="cow")),
        ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="cow")),
    ):
        assert call(tidegate, method, message) == call(tritons[0], method, message)
    assert call(tidegate, "ModelReady", service_pb2.ModelReadyRequest(name="cow")) == (OK, b"")


def test_a_stream_may_name_models_of_both(tidegate: Tidegate, open_stream: Make) -> None:
    names = ["ant", "cat", "cow", "dog", "bee"] * 4
    asked = [request_of(name, {"X": ROW}, id=f"{name}{number}") for number, name in enumerate(names)]
    answers, code, _ = rest_of(open_stream(tidegate, asked))
    assert code is OK
    by_id = {answer.infer_response.id: answer for answer in answers}
    assert by_id.keys() == {message.id for message in asked}
    for message in asked:
        answer = by_id[message.id]
        if message.model_name == "cow":
            assert "unknown model" in answer.error_message
        else:
            assert answer.infer_response.raw_output_contents[0] == ROW.tobytes()


def test_a_model_that_is_named_last_is_found(tidegate: Tidegate, call: Make, open_stream: Make) -> None:
    """The last name counts at Triton, wherever it stands."""
    others = [service_pb2.ModelInferRequest(model_name=name).SerializeToString() for name in ("ant", "cow")]
    asked = [start + request_of("cat", {"X": ROW}).SerializeToString() for start in (*others, b"\x12\x011")]
    for message in asked:
        assert call(tidegate, "ModelInfer", message)[0] is OK
    answers, code, _ = rest_of(open_stream(tidegate, asked))
    assert code is OK
    assert [answer.error_message for answer in answers] == [""] * len(asked)


def test_a_model_is_loaded_where_it_is_known(
    tidegate: Tidegate, clients: list[triton_grpc.InferenceServerClient]
) -> None:
    clients[0].unload_model("dog")
    with pytest.raises(InferenceServerException, match="dog"):
        clients[1].infer("dog", tensors({"X": ROW}))
    clients[2].load_model("dog")
    for client in clients:
        client.infer("dog", tensors({"X": ROW}))
    assert tidegate.log.count("error") == 0


PAUSE_S = 0.01
"""Of each client between an answer and the next request: the servers need the processors, too."""


class Load:
    """Clients that ask for models again and again, each on a connection of its own, until told to stop."""

    def __init__(self, tidegate: Tidegate, names: list[str]) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self._names = names
        self._tidegate = tidegate
        self._stop = threading.Event()
        ways = (self._ask, self._ask_over_http)
        self._threads = [threading.Thread(target=ask, args=(name,)) for name in names for ask in ways]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, name: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with triton_grpc.InferenceServerClient(self._tidegate.address, channel_args=options) as client:
            while not self._stop.wait(PAUSE_S):
                try:
                    client.infer(name, tensors({"X": ROW}), client_timeout=60)
                    self.answered += 1
                except InferenceServerException as error:
                    self.failures.append(f"{name}: {error}")

    def _ask_over_http(self, name: str) -> None:
        connection = http.client.HTTPConnection(address(self._tidegate, "HTTP"), timeout=60)
        while not self._stop.wait(PAUSE_S):
            connection.request("POST", f"/v2/models/{name}/infer", INFERENCE)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == 200:
                self.answered += 1
            else:
                self.failures.append(f"{name} over HTTP: {answer.status} {text!r}")
        connection.close()


def test_a_model_moves_under_load_and_no_request_is_lost(
    tidegate: Tidegate, folder: Path, tritons: list[EmbeddedTriton]
) -> None:
    def ready_at(triton: EmbeddedTriton) -> set[str]:
        with triton_grpc.InferenceServerClient(triton.grpc_address) as client:
            return {model.name for model in client.get_model_repository_index().models if model.state == "READY"}

    load = Load(tidegate, ["ant", "cat"])
    for assignment in ({**SHARD_OF, "ant": 1, "cat": 0}, SHARD_OF):
        expected = [{name for name, shard in assignment.items() if shard == number} for number in (0, 0, 1, 1)]
        write_plan(folder, assignment)
        os.kill(tidegate.pid, signal.SIGHUP)
        eventually(lambda expected=expected: [ready_at(triton) for triton in tritons] == expected, "the models to move")
        before = load.answered
        eventually(lambda before=before: load.answered > before + 40, "them to be asked where they are")
    load.stop()
    assert load.failures == []


def test_a_shard_that_is_asked_to_end_loses_nothing(tidegate: Tidegate) -> None:
    load = Load(tidegate, ["ant", "cat"])
    eventually(lambda: load.answered > 20, "some load")
    first = tidegate.children(SHARD)
    os.kill(tidegate.children(f"{SHARD}1")[0], signal.SIGTERM)
    eventually(
        lambda: len(tidegate.children(SHARD)) == 2 and set(tidegate.children(SHARD)) != set(first),
        "another process for it",
    )
    before = load.answered
    eventually(lambda: load.answered > before + 100, "it to be asked")
    load.stop()
    assert load.failures == []


def test_a_shard_that_dies_costs_its_models_alone(
    tidegate: Tidegate, start_call: Make, call: Make, open_stream: Make
) -> None:
    (shard,) = tidegate.children(f"{SHARD}1")
    os.kill(shard, signal.SIGSTOP)
    cut_off = start_call(tidegate, "ModelInfer", request_of("cat", {"X": ROW}))
    assert call(tidegate, "ModelInfer", request_of("ant", {"X": ROW}))[0] is OK  # behind it on one connection
    os.kill(shard, signal.SIGKILL)
    assert outcome(cut_off) == (UNAVAILABLE, SHARD_LOST)
    answers, code, _ = rest_of(open_stream(tidegate, [request_of(name, {"X": ROW}) for name in ("cat", "bee")]))
    assert (code, len(answers)) == (OK, 2)
    assert call(tidegate, "ServerReady", b"")[0] is OK
    said = set()

    def is_back() -> bool:
        code, details = call(tidegate, "ModelInfer", request_of("cat", {"X": ROW}))
        assert call(tidegate, "ModelInfer", request_of("ant", {"X": ROW}))[0] is OK
        said.add((code, details if code is not OK else ""))
        return bool(code is OK)

    eventually(is_back, "it to be started again")
    assert said <= {(OK, ""), (UNAVAILABLE, SCHEDULER_UNAVAILABLE), (UNAVAILABLE, SHARD_LOST)}


def test_they_end_together(tidegate: Tidegate) -> None:
    pids = tidegate.children(SHARD)
    tidegate.stop()
    for pid in pids:
        eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "its processes to end")


def test_check_names_the_shard_of_a_triton_whose_http_port_is_not_known(tmp_path: Path) -> None:
    told = {
        "frontends": 1,
        "shards": [{"tritons": ["a:1"]}, {"tritons": ["b:1"]}],
        "listen": {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
    }
    (tmp_path / "tidegate.yaml").write_text(yaml.safe_dump(told))
    checked = invoke("check", tmp_path / "tidegate.yaml")
    assert checked.exit_code == 1
    assert re.findall(r"shards\.\d\.tritons\.\d\.http", checked.output) == [
        "shards.0.tritons.0.http",
        "shards.1.tritons.0.http",
    ]
