"""A fault of Tidegate's own, wherever it is: every client is answered, and the next request is served.

The places are not listed but found: every method of every class that a request meets on its way, so that a new one is
tried as well. In each of them an exception is raised once, while several clients wait.
"""

import inspect
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tidegate_proxy.configuration.config_file import read_config
from tidegate_proxy.legs import Legs
from tidegate_proxy.live_engine import LiveEngine
from tidegate_proxy.membership import Membership

if TYPE_CHECKING:
    from tidegate.engine import Engine
    from tidegate_proxy.driver import Driver

Make = Callable[..., Any]
ROW = np.ones((1, 3), np.float32)
OK = grpc.StatusCode.OK
LIMIT_S = 15.0
"""Far more than the second within which all are answered on an idle machine: it is that nobody waits for ever."""

MODULES = (
    "tidegate.api.first_come",
    "tidegate.api.queueing",
    "tidegate.engine.books",
    "tidegate.engine.commands",
    "tidegate.engine.engine",
    "tidegate.engine.expectations",
    "tidegate.engine.flights",
    "tidegate.engine.intake",
    "tidegate.engine.learner",
    "tidegate.engine.observers",
    "tidegate.engine.outcomes",
    "tidegate.engine.policy_runner",
    "tidegate.engine.recorder",
    "tidegate.engine.succession",
    "tidegate.engine.timers",
    "tidegate.engine.turns",
    "tidegate_baselines.fifs",
    "tidegate_proxy.alarm",
    "tidegate_proxy.client",
    "tidegate_proxy.driver",
    "tidegate_proxy.envelope",
    "tidegate_proxy.front",
    "tidegate_proxy.headroom",
    "tidegate_proxy.http.application",
    "tidegate_proxy.inference",
    "tidegate_proxy.legs",
    "tidegate_proxy.live_engine",
    "tidegate_proxy.observability.metrics",
    "tidegate_proxy.observability.observability",
    "tidegate_proxy.observability.statistics",
    "tidegate_proxy.payload",
    "tidegate_proxy.streams",
    "tidegate_proxy.waiting_clients",
)
AT_ONCE = {
    "tidegate.engine.flights",
    "tidegate.engine.observers",
    "tidegate_baselines.fifs",
    "tidegate_proxy.driver",
    "tidegate_proxy.front",
    "tidegate_proxy.http.application",
    "tidegate_proxy.inference",
    "tidegate_proxy.legs",
    "tidegate_proxy.streams",
}
"""Those of which every `make test` tries the places: one of each room that a request crosses."""
LEFT_OUT = {
    "close", "dismiss", "_accept", "_give", "_infer", "_over", "_perform_one", "_received", "_recovered", "_sent",
    "tell",
}  # fmt: skip
"""What is called when the proxy ends; and those that catch what others raise, and do nothing else: something has to."""


Place = tuple[str, Any, str]
"""A method or a function: its name, where it is, what it is called."""


def places(modules: Sequence[str] = MODULES) -> Iterator[Place]:
    """Every method of every class in these modules, and every function."""
    for module_name in modules:
        module = import_module(module_name)
        for cls_name, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module_name:
                for name, member in vars(cls).items():
                    if isinstance(member, FunctionType) and not name.startswith("__") and name not in LEFT_OUT:
                        yield f"{module_name.rpartition('.')[2]}.{cls_name}.{name}", cls, name
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module_name:
                yield f"{module_name.rpartition('.')[2]}.{name}", module, name


PLACES = sorted(places(), key=lambda place: place[0])


class Refusing:
    """A Triton whose model answers as it should, but for batches of several, which it refuses when told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.refuses = False

    def __call__(self, request: Any, context: Any) -> bytes:  # noqa: ANN401
        assert self.go_on.wait(30)
        if self.refuses and request.inputs[0].shape[0] > 1:
            context.abort(grpc.StatusCode.INTERNAL, "too many")
        answer = service_pb2.ModelInferResponse(model_name="echo", model_version="1", id=request.id)
        answer.outputs.add(name="Y", datatype="FP32", shape=request.inputs[0].shape)
        answer.raw_output_contents.append(request.raw_input_contents[0])
        return bytes(answer.SerializeToString())


class Fault:
    """Raises once, at the nth call of what it replaces after it was set."""

    def __init__(self) -> None:
        self.raised = False

    def set(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, nth: int) -> None:  # noqa: ANN401
        original = inspect.getattr_static(owner, name)
        calls = count(1)

        async def faulty_later(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            return await faulty(*arguments, **options)

        def faulty(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            if next(calls) == nth:
                self.raised = True
                raise RuntimeError(f"injected into {name}")
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, faulty_later if inspect.iscoroutinefunction(original) else faulty)


class Calls:
    """Counts the calls of all that it replaces."""

    def __init__(self) -> None:
        self.of: Counter[Place] = Counter()

    def set(self, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
        _, owner, name = place
        original = inspect.getattr_static(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            self.of[place] += 1
            return original(*arguments, **options)

        async def counted_later(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            return await counted(*arguments, **options)

        monkeypatch.setattr(owner, name, counted_later if inspect.iscoroutinefunction(original) else counted)


@pytest.fixture
def start_world(start_fake: Make, serve_here: Make, fake_http: str, tmp_path: Path) -> Make:
    """`start_world(triton)`: a proxy with everything switched on, over such a Triton."""

    def start(triton: Refusing) -> Any:  # noqa: ANN401
        listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
        tritons = [{"grpc": start_fake(triton).address, "http": fake_http}]
        return serve_here([], tritons=tritons, listen=listen, record=tmp_path / "events.jsonl")

    return start


class World(Protocol):
    """A proxy that is disturbed."""

    def survives(self, place: Place, nth: int, *, refuses: bool) -> bool:
        """Have the nth call of a place raise; whether it was reached. Raises AssertionError where it does not survive.

        `refuses`: whether its Triton refuses batches.
        """
        ...

    def calls(self, places: Sequence[Place], *, refuses: bool) -> Counter[Place]:
        """How often each is called where nothing raises."""
        ...


@pytest.fixture
def world(
    start_world: Make,
    start_call: Make,
    open_stream: Make,
    rest_of: Make,
    request_of: Make,
    outcome: Make,
    call: Make,
    eventually: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """It is started when it is first needed, and again when it was disturbed."""
    triton = Refusing()
    world: Any = None

    def disturb(disturbance: Callable[[pytest.MonkeyPatch], None]) -> None:
        """Several clients of each kind, one of whom leaves; all are told something, in time."""
        triton.go_on.clear()
        with monkeypatch.context() as patched, ThreadPoolExecutor(4) as pool:
            disturbance(patched)
            calls = [
                start_call(world, "ModelInfer", request_of("echo", {"X": ROW}, id=str(number)), timeout=LIMIT_S)
                for number in range(6)
            ]
            http = [pool.submit(over_http, world.serving.http_address) for _ in range(2)]
            stream = open_stream(world, [request_of("echo", {"X": ROW}) for _ in range(2)], timeout=LIMIT_S)
            leaving = start_call(world, "ModelInfer", request_of("echo", {"X": ROW}), timeout=LIMIT_S)
            settled = pool.submit(rest_of, stream)
            _wait_for_a_queue(world)
            leaving.cancel()
            triton.go_on.set()
            codes = {outcome(one)[0] for one in calls} | {settled.result()[1]}
            assert grpc.StatusCode.DEADLINE_EXCEEDED not in codes
            assert {one.result() for one in http} <= {200, 500, 503}

    def serves() -> None:
        """The next requests are answered, and nothing is left of those before."""
        for number in range(3):
            request = request_of("echo", {"X": ROW}, id=f"next {number}")
            code, answer = call(world, "ModelInfer", request, timeout=LIMIT_S)
            assert (code, service_pb2.ModelInferResponse.FromString(answer).id) == (OK, f"next {number}")
        assert over_http(world.serving.http_address) == 200
        driver: Driver = world.serving.driver
        engine: Engine = world.engine
        eventually(lambda: (driver.waiting, engine.queued, engine.in_flight) == (0, 0, 0), "all to be over")
        assert not driver.legs
        live = service_pb2.ServerLiveResponse(live=True).SerializeToString()
        assert call(world, "ServerLive", b"") == (OK, live)

    class Disturbed:
        def survives(self, place: Place, nth: int, *, refuses: bool) -> bool:
            nonlocal world
            world = world or start_world(triton)
            _, owner, name = place
            fault = Fault()
            triton.refuses = refuses
            disturb(lambda patched: fault.set(patched, owner, name, nth))
            triton.refuses = False
            serves()
            if fault.raised:  # it may have gone on with another policy, or without an observer
                world.stop()
                world = None
            return fault.raised

        def calls(self, places: Sequence[Place], *, refuses: bool) -> Counter[Place]:
            nonlocal world
            if world:
                world.stop()
            world = start_world(triton)  # as every one is that is disturbed: the first requests call what others do not
            counted = Calls()

            def count_all(patched: pytest.MonkeyPatch) -> None:
                for place in places:
                    counted.set(patched, place)

            triton.refuses = refuses
            disturb(count_all)
            triton.refuses = False
            serves()
            return counted.of

    return Disturbed()


def over_http(address: str) -> int:
    """One inference; its status."""
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    request = Request(f"http://{address}/v2/models/echo/infer", json.dumps(body).encode(), method="POST")
    try:
        with urlopen(request, timeout=LIMIT_S) as answer:
            return int(answer.status)
    except HTTPError as error:
        return int(error.code)


@pytest.mark.parametrize(
    "module", [module if module in AT_ONCE else pytest.param(module, marks=pytest.mark.slow) for module in MODULES]
)
def test_every_client_is_answered_and_the_next_request_is_served(module: str, world: World) -> None:
    """Where a fault is on the way of what is asked, as seen when the same was asked before."""
    tried = _places_of(module)
    met = 0
    for nth, refuses in ((1, False), (3, True)):
        calls = world.calls(tried, refuses=refuses)
        met += _survives(world, [place for place in tried if calls[place] >= nth], nth, refuses=refuses)
    assert met or not tried, "none of it is on the way: what is this module doing in the list?"


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_so_they_are_wherever_a_fault_is(module: str, world: World) -> None:
    """On the way or not: what is called now and then, too."""
    for nth, refuses in ((1, False), (3, True)):
        _survives(world, _places_of(module), nth, refuses=refuses)


def _places_of(module: str) -> list[Place]:
    return [place for place in PLACES if place[0].startswith(module.rpartition(".")[2] + ".")]


def _survives(world: World, places: Sequence[Place], nth: int, *, refuses: bool) -> int:
    """In how many of these places a fault was met."""
    met = 0
    for place in places:
        try:
            met += world.survives(place, nth, refuses=refuses)
        except Exception as error:
            raise AssertionError(f"a fault in {place[0]}") from error
    return met


def _wait_for_a_queue(world: Any) -> None:  # noqa: ANN401
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        if world.engine.queued >= 8:
            return
        time.sleep(0.005)


# What looks after the Tritons ---------------------------------------------------------------------------------------

LOOKING_AFTER = (
    "tidegate_proxy.backend",
    "tidegate_proxy.catalog",
    "tidegate_proxy.discovery",
    "tidegate_proxy.membership",
    "tidegate_proxy.probing",
)
AT_THE_START_OR_THE_END = {"close", "retire", "starting_profiles", "watch", "look_around", "change", "_look_at"}
"""And what catches what the others raise."""


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("module", LOOKING_AFTER)
def test_a_task_that_fails_once_goes_on(
    module: str,
    nth: int,
    start_fake: Make,
    start_proxy_here: Make,
    call: Make,
    request_of: Make,
    eventually: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Triton goes away and comes back, and has another version of its model; a fault only delays that."""
    monkeypatch.setattr("tidegate_proxy.probing.EVERY_S", 0.02)
    monkeypatch.setattr("tidegate_proxy.discovery.LOOK_EVERY_S", 0.05)
    triton = Refusing()
    fake = start_fake(triton)
    flags = {"tritons": [fake.address], "policy": {"name": "fifs"}, "listen": {"grpc": "127.0.0.1:0"}}
    proxy = start_proxy_here(read_config(flags={**flags, "drain_s": 0.0, "limits": {"health_timeout_s": 0.2}}))
    answers = dict(fake.answers)
    newer = service_pb2.RepositoryIndexResponse.FromString(answers["RepositoryIndex"])
    newer.models[0].version = "2"

    def infers() -> bool:
        return call(proxy, "ModelInfer", request_of("echo", {"X": ROW}), timeout=LIMIT_S)[0] is OK

    for where, owner, name in sorted(places((module,)), key=lambda place: place[0]):
        if name in AT_THE_START_OR_THE_END:
            continue
        backend = proxy.serving._discovery.backends[0]
        with monkeypatch.context() as patched:
            Fault().set(patched, owner, name, nth)
            for gone in ("ServerLive", "ServerReady"):
                fake.answers.pop(gone, None)
            eventually(lambda b=backend: not b.alive, f"the Triton to be given up, with a fault in {where}")
            fake.answers |= {**answers, "RepositoryIndex": newer.SerializeToString()}
            eventually(infers, f"it to be taken back, with a fault in {where}")
            directory = proxy.serving._directory
            for wanted in ("2", "1"):
                eventually(
                    lambda version=wanted, known=directory: known.catalog.versions["echo"] == (version,),
                    f"version {wanted} to be seen, with a fault in {where}",
                )
                fake.answers |= answers


GIVES_UP = (
    (Legs, "forget"),
    (Legs, "forget_stranded"),
    (LiveEngine, "handle"),
    (Membership, "_part_with_strays"),
    (Membership, "_withdraw"),
    (Membership, "give_up"),
)


@pytest.mark.parametrize(("owner", "name"), GIVES_UP, ids=[name for _, name in GIVES_UP])
def test_who_waits_for_a_triton_that_is_given_up_is_told_though_that_failed_once(
    owner: Any,  # noqa: ANN401
    name: str,
    start_fake: Make,
    start_proxy_here: Make,
    start_call: Make,
    request_of: Make,
    outcome: Make,
    eventually: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate_proxy.probing.EVERY_S", 0.02)
    triton = Refusing()
    triton.go_on.clear()
    fake = start_fake(triton)
    flags = {"tritons": [fake.address], "policy": {"name": "fifs"}, "listen": {"grpc": "127.0.0.1:0"}, "drain_s": 0.0}
    proxy = start_proxy_here(read_config(flags=flags))
    request = request_of("echo", {"X": ROW})
    calls = [start_call(proxy, "ModelInfer", request, timeout=LIMIT_S) for _ in range(8)]
    eventually(lambda: proxy.engine.tally.accepted == 8, "all of them to wait")
    fault = Fault()
    fault.set(monkeypatch, owner, name, 1)
    for gone in ("ServerLive", "ServerReady"):
        fake.answers.pop(gone)
    assert {outcome(one)[0] for one in calls} == {grpc.StatusCode.UNAVAILABLE}
    assert fault.raised
    assert (proxy.engine.queued, proxy.engine.in_flight, len(proxy.serving.driver.legs)) == (0, 0, 0)
    triton.go_on.set()
