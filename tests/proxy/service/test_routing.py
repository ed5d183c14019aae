"""Where inferences go that are not scheduled: to the Triton with the least in flight, each model in turn of its own."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tidegate_proxy.access.passthrough_apis import PassthroughApis
from tidegate_proxy.service.passthrough import Routing
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
    return cast("Triton", routing.route_http_inference(model, sequence, None))


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
