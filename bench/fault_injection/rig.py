"""Servers and clients of a hazard: real Tritons and their models, `tidegate serve` as a process, and clients."""

import http.client
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import yaml
from tritonclient.grpc import service_pb2

from bench.proxy_process import ProxyProcess, proxy_process
from tidegate_proxy.tritons.embedded import EmbeddedTriton

SERVICE = "/inference.GRPCInferenceService/"
OK = grpc.StatusCode.OK
T = TypeVar("T")
SCRIPTED = """
import time
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        time.sleep(max(float(tensor[..., 0].max()) for tensor in tensors) / 1e3)
        return [
            pb.InferenceResponse([], pb.TritonError("a row says that this fails"))
            if tensor.shape[-1] > 1 and (tensor[..., 1] == 1).any()
            else pb.InferenceResponse([pb.Tensor("Y", tensor)])
            for tensor in tensors
        ]
"""
"""Source of a model that returns its rows of [milliseconds, 1 for a failure, ...]; a batch takes the longest row's
time.
"""
PARAMETERS = """
import json
import time
import zlib
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb.get_input_tensor_by_name(request, "X").as_numpy()
            time.sleep(float(tensor[..., 0].max()) / 1e3)
            seen = zlib.crc32(json.dumps(json.loads(request.parameters() or "{}"), sort_keys=True).encode()) >> 8
            answers.append(pb.InferenceResponse([pb.Tensor("Y", np.full_like(tensor, seen))]))
        return answers
"""
"""Source of a model that returns a hash of the request's parameters; a request takes the milliseconds in its row."""
CONFIG = """
backend: "python"
max_batch_size: {rows}
input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
"""
PARAMETER = 'parameters {{ key: "{}" value: {{ string_value: "{}" }} }}\n'


@dataclass(frozen=True)
class Model:
    """A model of a repository."""

    name: str
    source: str = SCRIPTED
    rows: int = 8
    """Its `max_batch_size`."""
    scheduling: str = "batched"
    """Its `tidegate_scheduling`; empty: not set."""
    slo_ms: float | None = None

    def write(self, repository: Path) -> None:
        """Write the model to a repository."""
        config = CONFIG.format(rows=self.rows)
        if self.scheduling:
            config += PARAMETER.format("tidegate_scheduling", self.scheduling)
        if self.slo_ms:
            config += PARAMETER.format("slo_ms", self.slo_ms)
        version = repository / self.name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config)
        (version / "model.py").write_text(self.source)


Answer = tuple[grpc.StatusCode, Any]
"""Outcome of a call: its status, and the bytes of the response or the message of the error."""


class Rig:
    """Resources of a hazard, which are stopped when the hazard ends."""

    def __init__(self, work: Path, running: ExitStack, *, quick: bool, tell: Callable[[str], None]) -> None:
        self.quick = quick
        self.tell = tell
        """Shows what goes on."""
        self.running = running
        self._work = work
        self._numbers = itertools.count()

    def folder(self) -> Path:
        """Create a new folder and return it."""
        folder = self._work / str(next(self._numbers))
        folder.mkdir()
        return folder

    def triton(self, *models: Model, **options: Any) -> EmbeddedTriton:  # noqa: ANN401
        """Start a Triton with these models; `options` as for EmbeddedTriton."""
        repository = self.folder()
        for model in models:
            model.write(repository)
        return self.running.enter_context(EmbeddedTriton([repository], grace_s=0, **options))

    def configuration(self, *tritons: EmbeddedTriton, **fields: object) -> dict[str, Any]:
        """Return a configuration with all three services on free ports before the Tritons; `fields` are further
        settings.
        """
        addresses = [
            {"grpc": triton.grpc_address, "http": triton.http_address, "metrics": triton.metrics_address}
            for triton in tritons
        ]
        listen = dict.fromkeys(("grpc", "http", "metrics"), "127.0.0.1:0")
        return {"tritons": addresses, "listen": listen, "drain_timeout_s": 1, **fields}

    def tidegate(
        self, *tritons: EmbeddedTriton, environment: Mapping[str, str] | None = None, **fields: object
    ) -> ProxyProcess:
        """Start `tidegate serve` before the Tritons.

        `tritons`: the Tritons; `environment`: further environment variables; `fields`: further settings of the
        configuration.
        """
        folder = self.folder()
        path = folder / "tidegate.yaml"
        path.write_text(yaml.safe_dump(self.configuration(*tritons, **fields)))
        return self.running.enter_context(proxy_process(folder, "--config", str(path), environment=environment))

    def client(self, address: str) -> "Client":
        """Return a client with a connection of its own to an address, HOST:PORT."""
        return self.running.enter_context(Client(address))


class Client:
    """A gRPC client of a Triton or a Tidegate, on a connection of its own."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        options += [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
        self._channel = grpc.insecure_channel(address, options=options)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def start(self, message: Any, method: str = "ModelInfer", timeout_s: float = 60) -> Any:  # noqa: ANN401
        """Start a call; return its future.

        `message`: a protobuf message, or bytes; `method`: of Triton's service; `timeout_s`: seconds.
        """
        data = message if isinstance(message, bytes) else message.SerializeToString()
        return self._channel.unary_unary(SERVICE + method).future(data, timeout=timeout_s)

    def call(self, message: Any, method: str = "ModelInfer", timeout_s: float = 60) -> Answer:  # noqa: ANN401
        """Make a call and return its outcome.

        `message`: a protobuf message, or bytes; `method`: of Triton's service; `timeout_s`: seconds.
        """
        return outcome(self.start(message, method, timeout_s))


def outcome(under_way: Any) -> Answer:  # noqa: ANN401 - grpc is untyped
    """Wait for a started call and return its outcome."""
    try:
        return OK, under_way.result()
    except grpc.RpcError as error:
        return error.code(), error.details()
    except grpc.FutureCancelledError:
        return grpc.StatusCode.CANCELLED, ""


def request(model: str, rows: Sequence[Sequence[float]], **parameters: str) -> service_pb2.ModelInferRequest:
    """Return a ModelInferRequest with these rows, FP32 [rows, values], and parameters."""
    return request_of(model, np.array(rows, np.float32), **parameters)


def request_of(model: str, array: "np.ndarray[Any, Any]", **parameters: str) -> service_pb2.ModelInferRequest:
    """Return a ModelInferRequest with this FP32 tensor and these parameters."""
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="X", datatype="FP32", shape=array.shape)
    message.raw_input_contents.append(array.tobytes())
    for name, value in parameters.items():
        message.parameters[name].string_param = value
    return message


def tensor_of(answer: bytes) -> "np.ndarray[Any, Any]":
    """Return the first output tensor of a serialized ModelInferResponse."""
    parsed = service_pb2.ModelInferResponse.FromString(answer)
    return np.frombuffer(parsed.raw_output_contents[0], np.float32).reshape(parsed.outputs[0].shape)


def over_http(
    address: str, path: str, body: bytes | None = None, *, timeout_s: float = 60, headers: Mapping[str, str] = {}
) -> tuple[int, bytes]:
    """Make an HTTP request, POST if there is a body, else GET; return status and body of the response. Raises OSError.

    `address`: HOST:PORT; `path`: of the URL; `body`: of a POST; `timeout_s`: seconds; `headers`: further headers.
    """
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def json_request(rows: Sequence[Sequence[float]]) -> bytes:
    """Return the JSON body of an inference request over HTTP with these FP32 rows."""
    flat = [value for row in rows for value in row]
    tensor = {"name": "X", "datatype": "FP32", "shape": [len(rows), len(rows[0])], "data": flat}
    return json.dumps({"inputs": [tensor]}).encode()


def side_by_side(callers: int, total: int, one: Callable[[int], T]) -> list[T]:
    """Call `one` with each number below `total` from a pool of threads; return the results in order.

    `callers`: number of threads; `total`: number of calls; `one`: the function.
    """
    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(one, range(total)))


def until(condition: Callable[[], object], limit_s: float) -> float | None:
    """Poll a condition; return the seconds until it was true, None if it was not within `limit_s` seconds."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        if condition():
            return time.monotonic() - began
        time.sleep(0.02)
    return None
