"""What the rest of the proxy can put into the http_server: handlers, a guard, TLS; and a fault in it."""

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import trustme

from tests.proxy.servers.http.by_hand import NoScheduler
from tests.proxy.servers.http.conftest import fetch
from tidegate_proxy.access.gate import HttpRefusal, http_refusal
from tidegate_proxy.configuration.apis import Api
from tidegate_proxy.messages.model_signature import ModelSignature, TensorSpec
from tidegate_proxy.servers.http import HttpAnswer, HttpCall, start_server
from tidegate_proxy.servers.http.interface import Handler
from tidegate_proxy.servers.http.routes import Route
from tidegate_proxy.transport.client_bounds import ClientBounds
from tidegate_proxy.transport.ports import bind

NOWHERE = "http://127.0.0.1:1"
PLAIN = b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[1]}]}'
ECHO = ModelSignature("echo", {"X": TensorSpec("FP32", (-1,))}, frozenset({"Y"}), 8)


class Broken(NoScheduler):
    """A scheduler with a fault."""

    async def infer(self, message: bytes, remaining_s: float | None, metadata: object = (), owner: str = "") -> bytes:
        """Of Scheduling."""
        raise ZeroDivisionError


def test_overrides_answer_in_tritons_place(start_http_server: Callable[..., Any]) -> None:
    calls: list[HttpCall] = []

    async def handler(call: HttpCall) -> HttpAnswer:
        calls.append(call)
        return HttpAnswer(201, [(b"x-mine", b"1")], b"body")

    def overrides(method: str, route: Route) -> Handler | None:
        return handler if (method, route.pattern) == ("POST", "/v2/models/{model}/stats") else None

    http_server = start_http_server([NOWHERE], None, {}.get, overrides=overrides)
    answer = fetch(http_server.http_address, "POST", "/v2/models/mine/versions/3/stats?a=b", b"asked", {"X": "y"})
    assert (answer.status, answer.body, answer.header("x-mine")) == (201, b"body", "1")
    (call,) = calls
    assert (call.route.model, call.route.version, call.query, call.body) == ("mine", "3", b"a=b", b"asked")
    assert (b"X", b"y") in call.headers  # as the client wrote it
    assert (
        fetch(http_server.http_address, "GET", "/v2/models/mine/stats").status == 503
    )  # another method is not overridden


def test_a_guard_refuses_before_the_body_is_read(start_http_server: Callable[..., Any]) -> None:
    seen = []

    def guard(api: Api | None, headers: Mapping[str, str]) -> HttpRefusal | None:
        seen.append((api, headers["x"]))
        return http_refusal(403, "not for you", ("x-why", "because")) if headers.get("key") != "right" else None

    http_server = start_http_server([NOWHERE], Broken(), {"echo": ECHO}.get, guard=guard)
    path = "/v2/models/echo/infer"
    answer = fetch(http_server.http_address, "POST", path, None, {"X": "1", "Key": "wrong", "Content-Length": "999"})
    assert (answer.status, answer.body) == (403, b'{"error":"not for you"}')
    assert answer.header("x-why") == "because"
    assert fetch(http_server.http_address, "POST", path, PLAIN, {"X": "2", "Key": "right"}).status == 500
    assert fetch(http_server.http_address, "GET", "/v2/x?q", None, {"X": "3", "Key": "right"}).status == 503
    assert seen == [("inference", "1"), ("inference", "2"), (None, "3")]


def test_faults_of_our_own_are_errors_as_triton_has_them(start_http_server: Callable[..., Any]) -> None:
    http_server = start_http_server([NOWHERE], Broken(), {"echo": ECHO}.get)
    answer = fetch(http_server.http_address, "POST", "/v2/models/echo/infer", PLAIN)
    assert (answer.status, list(json.loads(answer.body))) == (500, ["error"])


def test_tls(tmp_path: Path, start_http_server: Callable[..., Any]) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    subprocess.run([*command, "-out", certificate, "-keyout", key], check=True, capture_output=True, timeout=120)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    http_server = start_http_server([NOWHERE], Broken(), {"echo": ECHO}.get, tls=context)
    trusting = ssl.create_default_context(cafile=str(certificate))
    connection = http.client.HTTPSConnection(
        http_server.http_address.replace("127.0.0.1", "localhost"), context=trusting
    )
    with contextlib.closing(connection):
        connection.request("POST", "/v2/models/echo/infer", PLAIN)
        assert connection.getresponse().status == 500


async def test_a_stop_ends_connections_whose_clients_do_not_answer_the_close() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def answer(_scope: object, _receive: object, _send: object) -> None:
        """Nothing is asked here."""

    def connect(port: int) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        return trusting.wrap_socket(plain, server_hostname="localhost")

    bounds = ClientBounds()
    server = await start_server(answer, bind("127.0.0.1:0"), tls=context, bounds=bounds)
    with await asyncio.to_thread(connect, server.port):
        async with asyncio.timeout(60):
            while not bounds.connections["http"]:
                await asyncio.sleep(0.001)
            await server.drain(0.0)
            await server.stop()
            while bounds.connections["http"]:
                await asyncio.sleep(0.001)
