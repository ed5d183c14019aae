"""Models for the proxy's tests in one real Triton, and calls that show what a server answers."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import np_to_triton_dtype

from tidegate.engine import Engine
from tidegate.engine.books import Tally
from tidegate.host import Plugins
from tidegate_proxy.backend import CHANNEL_OPTIONS, SERVICE
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.embedded import EmbeddedTriton
from tidegate_proxy.limits import Limits
from tidegate_proxy.serve import Proxy, serving
from tidegate_triton_models import model_source

Arrays = Mapping[str, np.ndarray[Any, Any]]

# Gives every request its inputs back, in the order of the config. What else it does, its parameters say: it waits until
# a file is there, refuses negative values, gives
# back the sum of the first values it has seen, or answers several times.
ECHO = """
import json, time
from pathlib import Path
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.inputs = [entry["name"] for entry in config["input"]]
        self.outputs = [entry["name"] for entry in config["output"]]
        self.total = 0

    def execute(self, requests):
        if "gate" in self.parameters:
            Path(self.parameters["gate"]).with_name("entered").touch()
            while not Path(self.parameters["gate"]).exists():
                time.sleep(0.002)
        answers = []
        for request in requests:
            arrays = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs]
            if "refuses_negative" in self.parameters and any((array < 0).any() for array in arrays):
                raise ValueError("negative values are refused")
            if "adds_up" in self.parameters:
                self.total += float(arrays[0].flat[0])
                arrays[0] = arrays[0] * 0 + self.total
            answers.append([pb_utils.Tensor(*pair) for pair in zip(self.outputs, arrays)])
        if "repeats" not in self.parameters:
            return [pb_utils.InferenceResponse(answer) for answer in answers]
        for request, answer in zip(requests, answers):
            sender = request.get_response_sender()
            for _ in range(int(self.parameters["repeats"])):
                sender.send(pb_utils.InferenceResponse(answer))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Runs until the gate opens or nobody wants its answer; which of the two, a file beside the gate tells.
WATCHFUL = """
import json, time
from pathlib import Path
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.gate = Path(json.loads(args["model_config"])["parameters"]["gate"]["string_value"])

    def execute(self, requests):
        self.gate.with_name("entered").touch()
        while not self.gate.exists() and not all(request.is_cancelled() for request in requests):
            time.sleep(0.002)
        if not self.gate.exists():
            self.gate.with_name("cancelled").touch()
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy())]
            )
            for request in requests
        ]
"""
XY = """
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
# Triton's own batcher, which gives a request up after its `timeout`, where that is less than the default.
QUEUE_TIMEOUT = """
dynamic_batching { default_queue_policy {
  timeout_action: REJECT allow_timeout_override: true default_timeout_microseconds: 60000000
} }
"""
# "oldest": the other strategy runs a model also for slots whose sequences have no request, on arbitrary inputs.
SEQUENCE = "sequence_batching { oldest { max_candidate_sequences: 4 } max_sequence_idle_microseconds: 60000000 }"
MIXER = """
max_batch_size: 8
input [
  { name: "A" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "B" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "WORDS" data_type: TYPE_STRING dims: [ -1 ] }
]
output [
  { name: "SUM" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "TANH" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "SAID" data_type: TYPE_STRING dims: [ -1 ] }
]
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling { step [
  { model_name: "echo" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" } },
  { model_name: "picky" model_version: -1 input_map { key: "X" value: "between" } output_map { key: "Y" value: "Y" } }
] }
"""


def _add(repository: Path, name: str, source: str, config: str, **parameters: object) -> Path:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(source)
    lines = [config if "platform" in config else 'backend: "python"\n' + config]
    lines += [
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}' for key, value in parameters.items()
    ]
    (version.parent / "config.pbtxt").write_text("\n".join(lines))
    return version


def _save_mixer(path: Path) -> None:
    def tensor(name: str, kind: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, ["rows", f"{name}_size"])

    graph = helper.make_graph(
        [
            helper.make_node("Add", ["A", "B"], ["SUM"]),
            helper.make_node("Tanh", ["SUM"], ["TANH"]),
            helper.make_node("Identity", ["WORDS"], ["SAID"]),
        ],
        "mixer",
        [tensor("A", TensorProto.FLOAT), tensor("B", TensorProto.FLOAT), tensor("WORDS", TensorProto.STRING)],
        [tensor("SUM", TensorProto.FLOAT), tensor("TANH", TensorProto.FLOAT), tensor("SAID", TensorProto.STRING)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="session")
def add_model() -> Callable[..., Path]:
    """`add_model(repository, name, "max_batch_size: 4", instances=2, **parameters)`: an ECHO model from X to Y."""

    def add(repository: Path, name: str, config: str, *, instances: int = 1, **parameters: object) -> Path:
        return _add(repository, name, ECHO, XY.replace("count: 1", f"count: {instances}") + config, **parameters)

    return add


class Gate:
    """What the models `gated` and `patient` wait for in every execution."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "open"
        self._entered = folder / "entered"
        self._cancelled = folder / "cancelled"

    def shut(self) -> None:
        """Let executions wait from now on."""
        self.file.unlink(missing_ok=True)
        self._entered.unlink(missing_ok=True)
        self._cancelled.unlink(missing_ok=True)

    def open(self) -> None:
        """Let them go on."""
        self.file.touch()

    def somebody_waits(self) -> bool:
        """Whether an execution has begun since it was shut."""
        return self._entered.exists()

    def somebody_was_cancelled(self) -> bool:
        """Whether the model `watchful` has learned, since it was shut, that nobody wants its answer."""
        return self._cancelled.exists()


@pytest.fixture(scope="session")
def gate_itself(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """The gate, which stands open between the tests."""
    gate = Gate(tmp_path_factory.mktemp("gate"))
    gate.open()
    return gate


@pytest.fixture
def gate(gate_itself: Gate) -> Iterator[Gate]:
    """The gate, shut."""
    gate_itself.shut()
    yield gate_itself
    gate_itself.open()


@pytest.fixture(scope="session")
def triton(
    start_triton: Callable[..., EmbeddedTriton], gate_itself: Gate, tmp_path_factory: pytest.TempPathFactory
) -> EmbeddedTriton:
    """A Triton with one model of every sort."""
    repository = tmp_path_factory.mktemp("models")
    mixer = _add(repository, "mixer", model_source("onnx_runner").read_text(), MIXER)
    _save_mixer(mixer / "model.onnx")
    _add(repository, "echo", ECHO, XY + "max_batch_size: 4")
    _add(repository, "picky", ECHO, XY + "max_batch_size: 4", refuses_negative=1)
    _add(repository, "gated", ECHO, XY + "max_batch_size: 4", gate=gate_itself.file)
    _add(repository, "patient", ECHO, XY + "max_batch_size: 4" + QUEUE_TIMEOUT, gate=gate_itself.file, slo_ms=600_000)
    _add(repository, "flat", ECHO, XY + "max_batch_size: 0")
    _add(repository, "counter", ECHO, XY + "max_batch_size: 4 " + SEQUENCE, adds_up=1)
    decoupled = "max_batch_size: 4 model_transaction_policy { decoupled: true }"
    _add(repository, "repeater", ECHO, XY + decoupled, repeats=3)
    _add(repository, "silent", ECHO, XY + decoupled, repeats=0)
    _add(repository, "watchful", WATCHFUL, XY + "max_batch_size: 4", gate=gate_itself.file)
    _add(repository, "chain", "", ENSEMBLE)
    return start_triton([repository])


@pytest.fixture(scope="session", params=["fifs", "symphony"])
def policy(request: pytest.FixtureRequest) -> str:
    """Each policy in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def tidegate(triton: EmbeddedTriton, policy: str, start_tidegate: Callable[..., Any]) -> Any:  # noqa: ANN401
    """A Tidegate in front of that Triton, under each policy in turn."""
    return start_tidegate([triton], policy=policy)


def _address(server: Any) -> str:  # noqa: ANN401 - an EmbeddedTriton or the Tidegate of tests/conftest.py
    return str(server.grpc_address if isinstance(server, EmbeddedTriton) else server.address)


@pytest.fixture
def connect() -> Iterator[Callable[[Any], triton_grpc.InferenceServerClient]]:
    """`connect(server)`: a real client of a Triton or of a Tidegate, closed at the end of the test."""
    clients = []

    def client_of(server: object) -> triton_grpc.InferenceServerClient:
        clients.append(triton_grpc.InferenceServerClient(_address(server)))
        return clients[-1]

    yield client_of
    for client in clients:
        client.close()


@pytest.fixture(scope="session")
def tensors() -> Callable[[Arrays], list[triton_grpc.InferInput]]:
    """`tensors({"X": array})`: the inputs of a request."""

    def make(arrays: Arrays) -> list[triton_grpc.InferInput]:
        inputs = []
        for name, array in arrays.items():
            inputs.append(triton_grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array)
        return inputs

    return make


@pytest.fixture(scope="session")
def infer_all() -> Callable[..., list[Any]]:
    """`infer_all(client, model, [keyword arguments of infer, ...])`: all at once; their results or exceptions.

    `once_sent` is called when all of them have arrived.
    """

    def infer(
        client: triton_grpc.InferenceServerClient,
        model: str,
        asked: Sequence[dict[str, Any]],
        once_sent: Callable[[], None] | None = None,
    ) -> list[Any]:
        outcomes: list[Future[Any]] = [Future() for _ in asked]
        for one, outcome in zip(asked, outcomes, strict=True):
            client.async_infer(
                model,
                callback=lambda result, error, outcome=outcome: outcome.set_result(error or result),
                **one,
            )
        if once_sent:
            client.is_server_live()  # to the server and back, behind all of them on one connection
            once_sent()
        return [outcome.result(timeout=60) for outcome in outcomes]

    return infer


class ProxyHere:
    """A proxy in this process, with an event loop in a thread of its own: its books can be looked into."""

    def __init__(self, config: ServeConfig) -> None:
        self.loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started: Future[Proxy] = Future()
        self._thread = threading.Thread(target=self.loop.run_until_complete, args=(self._run(config),))
        self._thread.start()
        self._serving = self._started.result(30)

    @property
    def serving(self) -> Proxy:
        """Itself."""
        return self._serving

    @property
    def address(self) -> str:
        """Where clients find it."""
        return self._serving.address

    @property
    def engine(self) -> Engine:
        """Its books."""
        return self._serving.engine

    def in_loop(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call something in its event loop; what that gives."""

        async def call() -> Any:  # noqa: ANN401
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(30)

    def begin_to_stop(self) -> None:
        """Ask it to drain."""
        self.loop.call_soon_threadsafe(self._stop.set)

    def stop(self) -> Tally:
        """Have it end; how the requests it accepted ended."""
        if self._thread.is_alive():
            self.begin_to_stop()
            self._thread.join()
            self.loop.close()
        return self.engine.tally

    async def _run(self, config: ServeConfig) -> None:
        try:
            async with serving(config, Plugins.installed()) as proxy:
                self._started.set_result(proxy)
                await self._stop.wait()
        except Exception as error:
            if self._started.done():
                raise
            self._started.set_exception(error)


@pytest.fixture
def start_proxy_here() -> Iterator[Callable[[ServeConfig], ProxyHere]]:
    """`start_proxy_here(config)`: a proxy in this process, stopped at the end of the test."""
    proxies: list[ProxyHere] = []

    def start(config: ServeConfig) -> ProxyHere:
        proxies.append(ProxyHere(config))
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.stop()


@pytest.fixture
def serve_here(start_proxy_here: Callable[[ServeConfig], ProxyHere]) -> Callable[..., ProxyHere]:
    """`serve_here([server, ...], policy="fifs", limits=...)`: a proxy in this process, with such a configuration."""

    def start(
        servers: Sequence[Any],
        policy: str = "fifs",
        *,
        limits: Limits | None = None,
        **options: Any,  # noqa: ANN401
    ) -> ProxyHere:
        limits = limits or Limits()
        document = {
            "tritons": [_address(server) for server in servers],
            "policy": {"name": policy},
            "listen": {"grpc": "127.0.0.1:0"},
            "drain_s": 0.0,
            "limits": {
                "max_queue": limits.requests,
                "max_queue_bytes": limits.bytes,
                "leg_timeout_s": limits.leg_s,
            },
            "shedding": {"status": limits.shed_status.name},
        }
        return start_proxy_here(read_config(flags={**document, **options}))

    return start


class FakeTriton:
    """A gRPC server with the model `echo`, whose inference is a function: what no real Triton would do.

    The function takes a ModelInferRequest and the grpc context, and gives the serialized answer.
    """

    def __init__(self, infer: Callable[[Any, Any], bytes]) -> None:
        self._infer = infer
        config = model_config_pb2.ModelConfig(name="echo", max_batch_size=4)
        config.input.add(name="X", data_type="TYPE_FP32", dims=[-1])
        config.output.add(name="Y", data_type="TYPE_FP32", dims=[-1])
        config.instance_group.add(count=1)
        index = service_pb2.RepositoryIndexResponse()
        index.models.add(name="echo", version="1", state="READY")
        messages = {
            "ServerLive": service_pb2.ServerLiveResponse(live=True),
            "ServerReady": service_pb2.ServerReadyResponse(ready=True),
            "RepositoryIndex": index,
            "ModelConfig": service_pb2.ModelConfigResponse(config=config),
        }
        self.answers: dict[str, bytes] = {name: message.SerializeToString() for name, message in messages.items()}
        """By method; what is taken away is not available."""
        self._server = grpc.server(ThreadPoolExecutor(16))
        methods = {name: grpc.unary_unary_rpc_method_handler(self._fixed(name)) for name in self.answers}
        methods["ModelInfer"] = grpc.unary_unary_rpc_method_handler(self._run)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE.strip("/"), methods)])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        """End it, and every call under way."""
        self._server.stop(None).wait()

    def _fixed(self, name: str) -> Callable[[bytes, Any], bytes]:
        def answer(_message: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc is untyped
            if name not in self.answers:
                context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            return self.answers[name]

        return answer

    def _run(self, message: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc is untyped
        return self._infer(service_pb2.ModelInferRequest.FromString(message), context)


@pytest.fixture
def start_fake() -> Iterator[Callable[..., FakeTriton]]:
    """`start_fake(infer)`: a FakeTriton."""
    fakes: list[FakeTriton] = []

    def start(infer: Callable[[Any, Any], bytes]) -> FakeTriton:
        fakes.append(FakeTriton(infer))
        return fakes[-1]

    yield start
    for fake in fakes:
        fake.stop()


Answered = tuple[list[service_pb2.ModelStreamInferResponse], grpc.StatusCode, str]


@pytest.fixture
def open_stream() -> Iterator[Callable[..., Any]]:
    """`open_stream(server, messages, metadata=(), timeout=20)`: a ModelStreamInfer under way, on its own connection.

    Iterating over it gives its parsed answers.
    """
    channels: list[Any] = []

    def begin(
        server: object,
        messages: Iterable[Any],
        *,
        metadata: Sequence[tuple[str, str]] = (),
        timeout: float = 30,
    ) -> Any:  # noqa: ANN401
        options = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        channels.append(grpc.insecure_channel(_address(server), options=options))
        method = channels[-1].stream_stream(
            SERVICE + "ModelStreamInfer",
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        return method(iter(messages), metadata=metadata, timeout=timeout)

    yield begin
    for channel in channels:
        channel.close()


@pytest.fixture(scope="session")
def rest_of() -> Callable[[Any], Answered]:
    """`rest_of(stream)`: the answers up to its end, and how it ended."""

    def read(stream: Any) -> Answered:  # noqa: ANN401
        answers = []
        try:
            for answer in stream:
                answers.append(answer)  # noqa: PERF402 - those before an error count, too
        except grpc.RpcError:
            pass
        return answers, stream.code(), stream.details()

    return read


@pytest.fixture
def start_call() -> Iterator[Callable[..., Any]]:
    """`start_call(server, "ModelReady", message, timeout=20)`: a call under way, on one channel per server."""
    channels: dict[str, Any] = {}

    def start(server: object, method: str, message: Any, timeout: float = 20) -> Any:  # noqa: ANN401
        address = _address(server)
        channel = channels.get(address)
        if channel is None:
            channel = channels[address] = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        data = message if isinstance(message, bytes) else message.SerializeToString()
        full_name = method if method.startswith("/") else SERVICE + method
        return channel.unary_unary(full_name).future(data, timeout=timeout)

    yield start
    for channel in channels.values():
        channel.close()


def outcome_of(under_way: Any) -> tuple[grpc.StatusCode, Any]:  # noqa: ANN401 - grpc is untyped
    """How a call ended: its status code, with the answer's bytes or the error's details."""
    try:
        return grpc.StatusCode.OK, under_way.result()
    except grpc.RpcError as error:
        return error.code(), error.details()
    except grpc.FutureCancelledError:
        return grpc.StatusCode.CANCELLED, ""


@pytest.fixture(scope="session")
def outcome() -> Callable[[Any], tuple[grpc.StatusCode, Any]]:
    """`outcome(call under way)`: its status code, with the answer's bytes or the error's details."""
    return outcome_of


@pytest.fixture
def call(start_call: Callable[..., Any]) -> Callable[..., tuple[grpc.StatusCode, Any]]:
    """`call(server, "ModelReady", message)`: how it ended."""
    return lambda *what, **options: outcome_of(start_call(*what, **options))


@pytest.fixture(scope="session")
def request_of() -> Callable[..., service_pb2.ModelInferRequest]:
    """`request_of("echo", {"X": array}, id=..., model_version=...)`: the message itself."""

    def make(model: str, arrays: Arrays, **fields: Any) -> service_pb2.ModelInferRequest:  # noqa: ANN401
        message = service_pb2.ModelInferRequest(model_name=model, **fields)
        for name, array in arrays.items():
            message.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
            message.raw_input_contents.append(array.tobytes())
        return message

    return make


@pytest.fixture
def jam(
    gate: Gate, start_call: Callable[..., Any], request_of: Callable[..., Any], eventually: Callable[..., None]
) -> Iterator[Callable[[object], Callable[[], None]]]:
    """`release = jam(tidegate)`: keep its one worker busy, so that what comes queues until `release()`."""
    under_way = []  # grpc cancels a call that nobody refers to

    def start(tidegate: object) -> Callable[[], None]:
        under_way.append(start_call(tidegate, "ModelInfer", request_of("gated", {"X": np.ones((1, 1), np.float32)})))
        eventually(gate.somebody_waits, "the worker to be busy")
        return gate.open

    yield start
    assert all(outcome_of(call)[0] is grpc.StatusCode.OK for call in under_way)
