"""EndpointSlices at an API server that this file simulates: its objects fit the schema of the real one."""

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.proxy.fixtures.api_server import NAMESPACE, NOT_READY, READY, TERMINATING, TOKEN, serving_api
from tidegate_proxy.configuration.triton_sources import SourceError, TritonSource
from tidegate_proxy.tritons import endpoint_slices, kubernetes_api
from tidegate_proxy.tritons.sources import list_tritons, watch_tritons

ZONE = "topology.kubernetes.io/zone"


def _source(port: int | None, **fields: Any) -> TritonSource:
    api = {} if port is None else {"api": f"http://127.0.0.1:{port}"}
    service = {"service": "triton", "namespace": NAMESPACE, **api, **fields}
    return TritonSource.model_validate_json(json.dumps({"kubernetes": service}))


def _run(test: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


def _hosts(answer: Any) -> list[str]:
    assert not isinstance(answer, SourceError), answer
    return [triton.grpc for triton in answer]


def test_ready_pods_are_followed_through_changes_and_ends_of_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_slices, "MIN_RETRY_DELAY_S", 0.01)

    async def test() -> None:
        async with serving_api() as (server, port):
            await server.put("a", {"10.0.0.1": READY, "10.0.0.2": NOT_READY, "10.0.0.3": {}})
            answers = watch_tritons(_source(port))
            assert _hosts(await anext(answers)) == ["10.0.0.1:8001", "10.0.0.3:8001"]
            changed = asyncio.ensure_future(anext(answers))
            await server.put("b", {"10.0.0.9": READY})
            assert _hosts(await changed) == ["10.0.0.1:8001", "10.0.0.3:8001", "10.0.0.9:8001"]
            await server.put("a", {"10.0.0.1": TERMINATING})
            assert _hosts(await anext(answers)) == ["10.0.0.9:8001"]
            await server.expire()  # the slices are listed again
            assert _hosts(await anext(answers)) == ["10.0.0.9:8001"]
            changed = asyncio.ensure_future(anext(answers))
            await server.put("a", {"10.0.0.4": READY})
            assert _hosts(await changed) == ["10.0.0.4:8001", "10.0.0.9:8001"]
            await server.delete("b")
            assert _hosts(await anext(answers)) == ["10.0.0.4:8001"]
            assert server.watches == 2
            await answers.aclose()

    _run(test)


def test_a_pod_with_two_addresses_counts_once_and_ipv6_hosts_have_brackets() -> None:
    async def test() -> None:
        async with serving_api() as (server, port):
            await server.put("six", {"fd00::1": READY}, "IPv6")
            assert _hosts(await list_tritons(_source(port))) == ["[fd00::1]:8001"]
            await server.put("four", {"10.0.0.1": READY}, "IPv4")
            assert _hosts(await list_tritons(_source(port))) == ["10.0.0.1:8001"]

    _run(test)


def test_labels_become_device_classes() -> None:
    async def test() -> None:
        async with serving_api() as (server, port):
            pods = {
                f"10.0.0.{number}": {
                    "zone": "west",
                    "targetRef": {"kind": "Pod", "name": f"pod-{number}", "uid": f"u{number}"},
                }
                for number in (1, 2)
            }
            await server.put("a", pods)
            server.labels = {"pod-1": {"gpu": "a100"}, "pod-2": {}}
            of_label = await list_tritons(_source(port, device_class_label="gpu"))
            assert [triton.device_class for triton in of_label] == ["a100", None]
            of_zone = await list_tritons(_source(port, device_class_label=ZONE))
            assert [triton.device_class for triton in of_zone] == ["west", "west"]
            server.refuses = {"/pods/pod-1": 403}
            with pytest.raises(SourceError, match=r"answers 403 to .*; let Tidegate's service account get pods there"):
                await list_tritons(_source(port, device_class_label="gpu"))

    _run(test)


def test_what_goes_wrong_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def test() -> None:
        with pytest.raises(SourceError, match=r"kubernetes service triton: Tidegate runs in no pod .*; set its `api`"):
            await list_tritons(_source(None))
        async with serving_api() as (server, port):
            server.refuses = {"/endpointslices": 403}
            with pytest.raises(SourceError, match=r"answers 403 .*list and watch endpointslices.discovery.k8s.io"):
                await list_tritons(_source(port))
            del server.refuses["/endpointslices"]
            server.slices = {"a": {"metadata": {"name": "a"}, "endpoints": [{"addresses": []}]}}
            with pytest.raises(SourceError, match="slices make no sense: IndexError"):
                await list_tritons(_source(port))
            server.refuses = {"/endpointslices": 503}
            answers = watch_tritons(_source(port))
            assert "answers 503" in str(await anext(answers))
            await answers.aclose()
        with pytest.raises(SourceError, match="the API server cannot be asked: "):
            await list_tritons(_source(port))

    _run(test)


def test_in_a_pod_the_service_account_opens_the_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "namespace").write_text(NAMESPACE)
    (tmp_path / "token").write_text("old")
    monkeypatch.setattr(kubernetes_api, "SERVICE_ACCOUNT", tmp_path)

    async def test() -> None:
        async with serving_api(ssl_context=tls) as (server, port):
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
            await server.put("a", {"10.0.0.1": READY})
            server.token = TOKEN
            source = TritonSource.model_validate_json(json.dumps({"kubernetes": "triton"}))
            with pytest.raises(SourceError, match=r"answers 401 .*; mount the token of a service account"):
                await list_tritons(source)
            (tmp_path / "token").write_text(TOKEN + "\n")  # it changes from time to time
            assert _hosts(await list_tritons(source)) == ["10.0.0.1:8001"]

    _run(test)
