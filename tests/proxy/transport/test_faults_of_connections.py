"""A fault of Tidegate's own in what carries calls: whoever is at the other end learns of it at once."""

from typing import Any

import grpc
import pytest

from tests.proxy.transport.conftest import ECHO, Serve, echo
from tidegate_proxy.transport import RpcCall
from tidegate_proxy.transport.http2.server import Http2Server, ServerConnection

LONG_S = 60.0


def _raises_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    original = getattr(owner, name)
    raised: list[str] = []

    def faulty(*arguments: Any, **options: Any) -> Any:
        if not raised:
            raised.append(name)
            raise RuntimeError(f"injected into {name}")
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, faulty)


@pytest.mark.parametrize("name", ["answer", "end"])
def test_a_call_whose_end_meets_a_fault_is_broken_off(name: str, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(call: RpcCall) -> None:
        call.receive(lambda message: call.answer(message or b"") if name == "answer" else call.end())

    served = serve(accept)
    _raises_once(monkeypatch, ServerConnection, name)
    with grpc.insecure_channel(served.address) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(ECHO)(b"x", timeout=LONG_S)
    assert failed.value.code() is grpc.StatusCode.INTERNAL


def test_a_stream_whose_first_message_meets_a_fault_can_still_be_ended(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(call: RpcCall) -> None:
        def received(_message: bytes | None) -> None:
            try:
                call.send(b"first", lambda _: None)
            except RuntimeError:
                call.end(grpc.StatusCode.INTERNAL, "it broke")

        call.receive(received)

    served = serve(accept)
    _raises_once(monkeypatch, ServerConnection, "begin")
    with grpc.insecure_channel(served.address) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary(ECHO)(b"x", timeout=LONG_S)
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.INTERNAL, "it broke")


def test_a_connection_that_meets_a_fault_as_it_is_made_is_ended(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(echo)
    _raises_once(monkeypatch, Http2Server, "admits")
    with grpc.insecure_channel(served.address) as channel:
        answer = channel.unary_unary(ECHO)(b"x", timeout=LONG_S, wait_for_ready=True)
    assert answer == b"x", "over the next connection"
