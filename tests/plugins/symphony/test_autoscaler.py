"""The advice of section 3.5: rules by hand, and how right it is under load."""

import random

import pytest

from tests.effect_log import EffectLog
from tests.examples import few
from tidegate.api import Advise, Model, Profile, Request, RequestArrived, Setup, Worker, ms_to_ns
from tidegate.engine import Engine
from tidegate.sim import Simulation
from tidegate.workload import Poisson
from tidegate_symphony.autoscaler import Autoscaler
from tidegate_symphony.policy import Symphony, SymphonyOptions

INTERVAL_NS = 1000


def autoscaler(*, arrived: int, dropped: int = 0, busy_ns: int = 0) -> Autoscaler:
    scaler = Autoscaler(INTERVAL_NS, tolerated=0.01)
    assert scaler.advice(0, 4) == []
    for _ in range(arrived):
        scaler.arrived()
    scaler.dropped(dropped)
    scaler.ran(busy_ns)
    return scaler


def test_a_quarter_lost_wants_a_third_more() -> None:
    scaler = autoscaler(arrived=100, dropped=25, busy_ns=4 * INTERVAL_NS)
    assert scaler.advice(INTERVAL_NS - 1, 12) == []
    assert [advice.workers for advice in scaler.advice(INTERVAL_NS, 12)] == [4]
    assert scaler.advice(INTERVAL_NS + 1, 12) == [], "not before another interval"


def test_half_idle_can_spare_half() -> None:
    assert [a.workers for a in autoscaler(arrived=100, dropped=1, busy_ns=2 * INTERVAL_NS).advice(INTERVAL_NS, 4)] == [
        -2
    ]


def test_nothing_to_say() -> None:
    assert autoscaler(arrived=100, busy_ns=4 * INTERVAL_NS).advice(INTERVAL_NS, 4) == []
    assert autoscaler(arrived=0).advice(INTERVAL_NS, 4) == []
    assert Autoscaler(0, tolerated=0).advice(10**12, 4) == []


@pytest.mark.parametrize("load", few([0.75, 0.25, 0.5, 2.0]))
def test_within_a_tenth_of_the_workers_that_the_load_needs(load: float) -> None:
    """ResNet50 on 16 workers; what they carry at one percent lost is 10,900 requests/s."""
    workers, peak_rps, seconds = 16, 10_900, 3.0
    model = Model("m", 64, ms_to_ns(25))
    setup = Setup(
        (model,),
        tuple(Worker(number, f"w{number}", ("m",)) for number in range(workers)),
        (Profile.linear("m", alpha_ms=1.053, beta_ms=5.072, max_rows=64),),
    )
    policy = Symphony(setup, SymphonyOptions(advice_every_s=1, pack_workers=True))
    effects = EffectLog()
    simulation = Simulation(Engine(policy, name="symphony", learn=False, strict=True), listeners=[effects])
    arrivals = Poisson(load * peak_rps).instants_ns(round(seconds * 1e9), random.Random(0))
    due_ns = ms_to_ns(25)
    simulation.feed(RequestArrived(at, Request(n, "m", 1, at, at + due_ns)) for n, at in enumerate(arrivals))
    simulation.run()
    advised = [effect.workers for _, effect in effects if isinstance(effect, Advise)]
    assert advised
    for change in advised[1:]:  # the first interval begins with nothing in flight
        needed = workers * load
        assert workers + change == pytest.approx(needed, abs=max(1, 0.1 * needed))


def test_slots_of_streams_are_no_workers() -> None:
    """Four workers at twice the load that they carry, beside many slots whose streams are all on time."""
    workers, rate_rps, seconds = 4, 2 * 10_900 / 4, 2.5
    models = Model("m", 64, ms_to_ns(25)), Model("s", 1, ms_to_ns(1000), merge_limit=1, streams=True)
    batching = tuple(Worker(number, f"w{number}", ("m",)) for number in range(workers))
    slots = tuple(Worker(100 + number, f"s{number}", ("s",), server="a") for number in range(32))
    profiles = (
        Profile.linear("m", alpha_ms=1.053, beta_ms=5.072, max_rows=64),
        Profile.linear("s", alpha_ms=1, beta_ms=1, max_rows=1),
    )
    setup = Setup(models, (*batching, *slots), profiles)
    effects = EffectLog()
    engine = Engine(Symphony(setup, SymphonyOptions(advice_every_s=1)), name="symphony", learn=False, strict=True)
    simulation = Simulation(engine, listeners=[effects])
    events = [
        RequestArrived(at, Request(2 * number + place, model.name, 1, at, at + (model.slo_ns or 0)))
        for place, (model, rate) in enumerate(zip(models, (rate_rps, 500.0), strict=True))
        for number, at in enumerate(Poisson(rate).instants_ns(round(seconds * 1e9), random.Random(place)))
    ]
    simulation.feed(sorted(events, key=lambda event: event.now_ns))
    simulation.run()
    advised = [effect.workers for _, effect in effects if isinstance(effect, Advise)]
    assert advised
    assert [workers + change for change in advised] == pytest.approx([2 * workers] * len(advised), abs=1)
