"""Connections to a Triton or Tidegate in a patched process: tritonclient's own, gRPC or HTTP.

Both send without waiting, so that an open loop stays open, and report a status: OK, a gRPC status, `HTTP` and its
status, one of DROP_STATUSES, or CLIENT_TIMEOUT. The timeout is enforced in this process: a gRPC deadline would travel
with the request, and a server that schedules by deadlines would take the timeout for the SLO.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from http.client import HTTPException
from typing import Any, TypeVar

import gevent
import grpc
import numpy as np
from google.protobuf import json_format
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException, deserialize_bytes_tensor, triton_to_np_dtype

from tidegate_loadtest.connection import ANSWER_WITHIN_S, LoadTestError
from tidegate_loadtest.result import CLIENT_TIMEOUT, OK_STATUS, status_of
from tidegate_loadtest.tenant_headers import RequestHeaders

Done = Callable[[str, str, Sequence[int]], None]
"""Completion callback, called once for each request with status, error message and the instants of responses.

The message of OK is empty. Instants are those of the monotonic clock, in ns; only streams have them.
"""
T = TypeVar("T")

REAP_EVERY_S = 0.05
CHANNEL_COUNT = 6
"""TCP connections for gRPC; a thread reads the responses of each."""
HTTP_CONNECTIONS = 1000
"""Largest number of concurrent connections: geventhttpclient is limited by select().

Further requests wait, and are late.
"""


class TritonConnection(ABC):
    """Connection to one server, for requests and for the queries that precede a run."""

    def __init__(self, target: str, timeout_s: float, client: Any) -> None:  # noqa: ANN401 - tritonclient is untyped
        """Query whether the server at `target`, HOST:PORT, is live. Raises LoadTestError if none answers.

        `timeout_s`: of a request; `client`: of tritonclient.
        """
        self.target, self.timeout_s, self._client = target, timeout_s, client
        self._query(client.is_server_live)

    @abstractmethod
    def send(
        self, request: pb.ModelInferRequest, done: Done, headers: RequestHeaders = (), *, is_stream: bool = False
    ) -> None:
        """Send a request and return at once. `is_stream`: it has many responses, in a stream of its own."""

    async def model_metadata(self, model: str) -> pb.ModelMetadataResponse:
        """Return the names, types and shapes of a model's tensors. Raises LoadTestError for an unknown model."""
        answer = self._query(self._client.get_model_metadata, model)
        if isinstance(answer, dict):
            return json_format.ParseDict(answer, pb.ModelMetadataResponse(), ignore_unknown_fields=True)
        return answer

    async def model_config(self, model: str) -> model_config_pb2.ModelConfig:
        """Return a model's configuration. Raises LoadTestError for an unknown model."""
        answer = self._query(self._client.get_model_config, model)
        if isinstance(answer, dict):
            return json_format.ParseDict(answer, model_config_pb2.ModelConfig(), ignore_unknown_fields=True)
        return answer.config

    def _query(self, method: Callable[..., Any], *arguments: str) -> Any:  # noqa: ANN401 - a protobuf or JSON
        try:
            with gevent.Timeout(ANSWER_WITHIN_S):
                return method(*arguments)
        except InferenceServerException as error:
            raise LoadTestError(f"{self.target}: {' '.join(str(error.message()).split())}") from error
        except OSError as error:
            raise LoadTestError(f"{self.target}: {error.strerror or error}") from error
        except gevent.Timeout as error:
            raise LoadTestError(f"{self.target}: no answer within {ANSWER_WITHIN_S:g} s") from error


class GrpcConnection(TritonConnection):
    """Connection over gRPC: one tritonclient.grpc client per channel.

    Requests are prepared before the run and passed to the clients' stubs: a blocking `infer()` would occupy one of
    gevent's ten threads until it is answered, and later requests would wait for it.
    """

    def __init__(self, target: str, timeout_s: float) -> None:
        """Connect. Raises LoadTestError; arguments as of TritonConnection."""
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),  # else channels to one address share one TCP connection
        ]
        self._clients = [triton_grpc.InferenceServerClient(target, channel_args=options) for _ in range(CHANNEL_COUNT)]
        super().__init__(target, timeout_s, self._clients[0])
        self._stubs = [client._client_stub.ModelInfer for client in self._clients]
        self._next = 0
        self._in_flight: dict[int, tuple[float, Any]] = {}
        """In the order of their sending, with the instant at which each is given up."""
        self._given_up: set[int] = set()
        self._now_s = gevent.get_hub().loop.now
        gevent.spawn(self._reap)

    def send(
        self, request: pb.ModelInferRequest, done: Done, headers: RequestHeaders = (), *, is_stream: bool = False
    ) -> None:
        """Send a request and return at once. `is_stream`: it has many responses, in a stream of its own."""
        key = self._next
        self._next += 1
        if is_stream:
            gevent.spawn(self._stream, self._clients[key % CHANNEL_COUNT]._client_stub, request, done, headers)
            return
        call = self._stubs[key % CHANNEL_COUNT].future(request, metadata=headers)
        self._in_flight[key] = (self._now_s() + self.timeout_s, call)

        def answered(call: grpc.Future) -> None:
            self._in_flight.pop(key, None)
            given_up = key in self._given_up
            self._given_up.discard(key)
            code = call.code()
            if code is grpc.StatusCode.OK:
                done(OK_STATUS, "", ())
            elif given_up:
                done(CLIENT_TIMEOUT, f"no answer within {self.timeout_s:g} s", ())
            else:
                message = call.details() or ""
                done(status_of(message, code.name), message, ())

        call.add_done_callback(answered)

    def _stream(
        self, stub: GRPCInferenceServiceStub, request: pb.ModelInferRequest, done: Done, headers: RequestHeaders
    ) -> None:
        responses_ns: list[int] = []
        status, message = OK_STATUS, ""
        call = stub.ModelStreamInfer(iter([request]), metadata=headers)
        try:
            with gevent.Timeout(self.timeout_s):
                for answer in call:
                    if answer.error_message:
                        message = answer.error_message
                        status = status_of(message, "UNAVAILABLE")
                    else:
                        responses_ns.append(time.monotonic_ns())
        except gevent.Timeout:
            call.cancel()
            status, message = CLIENT_TIMEOUT, f"the stream did not end within {self.timeout_s:g} s"
        except grpc.RpcError as error:
            message = error.details() or ""
            status = status_of(message, error.code().name)
        done(status, message, responses_ns)

    def _reap(self) -> None:
        while True:
            gevent.sleep(REAP_EVERY_S)
            now_s = self._now_s()
            late = []
            for key, (until_s, call) in self._in_flight.items():
                if until_s > now_s:
                    break
                late.append((key, call))
            for key, call in late:
                self._given_up.add(key)
                call.cancel()


class HttpConnection(TritonConnection):
    """Connection over HTTP: a tritonclient.http client that opens connections on demand."""

    def __init__(self, target: str, timeout_s: float) -> None:
        """Connect; each request occupies a connection until it is answered. Raises LoadTestError."""
        waits = {"connection_timeout": timeout_s, "network_timeout": 2 * timeout_s}
        client = triton_http.InferenceServerClient(target, concurrency=HTTP_CONNECTIONS, **waits)
        super().__init__(target, timeout_s, client)
        self._inputs: dict[int, list[triton_http.InferInput]] = {}
        """The inputs as HTTP has them, by the identity of the prepared request, of which there are few."""
        self._prepared: list[pb.ModelInferRequest] = []

    def send(
        self, request: pb.ModelInferRequest, done: Done, headers: RequestHeaders = (), *, is_stream: bool = False
    ) -> None:
        """Send a request and return at once. Streams need gRPC."""
        assert not is_stream, "checked before the run"
        gevent.spawn(self._infer, request, done, headers)

    def _infer(self, request: pb.ModelInferRequest, done: Done, headers: RequestHeaders) -> None:
        inputs = self._inputs.get(id(request)) or self._convert(request)
        try:
            with gevent.Timeout(self.timeout_s):
                self._client.infer(request.model_name, inputs, headers=dict(headers))
        except gevent.Timeout:
            done(CLIENT_TIMEOUT, f"no answer within {self.timeout_s:g} s", ())
        except InferenceServerException as error:
            message = str(error.message())
            done(status_of(message, f"HTTP {error.status()}" if error.status() else "HTTP"), message, ())
        except (OSError, HTTPException) as error:
            done(type(error).__name__, str(error), ())
        else:
            done(OK_STATUS, "", ())

    def _convert(self, request: pb.ModelInferRequest) -> list[triton_http.InferInput]:
        self._prepared.append(request)  # keeps its identity its own
        inputs = []
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
            if tensor.datatype == "BYTES":
                array = deserialize_bytes_tensor(raw)
            else:
                array = np.frombuffer(raw, triton_to_np_dtype(tensor.datatype))
            converted = triton_http.InferInput(tensor.name, list(tensor.shape), tensor.datatype)
            converted.set_data_from_numpy(array.reshape(tensor.shape))
            inputs.append(converted)
        self._inputs[id(request)] = inputs
        return inputs


CONNECTIONS_BY_PROTOCOL: dict[str, Callable[[str, float], TritonConnection]] = {
    "grpc": GrpcConnection,
    "http": HttpConnection,
}
"""Constructors, from target and timeout, by protocol."""


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the value of a coroutine that queries a TritonConnection: it never suspends, so it needs no event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("a coroutine waited for something else than this connection")
