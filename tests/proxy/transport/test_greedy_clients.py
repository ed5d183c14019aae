"""gRPC clients that send without end, never end, or read nothing: what they may hold is bounded, and given back."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from tests.conftest import eventually
from tests.proxy.transport.conftest import LoopThread
from tidegate_proxy.configuration.limits import LimitsConfig
from tidegate_proxy.configuration.settings import CurrentSettings, SettingsHolder
from tidegate_proxy.transport import Http2Server as Server
from tidegate_proxy.transport import RpcCall
from tidegate_proxy.transport.client_bounds import ClientBounds

METHOD = "/test.Service/Method"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MIB = 1 << 20
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
Eventually = Callable[[Callable[[], object], str], None]


class Wire:
    """A client that speaks HTTP/2 with its bare hands, and never opens its window: it takes 64 KiB and no more."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=120)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

    def ask(self, stream: int, method: str = METHOD) -> None:
        """A unary call with an empty message."""
        fields = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "x"}
        fields |= {"te": "trailers", "content-type": "application/grpc"}
        block = b"".join(b"\0%c%b%c%b" % (len(n), n.encode(), len(v), v.encode()) for n, v in fields.items())
        self.socket.sendall(frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, bytes(5)))

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """What the server sends: type, flags and payload; settings are acknowledged."""
        with contextlib.suppress(ConnectionError), self.socket.makefile("rb") as file:
            while head := file.read(9):
                kind, flags = head[3], head[4]
                payload = file.read(int.from_bytes(head[:3], "big"))
                if kind == SETTINGS and not flags & ACK:
                    self.socket.sendall(frame(SETTINGS, ACK, 0))
                yield kind, flags, payload


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


@pytest.fixture
def serve(loop: LoopThread) -> Iterator[Callable[..., str]]:
    """`serve(accept, ClientBounds(...), write_timeout_s=..., ...)`: a server, as HOST:PORT."""
    servers: list[Server] = []

    def start(accept: Callable[[RpcCall], None], bounds: ClientBounds, **limits: float) -> str:
        servers.append(loop.call(lambda: Server(accept, LimitsConfig.model_validate(limits), bounds)))
        return f"127.0.0.1:{loop.run(servers[-1].listen('127.0.0.1:0'))}"

    yield start
    for server in servers:
        loop.run(server.stop(0))


@pytest.fixture
def wire() -> Iterator[Callable[[str], Wire]]:
    """`wire(address)`: such a client, closed at the end."""
    wires: list[Wire] = []

    def connect(address: str) -> Wire:
        wires.append(Wire(address))
        return wires[-1]

    yield connect
    for one in wires:
        one.socket.close()


def test_a_stream_that_sends_too_much_ends(serve: Callable[..., str]) -> None:
    bounds = ClientBounds(SettingsHolder(CurrentSettings(max_in_flight_bytes=MIB)))
    gone = threading.Event()

    def accept(call: RpcCall) -> None:
        def received(message: bytes | None) -> None:
            if message:
                call.receive(received)

        call.add_disconnect_callback(gone.set)
        call.receive(received)

    with grpc.insecure_channel(serve(accept, bounds)) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            list(channel.stream_stream(METHOD)(iter([bytes(400_000)] * 5), timeout=60))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert gone.wait(120), "who works for it is told"
        eventually(lambda: bounds.in_flight_bytes == 0, "what it held to be given back")


def test_a_message_that_never_comes_ends_its_call(serve: Callable[..., str]) -> None:
    bounds = ClientBounds()
    address = serve(lambda call: call.receive(lambda message: call.answer(message or b""), 0.3), bounds)
    never = threading.Event()
    with grpc.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as ended:
            channel.stream_unary(METHOD)((b"" for _ in iter(never.wait, True)), timeout=60)
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert ended.value.details() == "the request did not come within its time limit"
        assert channel.unary_unary(METHOD)(b"in time", timeout=60) == b"in time"
        never.set()
    assert bounds.ended == {("grpc", "request_timeout_s"): 1}


# The whole proxy ------------------------------------------------------------------------------------------------------


@pytest.fixture
def limited(serve_here: Callable[..., Any], triton: Any) -> Callable[..., Any]:
    """`limited(max_concurrent_streams=..., ...)`: a proxy in this process with such limits."""
    return lambda **limits: serve_here([triton], limits=limits)


def test_settings_carry_the_limit_of_streams(limited: Callable[..., Any], wire: Callable[[str], Wire]) -> None:
    client = wire(limited(max_concurrent_streams=77).address)
    payload = next(payload for kind, _, payload in client.frames() if kind == SETTINGS)
    settings = dict(struct.unpack_from(">HI", payload, at) for at in range(0, len(payload), 6))
    assert settings[3] == 77


def test_connections_are_bounded_and_handshakes_end(limited: Callable[..., Any]) -> None:
    host, _, port = limited(max_connections=5, request_headers_timeout_s=0.5).address.rpartition(":")
    silent = [socket.create_connection((host, int(port)), timeout=120) for _ in range(20)]

    def ended(connection: socket.socket) -> bool:
        with contextlib.suppress(ConnectionError), connection:
            while connection.recv(1 << 16):
                pass
        return True

    assert all(map(ended, silent))
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=60)


def test_pings_without_need_end_a_connection(limited: Callable[..., Any], wire: Callable[[str], Wire]) -> None:
    client = wire(limited().address)
    client.socket.sendall(20 * frame(PING, 0, 0, bytes(8)))
    assert GOAWAY in (kind for kind, _, _ in client.frames())


def test_an_old_connection_is_told_to_go(limited: Callable[..., Any], wire: Callable[[str], Wire]) -> None:
    client = wire(limited(max_connection_age_s=0.3).address)
    assert GOAWAY in (kind for kind, _, _ in client.frames())
