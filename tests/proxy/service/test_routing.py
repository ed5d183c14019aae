"""Where inferences go that are not scheduled: to the Triton with the least in flight, each model in turn of its own."""

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tidegate_proxy.access.passthrough_apis import PassthroughApis
from tidegate_proxy.service.passthrough import Routing, SequencePosition, TritonSpeeds
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog


@dataclass(eq=False)
class Triton:
    """In a backend's place: alive or not, with calls in flight."""

    address: str
    alive: bool = True
    in_flight_by_model: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    apis: PassthroughApis = field(default_factory=PassthroughApis)


@pytest.fixture
def pair() -> list[Triton]:
    return [Triton("one"), Triton("two")]


@pytest.fixture
def routing(pair: list[Triton]) -> Routing:
    unused = cast("Any", None)
    catalog = Catalog(hosts=cast("Any", {"a": pair, "b": pair}))
    return Routing(cast("Any", pair), CurrentCatalog(catalog), unused, unused, unused, unused)


def _triton(routing: Routing, model: str, sequence: str = "") -> Triton:
    return cast("Triton", routing.route_http_inference(model, SequencePosition(sequence), None))


def test_requests_of_two_models_in_turn_go_to_both_tritons(routing: Routing) -> None:
    """One counter for all models sent every request of the one to the first, of the other to the second."""
    went = Counter((model, _triton(routing, model).address) for _ in range(10) for model in "ab")
    assert went == {("a", "one"): 5, ("a", "two"): 5, ("b", "one"): 5, ("b", "two"): 5}


def test_the_triton_with_least_in_flight_is_next(routing: Routing, pair: list[Triton]) -> None:
    pair[0].in_flight = 3
    assert [_triton(routing, "a").address for _ in range(4)] == ["two"] * 4
    pair[1].alive = False
    assert _triton(routing, "a").address == "one"


def test_each_model_has_its_share_of_each_triton(routing: Routing, pair: list[Triton]) -> None:
    """Requests of a model wait for each other first, then for those of other models."""
    pair[0].in_flight_by_model["a"] = 1
    pair[0].in_flight, pair[1].in_flight = 1, 5
    assert _triton(routing, "a").address == "two"
    assert _triton(routing, "b").address == "one"


def test_a_sequence_stays_whatever_is_in_flight(routing: Routing, pair: list[Triton]) -> None:
    kept = _triton(routing, "a", "7")
    kept.in_flight = 3
    assert _triton(routing, "a", "7") is kept


def test_of_several_tritons_that_decides_last_which_restricts_inference(routing: Routing, pair: list[Triton]) -> None:
    pair[0].apis = PassthroughApis(frozenset({("http", "inference"), ("http", "model-config")}))
    assert [_triton(routing, "a").address for _ in range(4)] == ["two"] * 4
    assert cast("Triton", routing.route("a", "http", "model-config")).address == "two"
    assert cast("Triton", routing.route("a", "grpc", "model-config")).address == "one"
    pair[1].alive = False
    assert _triton(routing, "a").address == "one"


def test_a_model_that_none_is_known_to_have_goes_to_a_triton_that_does_not_list_its_models(
    routing: Routing, pair: list[Triton]
) -> None:
    pair[1].apis = PassthroughApis(closed=frozenset({"model-repository", "statistics"}))
    assert [_triton(routing, "unheard-of").address for _ in range(3)] == ["two"] * 3
    assert cast("Triton", routing.route("unheard-of")).address == "two"
    assert {_triton(routing, "a").address for _ in range(4)} == {"one", "two"}


class Line:
    """A Triton that answers one request of the model after the other, each in so many ms."""

    def __init__(self, triton: Triton, service_ms: float) -> None:
        self.triton, self.service_ms, self.free_ms = triton, service_ms, 0.0


def _mean_latency_ms(service_ms: Sequence[float], *, learns: bool) -> tuple[float, Counter[str]]:
    """Send 2,000 requests by Poisson arrivals at half of what the Tritons can do, in virtual time."""
    lines = [Line(Triton(f"t{number}"), ms) for number, ms in enumerate(service_ms)]
    tritons, unused = [line.triton for line in lines], cast("Any", None)
    catalog = Catalog(hosts=cast("Any", {"a": tritons}))
    routing = Routing(cast("Any", tritons), CurrentCatalog(catalog), unused, unused, unused, unused)
    of_triton = {line.triton: line for line in lines}
    speeds = TritonSpeeds()
    routing._speeds = speeds
    rng, now_ms, total_ms, went = random.Random(3), 0.0, 0.0, Counter[str]()
    ends: list[tuple[float, str, Triton, float]] = []
    for number in range(2000):
        now_ms += rng.expovariate(0.5 * sum(1 / ms for ms in service_ms))
        while ends and ends[0][0] <= now_ms:
            ended_ms, _, triton, sent_ms = heapq.heappop(ends)
            triton.in_flight_by_model["a"] -= 1
            if learns:
                speeds.answered(triton, "a", round(1e6 * (ended_ms - sent_ms)))
        line = of_triton[_triton(routing, "a")]
        line.triton.in_flight_by_model["a"] += 1
        line.free_ms = max(now_ms, line.free_ms) + line.service_ms
        heapq.heappush(ends, (line.free_ms, str(number), line.triton, now_ms))
        total_ms += line.free_ms - now_ms
        went[line.triton.address] += 1
    return total_ms / 2000, went


def test_a_slow_triton_gets_less_and_equal_ones_get_the_same() -> None:
    """By number alone every request on an idle pair may go to the one that takes four times as long."""
    by_number, _ = _mean_latency_ms((10, 40), learns=False)
    by_work, went = _mean_latency_ms((10, 40), learns=True)
    assert by_work < 0.8 * by_number
    assert went["t1"] > 0, "it is not starved"
    assert _mean_latency_ms((10, 12), learns=True) == _mean_latency_ms((10, 12), learns=False)
