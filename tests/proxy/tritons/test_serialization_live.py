"""Two models on one emulated GPU: they take turns once Tidegate finds that they slow each other down."""

import json
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.conftest import PATIENCE_S
from tests.proxy.fixtures.clients import tensors
from tests.proxy.fixtures.here import ProxyHere
from tests.python_models import write_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_proxy.tritons.serialization import InterferenceEstimator
from tidegate_triton_models import model_source

BODY = """
backend: "python" max_batch_size: 8 instance_group { count: 1 kind: KIND_CPU }
input { name: "X" data_type: TYPE_FP32 dims: [ 3 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] }
"""
TAKES_MS = 8
TAKES_NS = TAKES_MS * 1_000_000
SLOS = {name: {"slo_ms": 500 * PATIENCE_S} for name in "ab"}


@pytest.fixture(scope="module")
def sliced(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """Beside each other both take twice as long."""
    repository = tmp_path_factory.mktemp("models")
    told = {"board": str(repository / ".board"), "uses": {"1": [0, 0, 1]}, "minds": [0, 0, 1]}
    for name in "ab":
        parameters = {"alpha_ms": "0", "beta_ms": str(TAKES_MS), "neighbors": json.dumps(told)}
        written = " ".join(
            f"parameters {{ key: {json.dumps(key)} value: {{ string_value: {json.dumps(value)} }} }}"
            for key, value in parameters.items()
        )
        write_model(repository, name, model_source("emulated_gpu").read_text(), f"{BODY} {written}")
    return start_triton([repository])


def _hosts(proxy: ProxyHere) -> list[tuple[str, ...]]:
    return sorted(worker.hosts for worker in proxy.engine.policy.setup.workers)


def _asked_until(reached: Callable[[], bool], proxy: ProxyHere, connect: Callable[..., Any]) -> list[tuple[str, int]]:
    """Have both models asked, at moments of their own, until something is so; what was answered wrongly."""
    wrong, ends, stop = list[tuple[str, int]](), time.monotonic() + PATIENCE_S, threading.Event()

    def ask(model: str) -> None:
        random, client, number = Random(model), connect(proxy), 0
        while not stop.is_set():
            number += 1
            answer = client.infer(model, tensors({"X": np.full((1, 3), number, np.float32)})).as_numpy("Y")
            if not (answer == number).all():
                wrong.append((model, number))
            time.sleep(random.uniform(0, 0.03))

    threads = [threading.Thread(target=ask, args=(model,)) for model in "ab"]
    for thread in threads:
        thread.start()
    try:
        while not reached() and time.monotonic() < ends:
            time.sleep(0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return wrong


def test_models_that_are_in_each_others_way_take_turns_and_no_answer_is_lost(
    sliced: EmbeddedTriton,
    serve_here: Callable[..., ProxyHere],
    connect: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slowdown is given: how long stages take hangs on what else this machine does."""
    monkeypatch.setattr(InterferenceEstimator, "value", 1.0)
    monkeypatch.setattr(InterferenceEstimator, "took_ns", lambda *_: (TAKES_NS, TAKES_NS))
    told = {"grpc": sliced.grpc_address, "serialize_models": "learned"}
    proxy = serve_here([], "symphony", tritons=[told], models=SLOS)
    assert _hosts(proxy) == [("a",), ("b",)]
    wrong = _asked_until(lambda: _hosts(proxy) == [("a", "b")], proxy, connect)
    assert not wrong
    assert _hosts(proxy) == [("a", "b")]
    (worker,) = proxy.engine.policy.setup.workers
    assert worker.name.endswith("/a+1/0")
    assert worker.device_class == "default serialized"


def test_by_default_nothing_that_was_learned_keeps_models_from_running_side_by_side(
    sliced: EmbeddedTriton, serve_here: Callable[..., ProxyHere]
) -> None:
    """A model may call another one through Tidegate: in turn with it, it would wait for itself."""
    proxy = serve_here([sliced], "symphony", models=SLOS)
    assert [backend.learns_turns for backend in proxy.serving._discovery.backends] == [False]
    assert _hosts(proxy) == [("a",), ("b",)]


def test_the_configuration_decides_it_instead(sliced: EmbeddedTriton, serve_here: Callable[..., ProxyHere]) -> None:
    for serialize_models, hosts in ((True, [("a", "b")]), (False, [("a",), ("b",)])):
        told = {"grpc": sliced.grpc_address, "serialize_models": serialize_models}
        proxy = serve_here([], "symphony", tritons=[told], models=SLOS)
        assert _hosts(proxy) == hosts
