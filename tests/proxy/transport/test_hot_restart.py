"""A Tidegate that replaces another on the same ports: new connections are its own at once, and no request is lost."""

import socket
from collections.abc import Iterator

import pytest
from rich.console import Console

from bench.replacement import replace_under_load
from tests.examples import few
from tidegate_proxy.transport.ports import prefer_newest


@pytest.fixture
def port() -> Iterator[int]:
    """One that can be shared, and that nobody listens on."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(200)
    listener.setblocking(False)
    return listener


def _accepted(listener: socket.socket) -> int:
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_the_newest_of_two_gets_all_new_connections(port: int) -> None:
    listeners = [_listen(port)]
    prefer_newest(port)
    for _ in range(3):
        listeners.append(_listen(port))
        prefer_newest(port)
        with listeners.pop(0) as old:
            clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            assert (_accepted(old), _accepted(listeners[0])) == (0, 100)
        clients += [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        assert _accepted(listeners[0]) == 100, "and it is alone when the old one has closed its port"
        for client in clients:
            client.close()
    listeners[0].close()


@pytest.mark.usefixtures("start_triton")  # which skips where there is no tritonserver
@pytest.mark.parametrize("age_s", few([None, 2.0]))
def test_nothing_is_lost_when_a_tidegate_is_replaced_under_load(age_s: float | None) -> None:
    findings = replace_under_load(800, 1, Console(quiet=True), age_s, pause_s=0.02)
    assert findings.replacements == 1
    assert findings.answered["gRPC"] > 100
    assert findings.answered["HTTP"] > 100
    assert not findings.failed
