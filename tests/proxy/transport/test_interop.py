"""gRPC's interop cases through server and channel, one behind the other, as a proxy has them: grpcio's on both ends.

The names are those of grpc/doc/interop-test-descriptions.md. Not met: what needs metadata of the server's, or messages
that the server compresses, for no Triton sends either.
"""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.conftest import eventually
from tests.proxy.transport.conftest import LoopThread, config_of, new_server
from tidegate_proxy.transport import Channel, Metadata, PendingStream, RpcCall
from tidegate_proxy.transport.client_bounds import ClientBounds

UNARY, STREAM = "/test.Service/Unary", "/test.Service/Stream"
SPECIAL = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"


class Service:
    """What is behind the proxy."""

    def __init__(self) -> None:
        self.metadata: list[Any] = []
        self.left = threading.Event()
        self.released = threading.Event()

    def unary(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Echo, unless metadata say otherwise."""
        self._look_at(context)
        return request

    def stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Each request twice, unless metadata say otherwise."""
        self._look_at(context)
        for request in requests:
            yield request
            yield request

    def _look_at(self, context: grpc.ServicerContext) -> None:
        self.metadata = list(context.invocation_metadata())
        asked = dict(self.metadata)
        if not context.add_callback(self.left.set):  # its client has left already
            self.left.set()
        if "x-sleep" in asked:
            self.released.wait(30)
        if "x-status" in asked:
            context.abort(grpc.StatusCode[str(asked["x-status"])], asked["x-details-bin"].decode())


class Relay:
    """A stream on its way: each message is asked for when the one before is gone."""

    def __init__(self, call: RpcCall, channel: Channel) -> None:
        self._call = call
        self._onward: PendingStream = channel.stream(call.method, call.end, _passed_on(call), call.remaining_s())
        call.add_disconnect_callback(self._onward.cancel)
        call.receive(self._asked)
        self._onward.receive(self._answered)

    def _asked(self, message: bytes | None) -> None:
        if message is None:
            self._onward.half_close()
        else:
            self._onward.send(message, lambda _: self._call.receive(self._asked))

    def _answered(self, message: bytes) -> None:
        self._call.send(message, lambda _: self._onward.receive(self._answered))


def _passed_on(call: RpcCall) -> Metadata:
    return [(key, value) for key, value in call.metadata if key != "user-agent"]


@pytest.fixture
def service() -> Service:
    """Fresh for each test."""
    return Service()


@pytest.fixture(params=["direct", "proxy"])
def client(request: pytest.FixtureRequest, loop: LoopThread, service: Service) -> Iterator[grpc.Channel]:
    """A client of the service: of itself, and through the proxy. What differs is a fault of the test, or of ours."""
    behind = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(service.unary),
        "Stream": grpc.stream_stream_rpc_method_handler(service.stream),
    }
    behind.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", handlers)])
    address = f"127.0.0.1:{behind.add_insecure_port('127.0.0.1:0')}"
    behind.start()
    onward = loop.call(lambda: Channel(address))

    def accept(call: RpcCall) -> None:
        if call.method == STREAM:
            Relay(call, onward)
            return

        def received(message: bytes | None) -> None:
            def answered(answer: bytes | None, code: grpc.StatusCode, details: str) -> None:
                if answer is None:
                    call.end(code, details)
                else:
                    call.answer(answer)

            pending = onward.unary(call.method, message or b"", answered, _passed_on(call), call.remaining_s())
            call.add_disconnect_callback(pending.cancel)

        call.receive(received)

    server = loop.call(lambda: new_server(config_of(), accept, ClientBounds()))
    port = loop.run(server.listen("127.0.0.1:0"))
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address if request.param == "direct" else f"127.0.0.1:{port}", options) as channel:
        yield channel
    service.released.set()
    loop.run(server.stop(0))
    loop.run(onward.close())
    behind.stop(None).wait()


def test_empty_unary(client: grpc.Channel) -> None:
    assert client.unary_unary(UNARY)(b"", timeout=30) == b""


@pytest.mark.parametrize("compression", list(grpc.Compression))
def test_large_unary_and_client_compressed_unary(client: grpc.Channel, compression: grpc.Compression) -> None:
    message = bytes(range(256)) * 1100
    assert client.unary_unary(UNARY)(message, compression=compression, timeout=30) == message


@pytest.mark.parametrize("compression", list(grpc.Compression))
def test_ping_pong_and_client_compressed_streaming(client: grpc.Channel, compression: grpc.Compression) -> None:
    requests: queue.Queue[bytes | None] = queue.Queue()
    answers = client.stream_stream(STREAM)(iter(requests.get, None), compression=compression, timeout=30)
    for size in (27182, 8, 1828, 45904, 0, 3 << 20):
        requests.put(bytes(size))
        assert [len(next(answers)), len(next(answers))] == [size, size]
    requests.put(None)
    assert list(answers) == []
    assert answers.code() is grpc.StatusCode.OK


def test_empty_stream(client: grpc.Channel) -> None:
    assert list(client.stream_stream(STREAM)(iter(()), timeout=30)) == []


@pytest.mark.parametrize("method", [UNARY, STREAM])
def test_custom_metadata(client: grpc.Channel, service: Service, method: str) -> None:
    metadata: Metadata = [
        ("x-grpc-test-echo-initial", "test_initial_metadata_value"),
        ("x-grpc-test-echo-trailing-bin", b"\xab\xab\xab"),
        ("x-grpc-test-echo-trailing-bin", b"\x00,"),
        ("x-twice", "one"),
        ("x-twice", "two, three"),
    ]
    _finish(client, method, metadata)
    assert [pair for pair in service.metadata if pair[0].startswith("x-")] == metadata


@pytest.mark.parametrize("method", [UNARY, STREAM])
@pytest.mark.parametrize("details", ["test status message", SPECIAL, ""], ids=["plain", "special", "none"])
def test_status_code_and_message_and_special_status_message(client: grpc.Channel, method: str, details: str) -> None:
    metadata: Metadata = [("x-status", "UNKNOWN"), ("x-details-bin", details.encode())]
    with pytest.raises(grpc.RpcError) as failed:
        _finish(client, method, metadata)
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.UNKNOWN, details)


@pytest.mark.parametrize("method", ["/test.Service/Unimplemented", "/test.Unimplemented/Unary"])
def test_unimplemented_method_and_service(client: grpc.Channel, method: str) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        client.unary_unary(method)(b"", timeout=30)
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", [UNARY, STREAM])
def test_cancel_after_begin(client: grpc.Channel, service: Service, method: str) -> None:
    asked = [("x-sleep", "yes")]
    pending = (
        client.unary_unary(method).future(b"", metadata=asked)
        if method == UNARY
        else client.stream_stream(method)(iter(queue.Queue().get, None), metadata=asked)
    )
    eventually(lambda: service.metadata, "the call to arrive")
    pending.cancel()
    assert pending.code() is grpc.StatusCode.CANCELLED
    assert service.left.wait(30)


def test_cancel_after_first_response(client: grpc.Channel, service: Service) -> None:
    requests: queue.Queue[bytes | None] = queue.Queue()
    answers = client.stream_stream(STREAM)(iter(requests.get, None), timeout=30)
    requests.put(bytes(27182))
    assert len(next(answers)) == 27182
    answers.cancel()
    assert answers.code() is grpc.StatusCode.CANCELLED
    assert service.left.wait(30)
    requests.put(None)


@pytest.mark.parametrize("method", [UNARY, STREAM])
def test_timeout_on_sleeping_server(client: grpc.Channel, service: Service, method: str) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        _finish(client, method, [("x-sleep", "yes")], timeout_s=0.5)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    if service.metadata:  # else it did not come in time
        assert service.left.wait(30)


def test_concurrent_large_unary(client: grpc.Channel) -> None:
    call = client.unary_unary(UNARY)
    pending = [call.future(bytes([number % 256]) * 271_828, timeout=60) for number in range(100)]
    assert [one.result()[:1] for one in pending] == [bytes([number % 256]) for number in range(100)]


def _finish(client: grpc.Channel, method: str, metadata: Metadata, timeout_s: float = 30.0) -> None:
    if method == UNARY:
        client.unary_unary(method)(b"x", metadata=metadata, timeout=timeout_s)
    else:
        list(client.stream_stream(method)(iter([b"x"]), metadata=metadata, timeout=timeout_s))
