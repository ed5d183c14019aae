"""The metrics page is closed like everything else: to nobody unless the configuration says so."""

import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate_proxy.app.metrics_page import MetricsPage

Serve = Callable[..., Any]
HEADER = {"name": "admin", "value": "s3cr3t"}


@pytest.fixture
def serve(serve_here: Serve, start_fake: Callable[..., Any]) -> Serve:
    """`serve(restricted=..., ...)`: the address of a metrics page."""
    listen = {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
    fake = start_fake(lambda _request, _context: b"")
    return lambda **options: serve_here([fake], listen=listen, **options).serving.metrics_address


def _status(address: str, path: str = "/metrics", **headers: str) -> int:
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b"tidegate_build_info" in answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_it_is_open_by_default_and_nothing_else_is_there(serve: Serve) -> None:
    address = serve()
    assert _status(address) == 200
    assert _status(address, "/metrics?x=1") == 200
    assert _status(address, "/") == 404


def test_all_of_its_routes_are_closed_with_the_metrics(serve_here: Serve, start_fake: Callable[..., Any]) -> None:
    listen = {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
    fake = start_fake(lambda _request, _context: b"")
    serving = serve_here([fake], listen=listen, restricted=[{"apis": ["metrics"], "closed": True}]).serving
    assert {*MetricsPage.ROUTES} >= {b"/metrics", b"/models", b"/layout", b"/shadow", b"/canary"}
    for path in (*map(bytes.decode, MetricsPage.ROUTES), "/dashboard/hello"):
        assert _status(serving.metrics_address, path) == 403, path


def test_it_can_ask_for_a_header(serve: Serve) -> None:
    address = serve(restricted=[{"apis": ["metrics"], "header": HEADER}])
    assert _status(address) == 403
    assert _status(address, admin="s3cr3t") == 200


def test_it_can_ask_for_a_credential(serve: Serve, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("t0ken\n")
    address = serve(authentication={"tokens_file": str(tokens), "open": ["health"]})
    assert _status(address) == 401
    assert _status(address, authorization="Bearer t0ken") == 200
    address = serve(authentication={"tokens_file": str(tokens)})
    assert _status(address) == 200
    assert {_status(address, path) for path in ("/layout", "/shadow", "/canary", "/nope")} == {401}
