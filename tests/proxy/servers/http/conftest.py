"""A real Triton, an HTTP server before it, and requests that go to both."""

import asyncio
import http.client
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
import uvloop
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.proxy.servers.http.by_hand import NoScheduler, start_upstream
from tests.python_models import write_model
from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.configuration.apis import Api, Protocol
from tidegate_proxy.messages.model_signature import ModelSignature, signature_of
from tidegate_proxy.messages.request import open_envelope
from tidegate_proxy.messages.wire import first_string
from tidegate_proxy.servers.http import Guard, Handler, HttpApplication, HttpLimits, HttpServer, start_server
from tidegate_proxy.servers.http.routes import Route
from tidegate_proxy.transport.client_bounds import ClientBounds
from tidegate_proxy.transport.ports import bind
from tidegate_proxy.tritons.batching_mode import consent_of
from tidegate_proxy.tritons.embedded import EmbeddedTriton

if TYPE_CHECKING:
    from tidegate_proxy.service.inference import Inference
    from tidegate_proxy.service.passthrough import Routing
    from tidegate_proxy.tritons.backend import Backend

__all__ = ["start_upstream"]

DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "STRING"),
)
SERVICE = "/inference.GRPCInferenceService/"

# Gives back what it gets. What else it does, its parameters say: it fails as it is told, shows the request's
# parameters, or answers in pieces, of which it holds back all but the first until a file is there.
SOURCE = """
import json, time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.names = [(i["name"], o["name"]) for i, o in zip(config["input"], config["output"])]

    def answer(self, request):
        given = [(pb_utils.get_input_tensor_by_name(request, i), o) for i, o in self.names]
        if "bfloat16" in self.parameters:
            return [pb_utils.Tensor.from_dlpack(o, tensor) for tensor, o in given]
        if "shows" in self.parameters:
            text = request.parameters()
            return [pb_utils.Tensor("Y", np.array([[text.encode()]], dtype=object))]
        return [pb_utils.Tensor(o, tensor.as_numpy()) for tensor, o in given if tensor is not None]

    def execute(self, requests):
        if "breaks" in self.parameters:
            raise ValueError("it breaks")
        if "fails" in self.parameters:
            word = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy().flat[0].decode()
            error = pb_utils.BackendError("as told", getattr(pb_utils.BackendError, word))
            return [pb_utils.InferenceResponse(error=error) for _ in requests]
        if "held_back" not in self.parameters:
            return [pb_utils.InferenceResponse(self.answer(request)) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse(self.answer(request)))
            while not Path(self.parameters["held_back"]).exists():
                time.sleep(0.002)
            sender.send(pb_utils.InferenceResponse(self.answer(request)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def _tensor(direction: str, name: str, kind: str, dims: int = -1, more: str = "") -> str:
    return f'{direction} {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {more} }}\n'


def _add(repository: Path, name: str, config: str, **parameters: object) -> None:
    config += 'backend: "python" instance_group { count: 1 kind: KIND_CPU }\n'
    for key, value in parameters.items():
        config += f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
    write_model(repository, name, SOURCE, config)


def _xy(kind: str = "FP32", rows: int = 8, dims: int = -1) -> str:
    return _tensor("input", "X", kind, dims) + _tensor("output", "Y", kind, dims) + f"max_batch_size: {rows}\n"


@pytest.fixture(scope="session")
def held_back(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Once it exists, the model `streamer` goes on with its answers."""
    return tmp_path_factory.mktemp("held") / "back"


@pytest.fixture(scope="session")
def triton(
    start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory, held_back: Path
) -> EmbeddedTriton:
    """A Triton that shows every sort of answer."""
    repository = tmp_path_factory.mktemp("models")
    inputs = "".join(_tensor("input", f"X_{kind}", kind, more="optional: true") for kind in DATATYPES)
    outputs = "".join(_tensor("output", f"Y_{kind}", kind) for kind in DATATYPES)
    _add(repository, "all", inputs + outputs + "max_batch_size: 8\n")
    _add(repository, "bf16", _xy("BF16"), bfloat16=1)
    _add(repository, "echo", _xy())
    _add(repository, "three", _xy(dims=3))
    _add(repository, "word", _xy("STRING", dims=1))
    _add(
        repository,
        "shows",
        _tensor("input", "X", "FP32") + _tensor("output", "Y", "STRING") + "max_batch_size: 8\n",
        shows=1,
    )
    _add(repository, "breaks", _xy(), breaks=1)
    _add(repository, "fails", _xy("STRING"), fails=1)
    _add(repository, "flat", _xy(rows=0))
    decoupled = "model_transaction_policy { decoupled: true }\n"
    _add(repository, "streamer", _xy("STRING", dims=1) + decoupled, held_back=held_back)
    return start_triton([repository], options=["--model-control-mode=explicit", "--load-model=*"])


@pytest.fixture(scope="session")
def signatures(triton: EmbeddedTriton) -> dict[str, ModelSignature]:
    """Of the models that are scheduled."""
    with grpc.insecure_channel(triton.grpc_address) as channel:

        def ask(method: str, message: Any) -> bytes:
            return bytes(channel.unary_unary(SERVICE + method)(message.SerializeToString(), timeout=60))

        index = service_pb2.RepositoryIndexResponse.FromString(
            ask("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        )
        configs: list[model_config_pb2.ModelConfig] = [
            service_pb2.ModelConfigResponse.FromString(
                ask("ModelConfig", service_pb2.ModelConfigRequest(name=model.name))
            ).config
            for model in index.models
        ]
    return {config.name: signature_of(config) for config in configs if consent_of(config).scheduling != "bypass"}


@dataclass
class HttpTriton:
    """A Triton as the http_server knows it."""

    http_url: str
    alive: bool = True
    open_calls: set[Any] = field(default_factory=set)

    in_flight: list[str] = field(default_factory=list)

    def passes(self, model: str) -> None:
        """Of Triton."""
        self.in_flight.append(model)

    def passed(self, model: str) -> None:
        """Of Triton."""
        self.in_flight.remove(model)

    def http_headers(self, _api: Api) -> tuple[tuple[str, str], ...]:
        """Of Triton."""
        return ()


class OverGrpc(NoScheduler):
    """A scheduler that schedules nothing: every request goes to Triton by gRPC at once."""

    def __init__(self, address: str, signatures: dict[str, ModelSignature]) -> None:
        self.address = address
        self.signatures = signatures
        self.messages: list[bytes] = []
        """What it was given and took."""
        self._call: Any = None

    async def infer(self, message: bytes, remaining_s: float | None, metadata: object = (), owner: str = "") -> bytes:
        """Of Scheduling."""
        assert remaining_s is None
        open_envelope(message, self.signatures[first_string(message)])
        self.messages.append(message)
        if self._call is None:
            options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
            self._call = grpc.aio.insecure_channel(self.address, options=options).unary_unary(SERVICE + "ModelInfer")
        try:
            return bytes(await self._call(message))
        except grpc.aio.AioRpcError as error:
            raise RequestFailed(error.code(), error.details() or "") from error


class RunningFrontend:
    """A http_server that listens, in a loop and a thread of its own."""

    def __init__(
        self,
        urls: Sequence[str],
        scheduling: object,
        scheduled: Callable[[str], ModelSignature | None],
        overrides: Callable[[str, Route], Handler | None] = lambda _method, _route: None,
        limits: HttpLimits | None = None,
        guard: Guard | None = None,
        tls: ssl.SSLContext | None = None,
        bounds: ClientBounds | None = None,
    ) -> None:
        self.bounds = bounds or ClientBounds()
        self.tritons = [HttpTriton(url) for url in urls]
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._frontend = HttpApplication(
            cast("list[Backend]", self.tritons),
            cast("Routing", self),
            cast("Inference", scheduling or NoScheduler()),
            lambda model, _exchange: scheduled(model),
            overrides=overrides,
            guard=guard,
            limits=limits,
            bounds=self.bounds,
        )
        self._server: HttpServer = self.run(self._start(limits, tls))

    def route(self, _model: str, _protocol: Protocol = "http", _api: Api | None = None) -> HttpTriton:
        """Of Routing."""
        return next((triton for triton in self.tritons if triton.alive), self.tritons[0])

    def route_http_inference(self, model: str, _sequence: str, _header: object) -> HttpTriton:
        """Of Routing."""
        return self.route(model)

    def looks_inside(self, _model: str) -> bool:
        """Of Routing."""
        return False

    def why_over_limit(self, _owner: str) -> None:
        """Of Routing."""

    async def unreachable(self, _triton: HttpTriton, _details: str) -> None:
        """Of Routing."""

    def took(self, _triton: HttpTriton, _model: str, _sent_ns: int) -> None:
        """Of Routing."""

    def may_try_again(self, _lost: HttpTriton, _model: str, _tries: int) -> bool:
        """Of Routing."""
        return False

    async def _start(self, limits: HttpLimits | None, tls: ssl.SSLContext | None) -> HttpServer:
        await self._frontend.__aenter__()
        return await start_server(self._frontend, bind("127.0.0.1:0"), limits=limits, tls=tls, bounds=self.bounds)

    async def _stop(self) -> None:
        await self._server.stop()
        await self._frontend.__aexit__(None, None, None)

    def run(self, coroutine: Awaitable[Any]) -> Any:
        """Run a coroutine in the http_server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)  # type: ignore[arg-type]

    @property
    def http_address(self) -> str:
        """`host:port`, as of an EmbeddedTriton."""
        return f"127.0.0.1:{self._server.port}"

    def stop(self) -> None:
        """End it; a second time, do nothing."""
        if self._loop.is_closed():
            return
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def start_http_server() -> Iterator[Callable[..., RunningFrontend]]:
    """`start_http_server([url, ...], scheduling, scheduled, overrides=..., limits=...)`: ends with the session."""
    http_servers: list[RunningFrontend] = []

    def start(*arguments: Any, **options: Any) -> RunningFrontend:
        http_servers.append(RunningFrontend(*arguments, **options))
        return http_servers[-1]

    yield start
    for http_server in http_servers:
        http_server.stop()


@pytest.fixture(scope="session")
def scheduling(triton: EmbeddedTriton, signatures: dict[str, ModelSignature]) -> OverGrpc:
    """What schedules for `http_server`."""
    return OverGrpc(triton.grpc_address, signatures)


@pytest.fixture(scope="session")
def http_server(
    triton: EmbeddedTriton,
    scheduling: OverGrpc,
    signatures: dict[str, ModelSignature],
    start_http_server: Callable[..., RunningFrontend],
) -> RunningFrontend:
    """A http_server before that Triton."""
    return start_http_server([f"http://{triton.http_address}"], scheduling, signatures.get)


@dataclass(frozen=True)
class Response:
    """All that a client can see of one, but the case of its headers' names."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header."""
        return dict(self.headers).get(name)


def fetch(
    address: str, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        content = response.read()
        return Response(
            response.status, tuple(sorted((name.lower(), value) for name, value in response.getheaders())), content
        )
    finally:
        connection.close()


@pytest.fixture
def alike(triton: EmbeddedTriton, http_server: RunningFrontend, scheduling: OverGrpc) -> Callable[..., Response]:
    """`alike("POST", path, body, headers, scheduled=True)`: ask both, find no difference; the answer.

    `scheduled`: whether the http_server is to have it scheduled rather than forwarded.
    """

    def compare(
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        scheduled: bool = False,
    ) -> Response:
        direct = fetch(triton.http_address, method, path, body, headers)
        before = len(scheduling.messages)
        through = fetch(http_server.http_address, method, path, body, headers)
        assert through == direct, f"{method} {path}"
        assert len(scheduling.messages) - before == scheduled
        return direct

    return compare


def request_body(tensor: Mapping[str, Any], **more: Any) -> bytes:
    """An inference request with one input; what is not said is as the model `echo` has it."""
    return json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], **tensor}], **more}).encode()
