"""Tritons that come and go while Tidegate serves, as lists say: none of the requests in flight is lost."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.fake_answers import echo
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.configuration.triton_sources import SourceError
from tidegate_proxy.tritons import sources
from tidegate_proxy.tritons.backend import BackendError

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
CALLERS = 6


@pytest.fixture
def listed(tmp_path: Path, start_proxy_here: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`listed(tritons, **fields)`: a proxy whose Tritons a file lists, and what writes another list into it."""

    monkeypatch.setattr(sources, "FILE_POLL_S", 0.02)

    def start(*tritons: Any, **fields: Any) -> tuple[Any, Make]:
        path = tmp_path / "tritons.json"

        def write(*tritons: Any) -> None:
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps([getattr(triton, "address", triton) for triton in tritons]))
            fresh.replace(path)

        write(*tritons)
        document = {
            "tritons": {"file": str(path)},
            "policy": "fifs",
            "listen": "127.0.0.1:0",
            "batch_verification": {"fraction": 0},
            "drain_timeout_s": 5.0,
            "startup_timeout_s": 2.0,
            **fields,
        }
        return start_proxy_here(read_config(flags=document)), write

    return start


def _in_use(proxy: Any) -> list[str]:
    return sorted(triton.grpc for triton in proxy.serving.config.tritons)


def _addresses(*tritons: Any) -> list[str]:
    return sorted(getattr(triton, "address", triton) for triton in tritons)


def test_a_rolling_update_under_load_loses_nothing(listed: Make, echo_load: Make, start_fake: Make) -> None:
    old = [start_fake(echo) for _ in range(2)]
    proxy, write = listed(*old)
    outcomes = echo_load(proxy, CALLERS)
    pods = list(old)
    for place, leaver in enumerate(old):
        pods[place] = start_fake(echo)
        if place == 0:  # as told by the list, and stopped once it is not used any more
            write(*pods)
            eventually(lambda: _in_use(proxy) == _addresses(*pods), "the list to be followed")
            leaver.stop(grace_s=30)
        else:  # it ends before the list says so
            leaver.stop(grace_s=30)
            write(*pods)
            eventually(lambda: _in_use(proxy) == _addresses(*pods), "the list to be followed")
        so_far = outcomes.total()
        eventually(lambda seen=so_far: outcomes.total() > seen + 200, "requests to be answered")
    assert set(outcomes) == {"right"}, outcomes
    workers = {worker.name.partition("/")[0] for worker in proxy.serving.catalog.workers}
    assert sorted(workers) == _addresses(*pods)


def test_what_is_listed_joins_when_it_is_ready_and_mistakes_in_a_list_end_nothing(
    listed: Make, start_fake: Make, call: Make, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = start_fake(echo), start_fake(echo)
    second.answers["ServerReady"] = service_pb2.ServerReadyResponse(ready=False).SerializeToString()
    second.refusals["RepositoryIndex"] = (grpc.StatusCode.UNAVAILABLE, "loading")
    proxy, write = listed(first)
    path = Path(proxy.serving.config.discovery[0].file)

    def said(words: str) -> bool:
        return words in caplog.text

    write(first, second)
    eventually(lambda: said(f"Triton at {second.address} is listed and does not join: it is not ready"), "a word")
    assert _in_use(proxy) == _addresses(first)
    del second.refusals["RepositoryIndex"]
    eventually(lambda: _in_use(proxy) == _addresses(first, second), "it to join")

    for mistake, words in (
        ("[]", "it lists no Triton; those that it listed before stay"),
        ("[gpu-1]", "0.grpc: 'gpu-1' is not HOST:PORT"),
        ("[{grpc: 'a:1', worker: w}]", "worker: with a layout every Triton"),
        ("{a: 1}", "tritons.json: must be a list"),
    ):
        path.write_text(mistake)
        eventually(lambda words=words: said(words), f"a word on {mistake}")
    path.unlink()
    eventually(lambda: said("No such file"), "a word on a file that is gone")
    assert _in_use(proxy) == _addresses(first, second)

    nobody = "127.0.0.1:1"
    write(nobody)  # until it can take over, the others serve
    eventually(lambda: said(f"Triton at {nobody} is listed"), "it to be asked")
    assert _in_use(proxy) == _addresses(first, second)
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is grpc.StatusCode.OK
    write(second)
    eventually(lambda: _in_use(proxy) == _addresses(second), "the first to leave")


def test_a_reload_keeps_what_was_discovered_and_follows_other_sources(listed: Make, start_fake: Make) -> None:
    found, named = start_fake(echo), start_fake(echo)
    proxy, _ = listed(found)
    read = read_config(flags={"tritons": {"file": str(proxy.serving.config.discovery[0].file)}})
    proxy.run(proxy.serving.reconfigure(read.model_copy(update={"drain_timeout_s": 1.0})))
    assert _in_use(proxy) == _addresses(found)
    proxy.run(proxy.serving.reconfigure(read_config(flags={"tritons": [named.address]})))
    assert _in_use(proxy) == _addresses(named)
    proxy.run(proxy.serving.reconfigure(read))
    eventually(lambda: _in_use(proxy) == _addresses(found), "what is named no more to leave")


def test_tritons_of_a_name_come_and_go_as_it_resolves(
    start_proxy_here: Make, start_fake: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start_fake(echo, address="127.0.0.2:0")
    port = int(first.address.rpartition(":")[2])
    second = start_fake(echo, address=f"127.0.0.3:{port}")
    hosts = ["127.0.0.2"]
    resolve = socket.getaddrinfo

    def answer(host: str, *rest: Any, **named: Any) -> Any:
        if host != "triton.test":
            return resolve(host, *rest, **named)
        if not hosts:
            raise OSError("no such name")
        return [each for host in hosts for each in resolve(host, *rest, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    source = {"dns": "triton.test", "port": port, "interval_s": 0.05, "device_class": "a100"}
    proxy = start_proxy_here(read_config(flags={"tritons": source, "policy": "fifs", "listen": "127.0.0.1:0"}))
    assert _in_use(proxy) == _addresses(first)
    assert {worker.device_class for worker in proxy.serving.catalog.workers} == {"a100"}
    hosts[:] = ["127.0.0.2", "127.0.0.3"]
    eventually(lambda: _in_use(proxy) == _addresses(first, second), "the second to join")
    hosts.clear()
    hosts.append("127.0.0.3")
    eventually(lambda: _in_use(proxy) == _addresses(second), "the first to leave")


def test_the_end_waits_for_no_silent_dns_server(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait() and [])
    monkeypatch.setattr(sources, "RESOLVE_TIMEOUT_S", 0.01)
    source = read_config(flags={"tritons": {"dns": "triton.test", "port": 8001}}).discovery[0]
    with pytest.raises(SourceError, match=r"triton\.test: it does not resolve \(no answer in 0\.01 s\)"):
        asyncio.run(sources.list_tritons(source))
    assert not answers.is_set()
    answers.set()


def test_without_any_triton_it_does_not_start_and_says_why(listed: Make) -> None:
    with pytest.raises(BackendError, match=r"no Triton is found after 0.1 s: .*the Triton at 127.0.0.1:1 is not ready"):
        listed("127.0.0.1:1", startup_timeout_s=0.1)
    with pytest.raises(BackendError, match=r"file .*: it lists no Triton; is one ready\?"):
        listed(startup_timeout_s=0.1)


def test_the_own_address_in_a_list_never_joins(
    listed: Make, start_fake: Make, call: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers every probe; requests would come back, and no model would ever be gone."""
    triton = start_fake(echo)
    proxy, write = listed(triton)
    write(triton, proxy.address)
    words = f"Triton at {proxy.address} is listed and does not join: {proxy.address} leads back to Tidegate itself"
    eventually(lambda: words in caplog.text, "a word on the own address")
    nobody = "127.0.0.1:1"
    write(proxy.address, nobody)  # instead of the Triton, which stays
    eventually(lambda: f"Triton at {nobody} is listed" in caplog.text, "the list to be read")
    assert call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is grpc.StatusCode.OK
    assert _in_use(proxy) == _addresses(triton)


def test_two_tidegates_that_list_each_other_part_again(
    listed: Make, start_proxy_here: Make, start_fake: Make, caplog: pytest.LogCaptureFixture
) -> None:
    triton = start_fake(echo)
    proxy, write = listed(triton)
    other = start_proxy_here(read_config(flags={"tritons": [proxy.address], "policy": "fifs", "listen": "127.0.0.1:0"}))
    write(triton, other.address)
    eventually(lambda: f"{other.address} leads back to Tidegate itself" in caplog.text, "a word on the loop")
    eventually(lambda: _in_use(proxy) == _addresses(triton), "the loop to be opened")


def test_a_tidegate_that_another_one_lists_by_mistake_keeps_its_triton(
    listed: Make, start_proxy_here: Make, start_fake: Make, call: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one does not let it join, but asks it again and again; its own tokens must not come back with that."""
    triton = start_fake(echo)
    proxy, write = listed(triton)
    first = start_proxy_here(read_config(flags={"tritons": [proxy.address], "policy": "fifs", "listen": "127.0.0.1:0"}))
    eventually(lambda: proxy.serving._tritons._loops._others_s, "a token of the first one")
    write(triton, first.address)
    eventually(lambda: f"{first.address} leads back to Tidegate itself" in caplog.text, "a word on the loop")
    assert not any(backend.leads_back for backend in first.serving._discovery.backends)
    assert call(first, "ModelInfer", request_of("echo", {"X": ROW}))[0] is grpc.StatusCode.OK
