"""Loads and unloads of models and ensembles through Tidegate, as Triton's L0_lifecycle asks for them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.integration.triton_qa.asking import Served, message_of, over_grpc, over_http, post
from tests.integration.triton_qa.models import write_models
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
STEP, WHOLE = "add_sub", "ensemble_latest"
READY = {(name, "READY") for name in (STEP, WHOLE)}
NARROW = {
    "backend": "python",
    "max_batch_size": 2,
    "input": [{"name": f"INPUT{n}", "data_type": "TYPE_INT32", "dims": [16]} for n in (0, 1)],
    "output": [{"name": f"OUTPUT{n}", "data_type": "TYPE_INT32", "dims": [16]} for n in (0, 1)],
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
}


@pytest.fixture(scope="module")
def explicit(start_triton: Make, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """A Triton that loads what it is asked for."""
    repository = tmp_path_factory.mktemp("models")
    write_models(repository, repository / "gate")
    for name, word in ((WHOLE, "expanded"), (STEP, "batched")):
        with (repository / name / "config.pbtxt").open("a") as config:
            config.write(f'parameters {{ key: "tidegate_scheduling" value: {{ string_value: "{word}" }} }}\n')
    triton: EmbeddedTriton = start_triton([repository], options=["--model-control-mode=explicit"])
    return triton


@pytest.fixture
def servers(explicit: EmbeddedTriton, start_tidegate: Make, tmp_path: Path) -> list[Served]:
    """It, and a Tidegate before it that expands the ensemble as its config.pbtxt says."""
    config = tmp_path / "tidegate.json"
    document = {
        "tritons": [{"grpc": explicit.grpc_address, "http": explicit.http_address}],
        "listen": {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
    }
    config.write_text(json.dumps(document))
    tidegate = start_tidegate([], config=config)
    (http_address,) = (line.split()[1] for line in tidegate.output.splitlines() if line.startswith("HTTP"))
    return [Served(explicit.grpc_address, explicit.http_address), Served(tidegate.address, http_address)]


def _pair(model: str, rows: int = 1) -> Any:
    array = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
    return message_of(model, {"INPUT0": array, "INPUT1": array})


class _Scenario:
    """Changes of one server's models, and what it says meanwhile."""

    def __init__(self, server: Served, call: Make) -> None:
        self.server, self._call = server, call

    def call(self, method: str, message: Any) -> Any:
        code, said = self._call(self.server, method, message)
        answer = getattr(service_pb2, f"{method}Response")
        return code, answer.FromString(said) if code is grpc.StatusCode.OK else said

    def index(self) -> set[tuple[str, str]]:
        code, answer = self.call("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        assert code is grpc.StatusCode.OK
        models = answer.models
        return {(each.name, each.state) for each in models if each.state == "READY" and each.name in (STEP, WHOLE)}

    def load(self, model: str, config: str = "") -> Any:
        message = service_pb2.RepositoryModelLoadRequest(model_name=model)
        if config:
            message.parameters["config"].string_param = config
        return self.call("RepositoryModelLoad", message)

    def unload(self, model: str, *, dependents: bool = False) -> Any:
        message = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        if dependents:
            message.parameters["unload_dependents"].bool_param = True
        return self.call("RepositoryModelUnload", message)

    def says(self, model: str) -> list[Any]:
        """Return the server's answers about a model, and to an inference by it."""
        ready = service_pb2.ModelReadyRequest(name=model)
        metadata = service_pb2.ModelMetadataRequest(name=model)
        config = service_pb2.ModelConfigRequest(name=model)
        return [
            self.call("ModelReady", ready),
            self.call("ModelMetadata", metadata),
            self.call("ModelConfig", config),
            over_grpc(self._call, self.server, _pair(model)),
            over_http(self.server, _pair(model)),
            over_grpc(self._call, self.server, _pair(model, 3)),
        ]

    def run(self) -> Iterator[Any]:
        """Begin and end without a model."""
        yield self.index()
        yield self.load("nope")
        yield self.unload("nope")
        yield self.says(STEP)
        yield self.load(WHOLE)
        yield self.index()
        yield from (self.says(STEP), self.says(WHOLE), self.says(WHOLE))
        yield self.load(STEP, config=json.dumps(NARROW))
        yield from (self.says(STEP), self.says(WHOLE), self.says(WHOLE))
        yield self.load(STEP, config="{")
        yield self.load(STEP, config=json.dumps({**NARROW, "backend": "nope"}))
        yield self.says(STEP)
        yield self.load(STEP)
        yield self.says(STEP)
        yield self.unload(STEP)
        eventually(lambda: (STEP, "READY") not in self.index(), "the step to be unloaded")
        yield from (self.index(), self.says(STEP), self.says(WHOLE))
        yield self.load(STEP)
        yield from (self.index(), self.says(WHOLE))
        yield self.unload(WHOLE, dependents=True)
        eventually(lambda: (WHOLE, "READY") not in self.index(), "the ensemble to be unloaded")
        yield self.unload(STEP)
        eventually(lambda: not READY & self.index(), "the step to be unloaded")
        yield from (self.says(STEP), self.says(WHOLE))
        path = f"/v2/repository/models/{STEP}"
        yield post(self.server, f"{path}/load", json.dumps({"parameters": {"config": json.dumps(NARROW)}}).encode())
        yield self.says(STEP)
        yield post(self.server, f"{path}/load", b'{"parameters": {"config": 7}}')
        yield post(self.server, f"{path}/unload", b'{"parameters": {"unload_dependents": true}}')
        eventually(lambda: not READY & self.index(), "both to be unloaded")
        yield post(self.server, "/v2/repository/models/nope/load", b"")
        yield self.says(STEP)


def test_models_come_and_go_as_at_triton(servers: list[Served], call: Make) -> None:
    # Of a model that was never loaded Triton speaks in other words than of one that was unloaded.
    _, expected, answers = ([*_Scenario(server, call).run()] for server in (servers[0], *servers))
    for number, (answer, right) in enumerate(zip(answers, expected, strict=True)):
        assert answer == right, number
