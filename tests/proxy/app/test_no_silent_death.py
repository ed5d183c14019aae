"""A fault of Tidegate's own, wherever it is: every client is answered, and the next request is served.

The places are not listed but found: every method of every class that a request meets on its way, so that a new one is
tried as well. In each of them an exception is raised once, while several clients wait.
"""

import inspect
import json
import pkgutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import grpc
import pytest
from tritonclient.grpc import service_pb2

import tidegate.engine
import tidegate.observation
import tidegate.toolkit
import tidegate_baselines
import tidegate_proxy
from tests.conftest import eventually
from tests.proxy.fixtures.calls import outcome, request_of, rest_of
from tests.proxy.fixtures.injected import LIMIT_S, OK, ROW, Fault, Make, Place, Refusing, places

if TYPE_CHECKING:
    from tidegate.engine import Engine
    from tidegate_proxy.scheduling.driver import Driver

ROOMS = (tidegate.engine, tidegate.observation, tidegate.toolkit, tidegate_baselines, tidegate_proxy)
ELSEWHERE = tuple(
    f"tidegate_proxy.{room}" for room in ("commands", "configuration", "deployed", "tritons.embedded", "tritons.gpus")
)
"""No request comes there."""
CONNECTIONS = tuple(
    f"tidegate_proxy.{module}"
    for module in (
        "servers.http.connection",
        *(f"transport.http2.{each}" for each in ("client", "connection", "server")),
    )
)
"""A fault of these ends a connection, which whoever is at its other end sees."""
MODULES = tuple(
    module.name
    for room in ROOMS
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
    if not module.name.startswith(ELSEWHERE + CONNECTIONS) and any(places((module.name,)))
)
CUT_OFF = 0
"""Instead of an HTTP status: the connection was closed, which tells a client as well."""
AT_ONCE = {
    "tidegate.engine.kernel.in_flight",
    "tidegate.engine.kernel.engine",
    "tidegate.observation.reducer",
    "tidegate_baselines.fifs",
    "tidegate_proxy.scheduling.driver",
    "tidegate_proxy.servers.grpc",
    "tidegate_proxy.servers.http.application",
    "tidegate_proxy.service.inference",
    "tidegate_proxy.scheduling.stages",
    "tidegate_proxy.servers.streams",
}
"""Those of which every `make test` tries the places: one of each room that a request crosses."""

BESIDE = ("tidegate_proxy.transport.http2.client", "tidegate_proxy.transport.http2.server_call")
"""Beside connections there are in these what a fault of ends one call alone."""
ONE_CALL = {"Channel", "Http2Call"}

PLACES = sorted(
    [*places(MODULES), *(place for place in places(BESIDE) if getattr(place[1], "__name__", "") in ONE_CALL)],
    key=lambda place: place[0],
)
pytestmark = pytest.mark.apart


class Calls:
    """Counts the calls of all that it replaces."""

    def __init__(self) -> None:
        self.of: Counter[Place] = Counter()

    def set(self, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
        _, owner, name = place
        original = inspect.getattr_static(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.of[place] += 1
            return original(*arguments, **options)

        async def counted_later(*arguments: Any, **options: Any) -> Any:
            return await counted(*arguments, **options)

        monkeypatch.setattr(owner, name, counted_later if inspect.iscoroutinefunction(original) else counted)


@pytest.fixture
def start_world(start_fake: Make, serve_here: Make, fake_http: str, tmp_path: Path) -> Make:
    """`start_world(triton)`: a proxy with everything switched on, over such a Triton."""

    def start(triton: Refusing) -> Any:
        listen = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
        tritons = [{"grpc": start_fake(triton).address, "http": fake_http}]
        return serve_here([], tritons=tritons, listen=listen, event_log=tmp_path / "events.jsonl")

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
def world(start_world: Make, start_call: Make, open_stream: Make, call: Make, monkeypatch: pytest.MonkeyPatch) -> World:
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
            assert {one.result() for one in http} <= {200, 500, 503, CUT_OFF}

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
        assert not driver.running
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
    except ConnectionError:
        return CUT_OFF
    except URLError as error:
        assert isinstance(error.reason, ConnectionError)
        return CUT_OFF


@pytest.mark.parametrize(
    "module", [module if module in AT_ONCE else pytest.param(module, marks=pytest.mark.slow) for module in MODULES]
)
def test_every_client_is_answered_and_the_next_request_is_served(module: str, world: World) -> None:
    """Where a fault is on the way of what is asked, as seen when the same was asked before."""
    tried = _places_of(module)
    met = 0
    for nth, refuses in ((1, False), (3, True)) if module in AT_ONCE else ((1, False),):
        calls = world.calls(tried, refuses=refuses)
        met += _survives(world, [place for place in tried if calls[place] >= nth], nth, refuses=refuses)
    if not met:
        pytest.skip("none of it is on the way of what is asked here")


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(AT_ONCE))
def test_so_they_are_wherever_a_fault_is(module: str, world: World) -> None:
    """On the way or not: what is called now and then, too, of a module that is."""
    if not world.calls(_places_of(module), refuses=False):
        pytest.skip("none of it is on the way of what is asked here")
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


def _wait_for_a_queue(world: Any) -> None:
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        if world.engine.queued >= 8:
            return
        time.sleep(0.005)
