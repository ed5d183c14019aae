"""The dashboard before a real Triton: what it tells, to whom, and that it looks only while somebody does."""

import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import PATIENCE_S
from tests.proxy.fixtures.calls import request_of
from tidegate_proxy.app import metrics_page
from tidegate_proxy.app.dashboard import viewers
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ASKS = {"x-tidegate-page": "1"}
LOCAL = {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
ROW = np.array([[1.0, 2.0]], np.float32)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "TICK_S", 0.05)
    monkeypatch.setattr(viewers, "LINGER_S", 0.1)


def ask(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Status and text."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{address}{path}", headers=named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=4 * PATIENCE_S) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def looking(address: str, **headers: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """Follow the events; what is called gives the next snapshot."""
    request = urllib.request.Request(f"http://{address}/dashboard/events", headers={**ASKS, **headers})
    with urllib.request.urlopen(request, timeout=4 * PATIENCE_S) as answer:
        assert answer.headers["content-type"] == "text/event-stream"

        def following() -> dict[str, Any]:
            line = answer.readline()
            assert answer.readline() == b"\n"
            told: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            return told

        yield following


def test_what_it_tells_and_that_it_looks_only_while_a_viewer_does(
    serve_here: Make, triton: EmbeddedTriton, call: Make
) -> None:
    proxy = serve_here([triton], policy="symphony", listen=LOCAL)
    address = proxy.serving.metrics_address
    status, page = ask(address, "/dashboard")
    assert status == 200
    assert re.search(r"(src|href)=[\"']?(https?:)?//", page) is None, "it needs no network"
    assert json.loads(ask(address, "/dashboard/hello", **ASKS)[1])["policy"] == "symphony"
    assert proxy.in_loop(lambda: proxy.engine._witness) is None
    readers = proxy.engine.reducer._readers
    with looking(address) as following:
        following()
        assert proxy.in_loop(lambda: proxy.engine._witness) is not None
        for _ in range(12):
            assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is grpc.StatusCode.OK
        snapshot = following()
        decisions = [each["what"] for each in snapshot["decisions"]]
        while len(snapshot["worst"]) < 12:
            snapshot = following()
            decisions += [each["what"] for each in snapshot["decisions"]]
        echo = next(model for model in snapshot["models"] if model["name"] == "echo")
        assert (echo["on_time"], echo["late"]) == (1.0, 0)
        assert echo["p50_ms"] > 0
        assert {worker["state"] for worker in snapshot["workers"]} == {"up"}
        assert "dispatch" in decisions
        assert snapshot["shapes"][0]["took_ms"] > 0
        worst = snapshot["worst"][0]
        timeline = json.loads(ask(address, f"/dashboard/timeline?request={worst['id']}", **ASKS)[1])
        assert (timeline["id"], timeline["model"], timeline["outcome"]) == (worst["id"], "echo", "on time")
        assert [step["what"] for step in timeline["steps"]][-1] == "answered"
        assert sum(part["ms"] for part in timeline["parts"]) == pytest.approx(worst["latency_ms"], abs=0.01)
        assert ask(address, "/dashboard/timeline?request=999999", **ASKS)[0] == 404
        assert ask(address, "/dashboard/timeline?request=x", **ASKS)[0] == 400
        status, text = ask(address, "/dashboard/what-if", "POST", **ASKS)
        assert status == 200, text
        told = json.loads(text)
        assert (told["requests"], told["actual"]) == (12, 1.0)
        assert [each["share"] for each in told["answers"] if each["name"] == "unchanged"] == [1.0]
        assert {each["why"] for each in told["answers"]} == {""}
    give_up = time.monotonic() + PATIENCE_S
    while proxy.in_loop(lambda: proxy.engine._witness) is not None:
        assert time.monotonic() < give_up, "it looks on though nobody does"
    assert proxy.engine.reducer._readers == readers


@pytest.fixture
def serve(serve_here: Make, start_fake: Make) -> Make:
    """`serve(dashboard=..., ...)`: the address of a page, before a Triton that is none."""
    fake = start_fake(lambda _request, _context: b"")
    return lambda **options: serve_here([fake], **{"listen": LOCAL, **options}).serving.metrics_address


def test_its_history_is_there_when_it_opens_again(
    serve_here: Make, triton: EmbeddedTriton, call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_page, "STEP_S", 0.02)
    proxy = serve_here([triton], policy="symphony", listen=LOCAL)
    address = proxy.serving.metrics_address
    for _ in range(5):
        assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is grpc.StatusCode.OK

    def history(since: int = 0) -> dict[str, Any]:
        status, text = ask(address, f"/dashboard/history?since={since}", **ASKS)
        assert status == 200, text
        told: dict[str, Any] = json.loads(text)
        return told

    give_up = time.monotonic() + PATIENCE_S
    while "echo" not in (told := history())["models"] or len(told["at_s"]) < 3:
        assert time.monotonic() < give_up, told
    echo = told["models"]["echo"]
    assert max(echo["on_time"]) > 0
    assert max(p99_ms for p99_ms in echo["p99_ms"] if p99_ms is not None) > 0
    assert {len(told["at_s"]), len(told["busiest"])} == {len(echo["on_time"])}
    assert max(told["busiest"]) > 0
    assert told["busiest_worker"][-1]
    again = history(since=len(told["at_s"]) - 1)
    assert again["first"] == len(told["at_s"]) - 1
    assert again["at_s"][0] == told["at_s"][-1], "a page that has the others gets no more than it needs"
    assert ask(address, "/dashboard/history")[0] == 403
    assert ask(address, "/dashboard/history?since=x", **ASKS)[0] == 400


def test_pages_of_other_sites_learn_nothing(serve: Make) -> None:
    address = serve()
    assert ask(address, "/dashboard/hello")[0] == 403  # what a form or a picture of another page can ask
    assert ask(address, "/dashboard/hello", **ASKS, host="evil.example")[0] == 403  # a name that leads here
    port = address.rpartition(":")[2]
    assert ask(address, "/dashboard/hello", **ASKS, host=f"LOCALHOST:{port}")[0] == 200
    assert ask(address, "/dashboard/what-if", **ASKS)[0] == 405
    assert ask(address, "/dashboard/nothing", **ASKS)[0] == 404
    assert ask(address, "/dashboard/at?ms=5", **ASKS)[0] == 400
    policy = urllib.request.urlopen(f"http://{address}/dashboard", timeout=60).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_where_any_host_can_reach_it_a_token_is_asked_for(serve: Make, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("t0ken\n")
    everywhere = {"grpc": "127.0.0.1:0", "metrics": "0.0.0.0:0"}

    def here(address: str) -> str:
        return f"127.0.0.1:{address.rpartition(':')[2]}"

    assert ask(here(serve(listen=everywhere)), "/dashboard")[0] == 403
    assert ask(here(serve(listen=everywhere)), "/dashboard/hello", **ASKS)[0] == 403
    for options in ({"dashboard": {"token_file": str(tokens)}}, {"authentication": {"tokens_file": str(tokens)}}):
        address = here(serve(listen=everywhere, **options))
        assert ask(address, "/dashboard")[0] == 200  # the frame, which tells nothing
        assert ask(address, "/dashboard/hello", **ASKS)[0] == 401
        assert ask(address, "/dashboard/hello", **ASKS, authorization="Bearer other")[0] == 401
        assert ask(address, "/dashboard/hello", **ASKS, authorization="Bearer t0ken", host="tidegate.example")[0] == 200
        assert ask(address, "/metrics")[0] == 200
        with looking(address, authorization="Bearer t0ken") as following:
            assert following()["viewers"] == 1


def test_who_may_look_no_more_is_shown_no_more(serve_here: Make, start_fake: Make, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("t0ken\n")
    fake = start_fake(lambda _request, _context: b"")
    proxy = serve_here([fake], listen=LOCAL, dashboard={"token_file": str(tokens)})
    address = proxy.serving.metrics_address
    with looking(address, authorization="Bearer t0ken") as following:
        assert following()["policy"] == "fifs"
        tokens.write_text("another\n")
        proxy.run(proxy.serving.reconfigure(proxy.serving.config))
        with pytest.raises(AssertionError):  # the stream has ended: there is no line any more
            for _ in range(20):
                following()
    assert ask(address, "/dashboard/hello", **ASKS, authorization="Bearer t0ken")[0] == 401


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux cuts such clients off so soon")
def test_one_who_never_reads_holds_no_seat(serve: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "STUCK_S", 0.5)
    monkeypatch.setattr(viewers, "MAX_VIEWERS", 1)
    address = serve()
    host, _, port = address.partition(":")
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        stuck.connect((host, int(port)))
        stuck.sendall(b"GET /dashboard/events HTTP/1.1\r\nhost: localhost\r\nx-tidegate-page: 1\r\n\r\n")
        stuck.recv(1)  # it is seated
        assert ask(address, "/dashboard/events", **ASKS)[0] == 503
        give_up = time.monotonic() + PATIENCE_S
        while True:
            try:
                with looking(address):
                    return
            except urllib.error.HTTPError:
                assert time.monotonic() < give_up, "it holds its seat"
                time.sleep(0.1)


def test_it_can_be_off(serve: Make) -> None:
    address = serve(dashboard={"enabled": False})
    assert ask(address, "/dashboard")[0] == 404
    assert ask(address, "/dashboard/hello", **ASKS)[0] == 404


def test_who_may_not_see_the_metrics_may_not_look(serve: Make) -> None:
    address = serve(restricted=[{"apis": ["metrics"], "header": {"name": "admin", "value": "s3cr3t"}}])
    assert ask(address, "/dashboard/hello", **ASKS)[0] == 403
    assert ask(address, "/dashboard/hello", **ASKS, admin="s3cr3t")[0] == 200
