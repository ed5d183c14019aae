"""HTTP as it is on the wire: clients that write it by hand, and something in Triton's place that only listens."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidegate_proxy.messages.model_signature import ModelSignature, TensorSpec

PLAIN = b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[1]}]}'
ECHO = ModelSignature("echo", {"X": TensorSpec("FP32", (-1,))}, frozenset({"Y"}), 8)
NOT_FOUND = b'HTTP/1.1 404 Not Found\r\nContent-Length: 21\r\nContent-Type: text/plain\r\n\r\n{"error":"Not Found"}'


def connect(server: Any) -> socket.socket:
    """A connection to a server."""
    host, _, port = server.http_address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            received += piece
    return received


def exchange(server: Any, *requests: bytes) -> bytes:
    """Everything that comes back on one connection, which the last request closes."""
    with connect(server) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for request in requests:
                connection.sendall(request)
        return read_all(connection)


def post(*lines: str, body: bytes = PLAIN, path: str = "/v2/models/echo/infer", close: bool = True) -> bytes:
    """A POST whose headers are given as they are to be on the wire."""
    head = [f"POST {path} HTTP/1.1", "Host: x", *(["Connection: close"] if close else []), *lines, "", ""]
    return "\r\n".join(head).encode("latin1") + body


class Upstream:
    """In Triton's place: keeps what it is sent, and sends what it is told once it was sent a whole head."""

    def __init__(self, answer: bytes) -> None:
        self.received = b""
        self.asked = threading.Event()
        self.left = threading.Event()
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def http_url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._serve_one(self._listener.accept()[0])

    def _serve_one(self, connection: socket.socket) -> None:
        self._connection = connection
        with connection:
            while piece := connection.recv(1 << 16):
                self.received += piece
                if b"\r\n\r\n" in self.received and not self.asked.is_set():
                    connection.sendall(self._answer)
                    self.asked.set()
            self.left.set()

    def stop(self) -> None:
        """End it, and the connection that a client may keep for later."""
        self._listener.shutdown(socket.SHUT_RDWR)
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def start_upstream() -> Iterator[Callable[[bytes], Upstream]]:
    """`start_upstream(answer)`: something in Triton's place."""
    started: list[Upstream] = []

    def start(answer: bytes) -> Upstream:
        started.append(Upstream(answer))
        return started[-1]

    yield start
    for upstream in started:
        upstream.stop()


class NoScheduler:
    """What a scheduler says of models that are always loaded and have no slots; it schedules nothing."""

    def is_split(self, _model: str) -> bool:
        """Of Inference."""
        return False

    def is_on_demand(self, _model: str) -> bool:
        """Of Inference."""
        return False

    def waits_for_slot(self, _model: str) -> bool:
        """Of Inference."""
        return False

    def why_not_bypassed(self, _model: str, _why: str) -> str:
        """Of Inference."""
        return ""


class Never(NoScheduler):
    """A scheduler that never answers."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.cancelled = threading.Event()

    async def infer(self, message: bytes, remaining_s: float | None, metadata: object = (), owner: str = "") -> bytes:
        """Of Scheduling."""
        self.asked.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError("nobody resolves it")
