"""Probes: a Triton that is slow to say that it lives is not given up, and not asked more for it."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.clients import tensors
from tests.proxy.fixtures.fake_answers import ROW, echo
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.tritons.backend import Backend, BackendError


def test_slow_answers_are_answers(start_fake: Callable[..., Any], serve_here: Callable[..., Any]) -> None:
    fake = start_fake(echo)
    proxy = serve_here([fake])
    (backend,) = proxy.serving._discovery.backends
    fake.takes_s["ServerLive"] = 1.2
    before = fake.asked["ServerLive"]
    eventually(lambda: not backend.alive or fake.asked["ServerLive"] > before + 3, "three probes")
    assert backend.alive
    assert fake.most_at_once["ServerLive"] == 1


def test_who_answers_inferences_need_not_answer_probes(
    start_fake: Callable[..., Any],
    serve_here: Callable[..., Any],
    connect: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = start_fake(echo)
    fake.takes_s["ServerLive"] = 30.0
    proxy = serve_here([fake], limits={"health_timeout_s": 3.0})
    (backend,) = proxy.serving._discovery.backends
    client = connect(proxy)
    asked = fake.asked["ServerLive"]
    while fake.asked["ServerLive"] < asked + 2:  # so one of its probes was given up
        client.infer("echo", tensors({"X": ROW}))
        assert backend.alive
        time.sleep(0.05)  # one after the other would keep a core busy
    eventually(lambda: not backend.alive, "it to be given up once it answers nothing")
    assert "it did not answer" in caplog.text


def test_clients_who_ask_for_health_are_no_burden_to_a_triton(
    start_fake: Callable[..., Any], serve_here: Callable[..., Any], start_call: Callable[..., Any]
) -> None:
    fake = start_fake(echo)
    proxy = serve_here([fake])
    fake.takes_s["ServerReady"] = 0.5
    calls = [start_call(proxy, "ServerReady", b"") for _ in range(50)]
    assert all(service_pb2.ServerReadyResponse.FromString(call.result()).ready for call in calls)
    assert fake.most_at_once["ServerReady"] == 1


def test_the_limit_is_configured_and_changed_while_it_runs(
    start_fake: Callable[..., Any], start_proxy_here: Callable[..., Any]
) -> None:
    fake = start_fake(echo)

    def config(health_timeout_s: float) -> ServeConfig:
        listen = {"grpc": "127.0.0.1:0"}
        limits = {"health_timeout_s": health_timeout_s}
        return read_config(flags={"tritons": [fake.address], "listen": listen, "limits": limits, "policy": "fifs"})

    proxy = start_proxy_here(config(30))
    (backend,) = proxy.serving._discovery.backends
    assert backend.health_timeout_s == 30
    asyncio.run_coroutine_threadsafe(proxy.serving.reconfigure(config(0.3)), proxy.loop).result(30)
    fake.takes_s["ServerLive"] = 30.0
    eventually(lambda: not backend.alive, "it to be given up")
    del fake.takes_s["ServerLive"]
    eventually(lambda: backend.alive, "it to be taken back")


def test_a_triton_that_was_given_up_is_not_asked_again_before_its_callers_are_told(
    start_fake: Callable[..., Any], serve_here: Callable[..., Any]
) -> None:
    """Whoever was cut off when it was given up would wait for the limit a second time."""
    fake = start_fake(echo)
    proxy = serve_here([fake], limits={"health_timeout_s": 60.0})
    (backend,) = proxy.serving._discovery.backends
    membership = proxy.serving.driver.membership
    fake.takes_s["ServerLive"] = 60.0

    async def cut_off() -> bool:
        membership.give_up(backend, "it hangs")
        return bool(await membership.lost(backend, "cut off"))

    assert asyncio.run_coroutine_threadsafe(cut_off(), proxy.loop).result(120)


def test_a_server_that_is_no_triton_is_named_with_what_it_lacks(at_the_end: Callable[..., None]) -> None:
    """Dynamo's frontend speaks the protocol without the calls that tell of models."""
    live = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService",
        {
            "ServerLive": grpc.unary_unary_rpc_method_handler(
                lambda _request, _context: service_pb2.ServerLiveResponse(live=True).SerializeToString()
            )
        },
    )
    server = grpc.server(ThreadPoolExecutor(1), handlers=[live])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    at_the_end(lambda: server.stop(None).wait())

    async def asked() -> None:
        backend = Backend(TritonAddress(grpc=f"127.0.0.1:{port}"))
        try:
            await backend.models()
        finally:
            await backend.close()

    with pytest.raises(
        BackendError, match=r"has no RepositoryIndex: Tidegate needs a Triton Inference Server at its gR"
    ):
        asyncio.run(asked())
