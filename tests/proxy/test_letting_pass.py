"""Models that are in each other's way pass as they are where that is better: with real clients before a real Triton."""

import json
import logging
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.proxy.fixtures.here import ProxyHere
from tidegate_proxy import letting_pass, pass_or_schedule, turn_taking
from tidegate_proxy.embedded import EmbeddedTriton
from tidegate_proxy.letting_pass import LettingPass
from tidegate_proxy.live_page.trials import section_of
from tidegate_proxy.pass_or_schedule import Way
from tidegate_proxy.slowdown import Slowdown
from tidegate_triton_models import model_source

Make = Callable[..., Any]
BODY = """
backend: "python" max_batch_size: 8 dynamic_batching { } instance_group { count: 1 kind: KIND_CPU }
input { name: "X" data_type: TYPE_FP32 dims: [ 3 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] }
"""
TAKES_MS, SLO_MS, CLIENTS = 60, 280, 8
"""Eight clients' requests take 480 ms one after the other, and together 60 to 120."""
TOLD = {"m": {"slo_ms": SLO_MS, "batch": "alone"}}
ASKED = {"pass_if_better": True}
LISTEN = {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
LIMIT_S = 90.0


@pytest.fixture(scope="module")
def batching(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """Its batcher makes batches that take as long as one request does."""
    repository = tmp_path_factory.mktemp("models")
    version = repository / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(model_source("emulated_gpu").read_text())
    written = " ".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
        for key, value in (("alpha_ms", 0), ("beta_ms", TAKES_MS))
    )
    (version.parent / "config.pbtxt").write_text(f"{BODY} {written}")
    return start_triton([repository])


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Models seem to be in each other's way, and cannot take turns; it is decided sooner than usual."""
    monkeypatch.setattr(Slowdown, "value", property(lambda _: 1.0))
    monkeypatch.setattr(turn_taking, "WORTH", 9.0)
    monkeypatch.setattr(letting_pass, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(pass_or_schedule, "SLOS_A_BLOCK", 2)
    monkeypatch.setattr(pass_or_schedule, "SHORTEST_BLOCK_NS", 500_000_000)
    monkeypatch.setattr(pass_or_schedule, "TOO_MUCH", 0.0)
    monkeypatch.setattr(pass_or_schedule, "ENOUGH", 10)
    return monkeypatch


def _letting(proxy: ProxyHere) -> LettingPass:
    return proxy.serving.trial.letting_pass


def _asked_until(reached: Callable[[], bool], proxy: ProxyHere, connect: Make, tensors: Make) -> list[Any]:
    """Have all clients ask, until something is so; what was answered wrongly."""
    wrong, ends, stop = list[Any](), time.monotonic() + LIMIT_S, threading.Event()

    def ask(client_number: int) -> None:
        client, number = connect(proxy), 0
        while not stop.is_set():
            number += 1
            value = 1000 * client_number + number
            try:
                answer = client.infer("m", tensors({"X": np.full((1, 3), value, np.float32)})).as_numpy("Y")
            except Exception as error:
                if "timeout expired" not in str(error):
                    wrong.append(error)
                time.sleep(0.02)
                continue
            if not (answer == value).all():
                wrong.append((client_number, number))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
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


def _page(proxy: ProxyHere, path: str) -> str:
    with urllib.request.urlopen(f"http://{proxy.serving.metrics_address}/{path}") as answer:
        return str(answer.read().decode())


def _busy_s(proxy: ProxyHere) -> float:
    lines = _page(proxy, "metrics").splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("tidegate_worker_busy_seconds_total{"))


def test_they_pass_once_that_was_seen_to_be_better_and_the_operator_sees_it(
    batching: EmbeddedTriton,
    serve_here: Make,
    connect: Make,
    tensors: Make,
    hurried: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, letting_pass.__name__)
    proxy = serve_here([], tritons=[{"grpc": batching.grpc_address}], listen=LISTEN, models=TOLD, **ASKED)
    assert not _asked_until(lambda: _letting(proxy).way_of("m") is Way.PASSED, proxy, connect, tensors)
    assert _letting(proxy).way_of("m") is Way.PASSED
    said = [record.getMessage() for record in caplog.records if record.name == letting_pass.__name__]
    assert [f": {way}: " in line for way, line in zip((Way.COMPARED, Way.PASSED), said, strict=True)] == [True, True]
    assert 'tidegate_passes{model="m"} 1.0' in _page(proxy, "metrics")
    (model,) = json.loads(_page(proxy, "models"))
    assert model["way"] == "passed as they are"
    section = section_of(proxy.serving.trial)
    assert section is not None
    assert (section.mode, section.note) == ("passing", "Passed as they are.")
    assert [row.model for row in section.rows] == ["m"]
    before, letting = _busy_s(proxy), _letting(proxy)
    assert letting._looked_ns is not None
    letting._looked_ns -= 10 * 1_000_000_000
    proxy.in_loop(lambda: letting.look(time.monotonic_ns()))
    assert _busy_s(proxy) - before >= 9.0, "who scales by that is not to take it for idle"
    hurried.setattr(Slowdown, "value", property(lambda _: 0.1))
    proxy.in_loop(lambda: _letting(proxy).look(time.monotonic_ns()))
    assert _letting(proxy).way_of("m") is Way.SCHEDULED
    assert "tidegate_passes{" not in _page(proxy, "metrics")
    assert section_of(proxy.serving.trial) is None


@pytest.mark.parametrize("said", ["canary", "in turn", "side by side", "no slo", "two tritons", "tenants", "nothing"])
def test_it_is_not_tried_where_the_operator_has_said_otherwise_or_it_could_not_be_told(
    said: str, batching: EmbeddedTriton, serve_here: Make, hurried: pytest.MonkeyPatch
) -> None:
    triton: dict[str, Any] = {"grpc": batching.grpc_address}
    more: dict[str, Any] = {"models": TOLD, **ASKED}
    match said:
        case "canary":
            more["canary"] = 1.0
        case "in turn" | "side by side":
            triton["in_turn"] = said == "in turn"
        case "nothing":
            more["pass_if_better"] = False
        case "tenants":
            more["clients"] = {"by": "token"}
        case "no slo":
            more["models"] = {"m": {"batch": "alone"}}
    tritons = [triton]
    if said == "two tritons":
        tritons.append({"grpc": batching.grpc_address.replace("127.0.0.1", "localhost")})
    proxy = serve_here([], tritons=tritons, **more)
    proxy.in_loop(lambda: _letting(proxy).look(time.monotonic_ns()))
    assert not _letting(proxy)._of


def test_another_policy_begins_anew(batching: EmbeddedTriton, serve_here: Make, hurried: pytest.MonkeyPatch) -> None:
    proxy = serve_here([], tritons=[{"grpc": batching.grpc_address}], models=TOLD, **ASKED)
    letting = _letting(proxy)
    proxy.in_loop(lambda: letting.look(time.monotonic_ns()))
    before = dict(letting._of)
    assert set(before) == {"m"}
    config = proxy.serving.config
    proxy.run(proxy.serving.reconfigure(config.model_copy(update={"drain_s": 1.0})))
    assert letting._of == before
    other = config.policy.model_copy(update={"name": "eager"})
    proxy.run(proxy.serving.reconfigure(config.model_copy(update={"policy": other})))
    proxy.in_loop(lambda: letting.look(time.monotonic_ns()))
    assert letting._of["m"] is not before["m"]
