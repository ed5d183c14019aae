"""Models that are loaded for their first requests, on a real Triton with room for two of three."""

import asyncio
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of, rest_of
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.service import on_demand as on_demand_models
from tidegate_proxy.service.on_demand import OnDemandModels
from tidegate_proxy.tritons.backend import Backend
from tidegate_proxy.tritons.catalog import Catalog
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_proxy.tritons.process_memory import ProcessMemory, growth

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
MIB = 1 << 20
WEIGHTS_MIB = 96
MODELS = ("first", "second", "third")
HEAVY = f"""
    def initialize(self, args):
        self.weights = bytearray(b"x") * ({WEIGHTS_MIB} << 20)
"""
EXPLICIT = ["--model-control-mode=explicit"]


@pytest.fixture(scope="module")
def heavy_triton(start_triton: Make, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """A Triton with three models, none of them loaded, and one that fails to load."""
    repository = tmp_path_factory.mktemp("heavy")
    for name in MODELS:
        source = add_model(repository, name, "max_batch_size: 4") / "model.py"
        source.write_text(source.read_text().replace("    def initialize(self, args):\n", HEAVY, 1))
    (add_model(repository, "broken", "max_batch_size: 4") / "model.py").write_text("raise ImportError('no torch')")
    triton: EmbeddedTriton = start_triton([repository], options=EXPLICIT)
    return triton


@pytest.fixture
def heavy(heavy_triton: EmbeddedTriton, call: Make) -> EmbeddedTriton:
    """That Triton, with no model loaded."""
    for name in MODELS:
        call(heavy_triton, "RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name=name))
    return heavy_triton


def _serve(serve_here: Make, triton: EmbeddedTriton, memory: str | None = f"{WEIGHTS_MIB}MiB", **fields: Any) -> Any:
    told = {"memory": memory} if memory else {}
    models = {name: {"load": "on-demand", **told} for name in (*MODELS, "broken")}
    for name, given in fields.pop("models", {}).items():
        models[name] = {**models[name], **given}
    address = {"grpc": triton.grpc_address, "http": triton.http_address, "model_memory": f"{2.5 * WEIGHTS_MIB:g}MiB"}
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    return serve_here([], tritons=[address], models=models, listen=listen, **fields)


def _loaded(proxy: Any) -> set[str]:
    return set(proxy.serving.catalog.hosts)


@pytest.fixture
def ask(call: Make) -> Make:
    """`ask(proxy, model, timeout=60)`: status and message of one inference."""

    def asked(proxy: Any, model: str, timeout: float = 60) -> tuple[grpc.StatusCode, str]:
        code, answer = call(proxy, "ModelInfer", request_of(model, {"X": ROW}), timeout=timeout)[:2]
        return code, "" if code is OK else str(answer)

    return asked


def test_two_of_three_are_in_memory_and_the_model_asked_for_is_loaded(
    heavy: EmbeddedTriton, serve_here: Make, ask: Make, start_call: Make
) -> None:
    proxy = _serve(serve_here, heavy)
    assert _loaded(proxy) == set()
    together = [start_call(proxy, "ModelInfer", request_of("first", {"X": ROW}), timeout=60) for _ in range(8)]
    assert {outcome(one)[0] for one in together} == {OK}
    models = proxy.serving._on_demand
    assert (models.loads.total(), models.evictions.total()) == (1, 0)  # once for all of them
    assert ask(proxy, "second")[0] is OK
    for _ in range(30):  # it is worth more than the second, however long either took to load
        assert ask(proxy, "first")[0] is OK
    assert _loaded(proxy) == {"first", "second"}
    assert ask(proxy, "third")[0] is OK
    assert _loaded(proxy) == {"first", "third"}
    row = {"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [1, 1, 1]}
    body = json.dumps({"inputs": [row]}).encode()
    request = Request(f"http://{proxy.serving.http_address}/v2/models/second/infer", body)
    with urlopen(request, timeout=60) as answer:
        assert json.load(answer)["outputs"][0]["data"] == [1, 1, 1]
    assert len(_loaded(proxy)) == 2
    assert (models.loads.total(), models.evictions.total()) == (4, 2)
    slow = http.client.HTTPConnection(proxy.serving.http_address)
    slow.putrequest("POST", "/v2/models/second/infer")
    slow.putheader("content-length", str(len(body)))
    slow.endheaders(body[:9])
    while "second" in _loaded(proxy):
        assert [ask(proxy, model)[0] for model in ("first", "third")] == [OK, OK]
    slow.send(body[9:])
    assert slow.getresponse().status == 200, "it is loaded when the body is there"
    slow.close()
    assert {metric.name for metric in models.collect()} == {
        "tidegate_on_demand_loads", "tidegate_on_demand_prefetches", "tidegate_on_demand_evictions",
        "tidegate_on_demand_memory_bytes",
    }  # fmt: skip


def test_streams_load_too_and_what_has_requests_in_flight_is_not_evicted(
    gate: Any, start_triton: Make, serve_here: Make, start_call: Make, open_stream: Make, tmp_path: Path
) -> None:
    for name, gated in (("busy", {"gate": gate.file}), ("other", {})):
        add_model(tmp_path, name, "max_batch_size: 4", **gated)
    triton = start_triton([tmp_path], options=EXPLICIT)
    models = {name: {"load": "on-demand", "memory": "10MiB"} for name in ("busy", "other")}
    tritons = [{"grpc": triton.grpc_address, "http": triton.http_address, "model_memory": "15MiB"}]
    listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    proxy = serve_here([], tritons=tritons, models=models, listen=listen)
    running = start_call(proxy, "ModelInfer", request_of("busy", {"X": ROW}), timeout=60)
    eventually(gate.somebody_waits, "it to run")
    stream = open_stream(proxy, [request_of("other", {"X": ROW})], timeout=60)
    eventually(lambda: proxy.serving._on_demand._waiting["other"], "the other to wait for room")
    assert _loaded(proxy) == {"busy"}
    waiting = proxy.serving._on_demand._waiting
    leaving = open_stream(proxy, [request_of("other", {"X": ROW})], timeout=60)
    http_leaving = http.client.HTTPConnection(proxy.serving.http_address)
    http_leaving.request("POST", "/v2/models/other/infer", "{}")
    eventually(lambda: waiting["other"] == 3, "others to wait, too")
    leaving.cancel()
    http_leaving.close()
    eventually(lambda: waiting["other"] == 1, "those who have left to be forgotten")
    gate.open()
    assert outcome(running)[0] is OK
    answers, code, _ = rest_of(stream)
    assert (len(answers), answers[0].error_message, code) == (1, "", OK)
    assert _loaded(proxy) == {"other"}
    gate.shut()
    calls = [start_call(proxy, "ModelInfer", request_of("busy", {"X": ROW}), timeout=60)]
    eventually(gate.somebody_waits, "it to run")
    calls.append(start_call(proxy, "ModelInfer", request_of("other", {"X": ROW}), timeout=60))
    eventually(lambda: waiting["other"] == 1, "the other to wait for room")
    os.kill(triton.pid, signal.SIGKILL)
    assert [outcome(each)[0] for each in calls] == [UNAVAILABLE] * 2


def test_a_stream_without_end_does_not_keep_requests_from_its_model(
    gate: Any,
    start_triton: Make,
    serve_here: Make,
    start_call: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another model waits for its memory: the time for which its requests wait for the eviction is limited."""
    monkeypatch.setattr(on_demand_models, "MIN_TURN_S", 0.1)
    monkeypatch.setattr(on_demand_models, "MAX_DRAIN_S", 0.1)
    for name, gated in (("busy", {"gate": gate.file}), ("other", {})):
        add_model(tmp_path, name, "max_batch_size: 4", **gated)
    triton = start_triton([tmp_path], options=EXPLICIT)
    models = {name: {"load": "on-demand", "memory": "10MiB"} for name in ("busy", "other")}
    proxy = serve_here([], tritons=[{"grpc": triton.grpc_address, "model_memory": "15MiB"}], models=models)
    calls = [start_call(proxy, "ModelInfer", request_of("busy", {"X": ROW}), timeout=60)]
    eventually(gate.somebody_waits, "it to run")
    on_demand = proxy.serving._on_demand
    calls.append(start_call(proxy, "ModelInfer", request_of("other", {"X": ROW}), timeout=60))
    eventually(lambda: "busy" in on_demand._evicting, "requests to wait for the eviction")
    calls.append(start_call(proxy, "ModelInfer", request_of("busy", {"X": ROW}), timeout=60))
    eventually(lambda: proxy.engine.tally.accepted == 2, "the second one to go on")
    gate.open()
    assert [outcome(each)[0] for each in calls] == [OK] * 3


def test_a_client_that_fills_the_queue_of_loads_leaves_others_their_share(
    gate: Any, start_triton: Make, serve_here: Make, start_call: Make, call: Make, tmp_path: Path
) -> None:
    for name, gated in (("busy", {"gate": gate.file}), ("other", {})):
        add_model(tmp_path, name, "max_batch_size: 4", **gated)
    triton = start_triton([tmp_path], options=EXPLICIT)
    proxy = serve_here(
        [],
        tritons=[{"grpc": triton.grpc_address, "model_memory": "15MiB"}],
        models={name: {"load": "on-demand", "memory": "10MiB"} for name in ("busy", "other")},
        clients={"by": "metadata", "key": "who"},
        limits={
            "max_queue_size": 10,
            "reserved_queue_fraction_per_client": 0.1,
            "reserved_queue_fraction_per_model": 0.0,
        },
    )
    calls = [start_call(proxy, "ModelInfer", request_of("busy", {"X": ROW}), timeout=60)]
    eventually(gate.somebody_waits, "it to run")
    waiting = proxy.serving._on_demand._waiting

    def ask_as(client: str) -> Any:
        return start_call(proxy, "ModelInfer", request_of("other", {"X": ROW}), 60, [("who", client)])

    calls += [ask_as("greedy") for _ in range(10)]
    eventually(lambda: waiting["other"] == 10, "the queue to be full")
    code, words, *_ = outcome(ask_as("greedy"))
    assert (code, words) == (UNAVAILABLE, "Exceeds maximum queue size")
    calls.append(ask_as("modest"))
    eventually(lambda: waiting["other"] == 11, "the other client to wait as well")
    assert outcome(ask_as("modest"))[0] is UNAVAILABLE
    gate.open()
    assert {outcome(each)[0] for each in calls} == {OK}
    assert not proxy.serving._on_demand._waiting_of_client


def test_models_that_are_always_busy_take_turns(
    heavy: EmbeddedTriton, serve_here: Make, ask: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand_models, "MIN_TURN_S", 0.1)
    proxy, is_over = _serve(serve_here, heavy), threading.Event()
    codes = set[grpc.StatusCode]()

    def keep_busy(model: str) -> None:
        while not is_over.is_set():
            codes.add(ask(proxy, model)[0])

    busy = [threading.Thread(target=keep_busy, args=(model,)) for model in ("first", "second")]
    for each in busy:
        each.start()
    try:
        asked = [ask(proxy, "third", timeout=30) for _ in range(2)]
    finally:
        is_over.set()
        for each in busy:
            each.join()
    assert (asked, codes) == ([(OK, "")] * 2, {OK})


def test_who_cannot_wait_is_told_how_long_a_load_takes_and_the_load_goes_on(
    heavy: EmbeddedTriton, serve_here: Make, ask: Make
) -> None:
    proxy = _serve(serve_here, heavy, models={"third": {"slo_ms": 1}})
    code, words = ask(proxy, "third")  # nobody knows how long it takes
    assert code is UNAVAILABLE
    assert "model 'third' is being loaded, which takes an unknown time longer than its deadline allows" in words
    eventually(lambda: "third" in _loaded(proxy), "the load to end all the same")
    for model in ("first", "second"):
        assert ask(proxy, model)[0] is OK
    request = Request(
        f"http://{proxy.serving.http_address}/v2/models/third/infer",
        json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [1, 1, 1]}]}).encode(),
    )
    with pytest.raises(HTTPError) as refused:
        urlopen(request, timeout=60)
    assert (refused.value.code, refused.value.headers["tidegate-reason"]) == (503, "model_loading")
    assert int(refused.value.headers["retry-after"]) >= 1
    assert "which takes about " in refused.value.read().decode()
    eventually(lambda: "third" in _loaded(proxy), "it to be loaded")


def test_what_does_not_load_is_not_tried_again_at_once_and_others_go_on(
    heavy: EmbeddedTriton, serve_here: Make, ask: Make
) -> None:
    proxy = _serve(serve_here, heavy)
    for _ in range(2):
        code, words = ask(proxy, "broken")
        assert code is UNAVAILABLE
        assert "model 'broken' could not be loaded: " in words
        assert "; the next try is in " in words
    assert ask(proxy, "first")[0] is OK
    assert "unknown model" in ask(proxy, "nowhere")[1]


@pytest.mark.slow
def test_a_load_ends_when_its_triton_hangs(
    heavy: EmbeddedTriton, serve_here: Make, start_call: Make, ask: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Backend.load

    async def hang(self: Backend, name: str) -> None:
        os.kill(heavy.pid, signal.SIGSTOP)
        await load(self, name)

    monkeypatch.setattr(Backend, "load", hang)
    proxy = _serve(serve_here, heavy)
    backend = proxy.serving._discovery.backends[0]
    try:
        waiting = start_call(proxy, "ModelInfer", request_of("first", {"X": ROW}))
        eventually(lambda: backend.open_calls, "the load")
        eventually(lambda: not backend.alive, "the Triton to be given up")
        eventually(lambda: not backend.open_calls, "the load to end")
    finally:
        os.kill(heavy.pid, signal.SIGCONT)
    assert outcome(waiting)[0] is UNAVAILABLE
    monkeypatch.undo()
    eventually(lambda: ask(proxy, "second")[0] is OK, "it to be back, and to load")
    assert ask(proxy, "third")[0] is OK
    assert len(_loaded(proxy)) <= 2, "the load that was cut off counts, too"


@pytest.mark.slow
def test_a_load_that_goes_on_at_its_triton_after_it_was_cut_off_is_waited_for(
    start_triton: Make,
    serve_here: Make,
    start_call: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """What is being loaded takes memory: nothing is loaded beside it before it can be evicted."""
    held = tmp_path / "held"
    held.touch()
    for name in ("slow", "other"):
        source = add_model(tmp_path / "models", name, "max_batch_size: 4") / "model.py"
        if name == "slow":
            wait = f"    def initialize(self, args):\n        while Path({str(held)!r}).exists():\n"
            wait += "            time.sleep(0.01)\n"
            head = "import time\nfrom pathlib import Path\n"
            source.write_text(head + source.read_text().replace("    def initialize(self, args):\n", wait, 1))
    triton = start_triton([tmp_path / "models"], options=EXPLICIT)
    models = {name: {"load": "on-demand", "memory": "10MiB"} for name in ("slow", "other")}
    proxy = serve_here([], tritons=[{"grpc": triton.grpc_address, "model_memory": "15MiB"}], models=models)
    backend = proxy.serving._discovery.backends[0]
    is_loading, looks = Backend.is_loading, list[bool]()

    async def look(self: Backend, name: str) -> bool:
        looks.append(await is_loading(self, name))
        return looks[-1]

    def loads() -> bool:
        return bool(asyncio.run_coroutine_threadsafe(is_loading(backend, "slow"), proxy.loop).result(60))

    monkeypatch.setattr(Backend, "is_loading", look)
    first = start_call(proxy, "ModelInfer", request_of("slow", {"X": ROW}), timeout=120)
    eventually(loads, "the load to begin")
    os.kill(triton.pid, signal.SIGSTOP)
    try:
        eventually(lambda: not backend.alive, "the Triton to be given up")
        assert outcome(first)[0] is UNAVAILABLE
    finally:
        os.kill(triton.pid, signal.SIGCONT)
    eventually(lambda: backend.alive, "the Triton to be back")
    assert loads(), "it goes on where it was cut off"
    second = start_call(proxy, "ModelInfer", request_of("other", {"X": ROW}), timeout=120)
    eventually(lambda: len(looks) > 2, "Tidegate to see it go on")
    assert looks == [True] * len(looks)
    assert _loaded(proxy) == set()
    held.unlink()
    assert outcome(second)[0] is OK
    assert _loaded(proxy) == {"other"}, "what was loaded after all has been evicted"
    assert proxy.serving._on_demand.evictions == {"slow": 1}


@pytest.mark.slow
def test_what_a_model_takes_is_measured_where_no_config_tells(
    heavy: EmbeddedTriton, serve_here: Make, ask: Make
) -> None:
    proxy = _serve(serve_here, heavy, memory=None)
    for model in MODELS:
        assert ask(proxy, model)[0] is OK
    measured = proxy.serving._on_demand._memory
    assert set(measured) == set(MODELS)
    assert all(WEIGHTS_MIB * MIB <= taken <= 1.5 * WEIGHTS_MIB * MIB for taken in measured.values()), measured
    assert sum(measured[model] for model in _loaded(proxy)) <= 2.5 * WEIGHTS_MIB * MIB


@pytest.mark.slow
def test_without_explicit_model_control_nothing_is_evicted_and_it_is_said(
    start_triton: Make, serve_here: Make, ask: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_model(tmp_path, "echo", "max_batch_size: 4")
    triton = start_triton([tmp_path])
    models = {"echo": {"load": "on-demand"}, "absent": {"load": "on-demand"}}
    proxy = serve_here([], tritons=[{"grpc": triton.grpc_address, "model_memory": "1GiB"}], models=models)
    assert ask(proxy, "echo")[0] is OK
    assert "unknown model" in ask(proxy, "absent")[1]
    assert "it runs without --model-control-mode=explicit" in caplog.text


def test_a_model_with_sequences_stays_until_they_are_over() -> None:
    models = {name: {"load": "on-demand", "memory": 1} for name in ("plain", "long", "short")}
    config = read_config(flags={"tritons": [{"grpc": "a:1", "model_memory": 1}], "models": models})
    whole = Catalog(sequential={"long", "short"}, sequence_idle_s={"long": 60.0})
    part: Any = SimpleNamespace(backends=[], whole=whole, clients=[])
    on_demand = OnDemandModels(config, part, part, part, SettingsHolder())
    long_ago = {"plain": 0.2, "long": 30.0, "short": 0.5}
    on_demand._asked_s = {name: time.monotonic() - ago_s for name, ago_s in long_ago.items()}
    assert on_demand._evictable() == {"plain"}


def test_the_memory_of_another_machine_is_unknown(start_fake: Make) -> None:
    class Elsewhere:
        is_local, address = False, "10.0.0.1:8001"

    assert ProcessMemory().of(Elsewhere()) is None  # type: ignore[arg-type]


def test_memory_grows_by_what_is_new_whichever_process_has_ended_meanwhile() -> None:
    assert growth({1: 50, 2: 100}, {1: 60, 3: 7}) == 17
    assert growth({1: 50}, {1: 40}) == 0
