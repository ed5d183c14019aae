"""Where a hazard takes place: real Tritons, `tidegate serve` as a process of its own, and clients of both."""

import http.client
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import yaml
from tritonclient.grpc import service_pb2

from bench.fault_injection.models import Model
from bench.proxy_process import ProxyProcess, proxy_process
from tidegate_proxy.tritons.embedded import EmbeddedTriton

SERVICE = "/inference.GRPCInferenceService/"
OK = grpc.StatusCode.OK
T = TypeVar("T")
Answer = tuple[grpc.StatusCode, Any]
"""How a call ended: its status, and the answer's bytes or the error's words."""


class Rig:
    """What a hazard starts here ends with it."""

    def __init__(self, work: Path, running: ExitStack, *, quick: bool, tell: Callable[[str], None]) -> None:
        self.quick = quick
        self.tell = tell
        """Shows what goes on."""
        self.running = running
        self._work = work
        self._numbers = itertools.count()

    def folder(self) -> Path:
        """A new one."""
        folder = self._work / str(next(self._numbers))
        folder.mkdir()
        return folder

    def triton(self, *models: Model, **options: Any) -> EmbeddedTriton:  # noqa: ANN401
        """A Triton with these models; options as EmbeddedTriton takes them."""
        repository = self.folder()
        for model in models:
            model.write(repository)
        return self.running.enter_context(EmbeddedTriton([repository], grace_s=0, **options))

    def configuration(self, *tritons: EmbeddedTriton, **fields: object) -> dict[str, Any]:
        """A configuration with all three services on free ports."""
        addresses = [
            {"grpc": triton.grpc_address, "http": triton.http_address, "metrics": triton.metrics_address}
            for triton in tritons
        ]
        listen = dict.fromkeys(("grpc", "http", "metrics"), "127.0.0.1:0")
        return {"tritons": addresses, "listen": listen, "drain_timeout_s": 1, **fields}

    def tidegate(
        self, *tritons: EmbeddedTriton, environment: Mapping[str, str] | None = None, **fields: object
    ) -> ProxyProcess:
        """A `tidegate serve` before them, with such a configuration."""
        folder = self.folder()
        path = folder / "tidegate.yaml"
        path.write_text(yaml.safe_dump(self.configuration(*tritons, **fields)))
        return self.running.enter_context(proxy_process(folder, "--config", str(path), environment=environment))

    def client(self, address: str) -> "Client":
        """A client with a connection of its own."""
        return self.running.enter_context(Client(address))


class Client:
    """One of a Triton or of a Tidegate, over gRPC, on a connection of its own."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        options += [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
        self._channel = grpc.insecure_channel(address, options=options)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def start(self, message: Any, method: str = "ModelInfer", timeout_s: float = 60) -> Any:  # noqa: ANN401
        """A call under way."""
        data = message if isinstance(message, bytes) else message.SerializeToString()
        return self._channel.unary_unary(SERVICE + method).future(data, timeout=timeout_s)

    def call(self, message: Any, method: str = "ModelInfer", timeout_s: float = 60) -> Answer:  # noqa: ANN401
        """A call, and how it ended."""
        return outcome(self.start(message, method, timeout_s))


def outcome(under_way: Any) -> Answer:  # noqa: ANN401 - grpc is untyped
    """How a call ended."""
    try:
        return OK, under_way.result()
    except grpc.RpcError as error:
        return error.code(), error.details()
    except grpc.FutureCancelledError:
        return grpc.StatusCode.CANCELLED, ""


def request(model: str, rows: Sequence[Sequence[float]], **parameters: str) -> service_pb2.ModelInferRequest:
    """An inference with these rows."""
    return request_of(model, np.array(rows, np.float32), **parameters)


def request_of(model: str, array: "np.ndarray[Any, Any]", **parameters: str) -> service_pb2.ModelInferRequest:
    """An inference with this tensor."""
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="X", datatype="FP32", shape=array.shape)
    message.raw_input_contents.append(array.tobytes())
    for name, value in parameters.items():
        message.parameters[name].string_param = value
    return message


def tensor_of(answer: bytes) -> "np.ndarray[Any, Any]":
    """The tensor of an answer."""
    parsed = service_pb2.ModelInferResponse.FromString(answer)
    return np.frombuffer(parsed.raw_output_contents[0], np.float32).reshape(parsed.outputs[0].shape)


def over_http(
    address: str, path: str, body: bytes | None = None, *, timeout_s: float = 60, headers: Mapping[str, str] = {}
) -> tuple[int, bytes]:
    """Status and body of an answer over HTTP: POST where there is a body, else GET. OSError where there is none."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def json_request(rows: Sequence[Sequence[float]]) -> bytes:
    """The body of an inference over HTTP."""
    flat = [value for row in rows for value in row]
    tensor = {"name": "X", "datatype": "FP32", "shape": [len(rows), len(rows[0])], "data": flat}
    return json.dumps({"inputs": [tensor]}).encode()


def side_by_side(callers: int, total: int, one: Callable[[int], T]) -> list[T]:
    """What `one` gives for each number, asked by so many callers at a time."""
    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(one, range(total)))


def until(condition: Callable[[], object], limit_s: float) -> float | None:
    """After how many seconds it came true; None where it did not within the limit."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        if condition():
            return time.monotonic() - began
        time.sleep(0.02)
    return None
