"""Every policy serves a model whose requests run alone, or merge up to a limit, as well as it can be served."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arrivals import Arrivals
from tests.core.engine.script import SETUP, Script, arrived, engine_of, run
from tests.examples import examples
from tidegate.api import (
    NEVER_NS,
    Dispatch,
    Model,
    PolicySpec,
    Profile,
    Request,
    SetTimer,
    Setup,
    Worker,
    ms_to_ns,
    queue_key,
)
from tidegate.engine import Engine, InvariantViolation, StartStage
from tidegate.host import Plugins, make_policy
from tidegate.sim import ExactWorkers, Simulation
from tidegate.sim.workers import taking
from tidegate.toolkit import Gathering, RequestQueue

EVERY_POLICY = Plugins.installed().policies.values()
PROFILE = Profile.linear("m", alpha_ms=1, beta_ms=10, max_rows=8)
SLO_NS = ms_to_ns(200)


def setup(limit: int | None, *, slo_ns: int | None = SLO_NS, workers: int = 1) -> Setup:
    model = Model("m", 8, slo_ns, merge_limit=limit)
    return Setup((model,), tuple(Worker(number, f"w{number}", ("m",)) for number in range(workers)), (PROFILE,))


due_on_time = Arrivals(slo_ns=SLO_NS)


@pytest.mark.parametrize("spec", EVERY_POLICY, ids=lambda spec: spec.name)
@pytest.mark.parametrize("slo_ns", [SLO_NS, None], ids=["slo", "no slo"])
def test_what_nobody_can_join_is_not_deferred(spec: PolicySpec, slo_ns: int | None) -> None:
    policy = make_policy(spec, setup(1, slo_ns=slo_ns, workers=3), {})
    for number, rows in enumerate((1, 3, 8)):
        dispatched = [each for each in policy.handle(due_on_time(number, rows=rows)) if isinstance(each, Dispatch)]
        assert [each.batch.request_ids for each in dispatched] == [(number,)]


def test_what_can_grow_is_deferred() -> None:
    spec, options = Plugins.installed().policy("symphony"), {"deferral": "frontrun"}
    (timer,) = make_policy(spec, setup(None), options).handle(due_on_time(0))
    assert isinstance(timer, SetTimer)
    at_once, _ = make_policy(spec, setup(1), options).handle(due_on_time(0))
    assert isinstance(at_once, Dispatch), "nobody can join"


@pytest.mark.parametrize("spec", EVERY_POLICY, ids=lambda spec: spec.name)
@settings(max_examples=examples(0.2))
@given(
    limit=st.sampled_from([1, 2, 4]),
    requests=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8), st.sampled_from("ab")), max_size=30),
    workers=st.integers(1, 2),
)
def test_nothing_is_merged_beyond_the_limit(
    spec: PolicySpec, limit: int, requests: list[tuple[int, int, str]], workers: int
) -> None:
    policy = make_policy(spec, setup(limit, workers=workers), {})
    engine = Engine(policy, name=spec.name, strict=True, learn=False)
    sizes: list[tuple[int, int]] = []

    def service(effect: StartStage) -> int:
        sizes.append((len(effect.batch.request_ids), effect.rows))
        return PROFILE.upper_ns(effect.rows)

    simulation = Simulation(engine, ExactWorkers(taking(service)))
    simulation.schedule(
        [
            due_on_time(number, ms_to_ns(at_ms), rows=rows, key=key)
            for number, (at_ms, rows, key) in enumerate(sorted(requests, key=lambda request: request[0]))
        ]
    )
    simulation.run()
    assert engine.tally.ended == engine.tally.accepted == len(requests)
    assert all(count == 1 or rows <= limit for count, rows in sizes)


def test_the_engine_refuses_to_merge_them() -> None:
    models = tuple(msgspec.structs.replace(model, merge_limit=1) for model in SETUP.models)
    engine = engine_of(Script((), [run(0, 1, at_ns=5)], setup=msgspec.structs.replace(SETUP, models=models)))
    engine.handle(arrived(0))
    with pytest.raises(
        InvariantViolation, match="invariant 1: batch 0 has 2 requests of 2 rows; 'm' runs each request al"
    ):
        engine.handle(arrived(1, 5))


def test_they_have_one_queue_however_they_differ() -> None:
    alone, merged = Model("m", 8, merge_limit=1), Model("m", 8)
    request = due_on_time(0, key="3,224,224").request
    assert queue_key(request, alone) == ("m", "", "")
    assert queue_key(request, merged) == ("m", "", "3,224,224")


@pytest.mark.parametrize(("limit", "gathered"), [(1, (1, 1)), (2, (2, 2)), (4, (3, 4))])
def test_gathering_keeps_to_the_limit(limit: int, gathered: tuple[int, int]) -> None:
    queue = RequestQueue(("m", "", ""), Model("m", 8, merge_limit=limit))
    for number, rows in enumerate((1, 1, 2, 6)):
        queue.push(Request(number, "m", rows, 0, NEVER_NS))
    gathering = Gathering(0)
    head = gathering.keep_head(queue, PROFILE, 0)
    window = gathering.window(queue, PROFILE, 0, target_rows=8)
    assert head == window
    assert head is not None
    assert (head.count, head.rows) == gathered
    queue.pop(3)
    large = gathering.keep_head(queue, PROFILE, 0)
    assert large is not None
    assert (large.count, large.rows) == (1, 6)
