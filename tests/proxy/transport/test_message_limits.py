"""What a gRPC message may measure, before and after it is inflated, and what a larger one costs Tidegate."""

import resource
import subprocess
import sys

import grpc
import pytest

from tests.proxy.transport.conftest import Serve
from tidegate_proxy.transport import RpcCall

ECHO = "/test.Service/Echo"
LIMIT = 1 << 20
# Sends one message of zeros; what it says is how that ended. A process of its own: what it holds is not the server's.
SENDER = """
import sys, grpc
address, size, compressed, stream = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "gzip", sys.argv[4] == "stream"
compression = grpc.Compression.Gzip if compressed else None
with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)], compression=compression) as channel:
    try:
        if stream:
            list(channel.stream_stream("/test.Service/Echo")(iter([bytes(size)]), timeout=60))
        else:
            channel.unary_unary("/test.Service/Echo")(bytes(size), timeout=60)
        print("OK")
    except grpc.RpcError as error:
        print(error.code().name)
"""


@pytest.fixture
def server(serve: Serve) -> tuple[str, list[int | None]]:
    """A server with a limit, as HOST:PORT, and the sizes of the messages that it was handed."""
    seen: list[int | None] = []

    def accept(call: RpcCall) -> None:
        def received(message: bytes | None) -> None:
            seen.append(None if message is None else len(message))
            call.end(grpc.StatusCode.INTERNAL if message is None else grpc.StatusCode.OK)

        call.receive(received)

    return serve(accept, max_message_bytes=LIMIT).address, seen


def _send(address: str, size: int, *more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SENDER, address, str(size), *more],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("compression", ["plain", "gzip"])
@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_a_message_over_the_limit_is_refused_and_never_held(
    server: tuple[str, list[int | None]], compression: str, kind: str
) -> None:
    address, seen = server
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert _send(address, 64 << 20, compression, kind) == "RESOURCE_EXHAUSTED"
    assert seen in ([], [None]), "the call is told that there is no message"
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 32 << 10, "gRPC gives up at the limit: 64 MiB are neither kept nor inflated"


@pytest.mark.parametrize("compression", ["plain", "gzip"])
def test_a_message_within_the_limit_is_taken(server: tuple[str, list[int | None]], compression: str) -> None:
    address, seen = server
    _send(address, LIMIT - 1, compression, "unary")
    assert seen == [LIMIT - 1]
