"""A Triton that is never ready, or slow to answer, serves what it has: Tidegate starts behind it and takes it back."""

import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.fake_answers import ROW, echo
from tidegate_proxy.tritons.backend import BackendError

Make = Callable[..., Any]


def _breaks(fake: Any) -> None:
    """It has another model, which could not be loaded."""
    fake.answers["ServerReady"] = service_pb2.ServerReadyResponse(ready=False).SerializeToString()
    index = service_pb2.RepositoryIndexResponse.FromString(fake.answers["RepositoryIndex"])
    index.models.add(name="bad", version="1", state="UNAVAILABLE", reason="Internal: weights are missing")
    fake.answers["RepositoryIndex"] = index.SerializeToString()


@pytest.fixture
def infers(call: Make) -> Callable[[Any], bool]:
    """Whether an inference through a proxy is answered."""
    return lambda proxy: call(proxy, "ModelInfer", request_of("echo", {"X": ROW}))[0] is grpc.StatusCode.OK


@pytest.fixture
def broken(start_fake: Make) -> Any:
    """A Triton of which one model could not be loaded."""
    fake = start_fake(echo)
    _breaks(fake)
    return fake


def test_one_model_that_is_broken_keeps_no_other_from_being_served(
    broken: Any, serve_here: Make, infers: Callable[[Any], bool], caplog: pytest.LogCaptureFixture
) -> None:
    proxy = serve_here([broken], startup_timeout_s=0.1)
    assert infers(proxy)
    assert "weights are missing" in caplog.text


def test_a_triton_with_a_broken_model_is_taken_back(
    start_fake: Make, serve_here: Make, infers: Callable[[Any], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_proxy.service.discovery.EVERY_S", 0.02)
    fake = start_fake(echo)
    proxy = serve_here([fake])
    (backend,) = proxy.serving._discovery.backends
    live = fake.answers.pop("ServerLive")
    eventually(lambda: not backend.alive, "it to be given up")
    _breaks(fake)
    fake.answers["ServerLive"] = live
    eventually(lambda: backend.alive, "it to be taken back")
    assert infers(proxy)


def test_the_configuration_may_name_a_model_that_is_broken(
    broken: Any, serve_here: Make, infers: Callable[[Any], bool]
) -> None:
    assert infers(serve_here([broken], startup_timeout_s=0.1, models={"bad": {"slo_ms": 30, "scheduling": "batched"}}))


def test_a_model_that_is_being_loaded_is_waited_for_no_longer_than_wait_s(
    broken: Any, serve_here: Make, infers: Callable[[Any], bool]
) -> None:
    index = service_pb2.RepositoryIndexResponse.FromString(broken.answers["RepositoryIndex"])
    index.models[1].state = "LOADING"
    broken.answers["RepositoryIndex"] = index.SerializeToString()
    assert infers(serve_here([broken], startup_timeout_s=1.0))
    assert broken.asked["ServerReady"] > 1


@pytest.mark.parametrize("method", ["RepositoryIndex", "ModelConfig"])
def test_a_triton_that_does_not_answer_yet_is_asked_again_until_wait_s(
    method: str, start_fake: Make, serve_here: Make, infers: Callable[[Any], bool]
) -> None:
    fake = start_fake(echo)
    answer = fake.answers.pop(method)
    asked = threading.Event()
    give_back = threading.Thread(target=lambda: asked.wait(60) and fake.answers.update({method: answer}))

    class Asked(type(fake.asked)):  # type: ignore[misc]
        def __setitem__(self, name: str, count: int) -> None:
            super().__setitem__(name, count)
            if name == method and count >= 3:
                asked.set()

    fake.asked = Asked()
    give_back.start()
    proxy = serve_here([fake], startup_timeout_s=30.0)
    give_back.join()
    assert infers(proxy)


def test_a_triton_that_does_not_answer_within_wait_s_is_said(start_fake: Make, serve_here: Make) -> None:
    fake = start_fake(echo)
    del fake.answers["ModelConfig"]
    with pytest.raises(BackendError, match="not now"):
        serve_here([fake], startup_timeout_s=0.1)
