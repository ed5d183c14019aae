"""Applications that take about as long are one class, of which policy and engine expect the same."""

import io
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tidegate.api import (
    Commands,
    LatencyDistribution,
    LatencyDistributionUpdated,
    Model,
    Pipeline,
    Policy,
    PolicyOptions,
    PolicySpec,
    Profile,
    ProfileUpdated,
    Request,
    RequestArrived,
    Setup,
    StageFinished,
    Worker,
    ms_to_ns,
)
from tidegate.engine import Engine, StartStage
from tidegate.engine.estimates.shapes import CLASS_LATENCY_RATIO, TimeClasses
from tidegate.host import Plugins
from tidegate.host.by_model import ByModel
from tidegate.observation import AnyEffect, AnyStimulus, PolicyChanged, Recorder, read_log
from tidegate.sim import ExactWorkers, Listener, Simulation
from tidegate.sim.replay import replay
from tidegate.sim.workers import taking
from tidegate.toolkit import FirstComeFirstServed

PLUGINS = Plugins.installed()
PROFILE = Profile.linear("m", alpha_ms=4, beta_ms=1, max_rows=8)
MODEL = Model("m", 8, slo_ns=ms_to_ns(100))
SPLIT = Model("m", 8, pipelines=(Pipeline(("m", "m.back"), 8),))
SETUP = Setup((MODEL,), (Worker(0, "w0", ("m",)), Worker(1, "w1", ("m",))), (PROFILE,))
APPS = {"short": 4, "like it": 4.4, "long": 24, "longest": 80}
"""What requests of each application take alone, in ms."""


def times_of(app: str, mean_ms: float) -> LatencyDistribution:
    return LatencyDistribution("m", app, "default", tuple(ms_to_ns(mean_ms * share) for share in (0.8, 1, 1.2)))


def separate_applications(policy: str, setup: Setup = SETUP) -> Policy:
    parts = [{"models": ["m"], "policy": policy, "separate_applications": True}]
    return PLUGINS.make_policy("by-model", setup, {"parts": parts})


def of_app(app: str, number: int = 0, at_ns: int = 0, shape: str = "") -> Request:
    return Request(number, "m", 1, at_ns, at_ns + ms_to_ns(100), app=app, shape=shape)


def classes_of(*told: LatencyDistribution) -> TimeClasses:
    policy = separate_applications("eager")
    classes = TimeClasses(lambda: policy)
    for times in told:
        classes.tell(times)
    return classes


def shapes_of(classes: TimeClasses) -> dict[str, str]:
    assert all(classes.applies_to(of_app(app), MODEL) for app in APPS)
    return {app: classes.classify(of_app(app)).shape for app in APPS}


def test_those_that_take_about_as_long_are_of_one_class_and_what_is_unknown_is_of_the_first() -> None:
    classes = classes_of(*(times_of(app, mean_ms) for app, mean_ms in APPS.items() if app != "longest"))
    shapes = shapes_of(classes)
    assert shapes["short"] == shapes["like it"] == shapes["longest"] == ""
    assert shapes["long"] == f"{CLASS_LATENCY_RATIO**4:.3g}x as long"


def test_a_model_whose_applications_take_alike_is_left_as_it_is() -> None:
    classes = classes_of(times_of("short", 4), times_of("like it", 4.4))
    assert set(shapes_of(classes).values()) == {""}
    assert classes.moved(MODEL, {PROFILE.key: PROFILE}) == []


def test_an_application_between_two_classes_does_not_come_and_go() -> None:
    classes = classes_of(times_of("short", 10), times_of("long", 10 * CLASS_LATENCY_RATIO**0.6))
    before = shapes_of(classes)["long"]
    assert before
    classes.tell(times_of("long", 10 * CLASS_LATENCY_RATIO**0.4))
    assert shapes_of(classes)["long"] == before
    classes.tell(times_of("long", 10 * CLASS_LATENCY_RATIO**0.2))
    assert shapes_of(classes)["long"] == ""


@pytest.mark.parametrize(("request_", "model"), [(of_app(""), MODEL), (of_app("long"), SPLIT)])
def test_what_has_no_application_or_several_partitions_is_not_told_apart(request_: Request, model: Model) -> None:
    assert not classes_of(times_of("short", 4), times_of("long", 40)).applies_to(request_, model)


def test_where_requests_are_of_several_shapes_these_tell_them_apart() -> None:
    classes = classes_of(times_of("short", 4), times_of("long", 4 * CLASS_LATENCY_RATIO))
    first, other = of_app("long", shape="x:320"), of_app("long", shape="x:640")
    assert classes.applies_to(first, MODEL)
    assert classes.classify(first).shape == f"x:320, {CLASS_LATENCY_RATIO:.3g}x as long"
    assert {profile.shape for profile in classes.moved(MODEL, {PROFILE.key: PROFILE})} == {
        "x:320",
        f"x:320, {CLASS_LATENCY_RATIO:.3g}x as long",
    }
    assert not classes.applies_to(other, MODEL)
    assert not classes.applies_to(first, MODEL)


def test_only_a_policy_that_wants_it_has_applications_told_apart() -> None:
    setup = replace(SETUP, latency_distributions=tuple(times_of(app, mean_ms) for app, mean_ms in APPS.items()))
    for policy, told in (
        (separate_applications("eager", setup), True),
        (PLUGINS.make_policy("eager", setup, {}), False),
    ):
        engine = Engine(policy, name="eager", strict=True)
        (effect,) = engine.handle(RequestArrived(0, of_app("long")))
        assert isinstance(effect, StartStage)
        assert bool(effect.shape) == told
        assert len(engine.expectations.profiles) == (3 if told else 1)  # the first two applications share one


class Listening(FirstComeFirstServed):
    """First come, first served, and what it is told."""

    def __init__(self, setup: Setup, options: PolicyOptions) -> None:
        super().__init__(setup, options)
        self.profiles = {profile.key: profile for profile in setup.profiles}
        self.distributions = 0

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        self.profiles[event.profile.key] = event.profile
        return super().on_profile_updated(event)

    def on_latency_distribution_updated(self, event: LatencyDistributionUpdated) -> Commands:
        self.distributions += 1
        return ()


def listening(setup: Setup = SETUP, *, separate_applications: bool) -> tuple[ByModel, Listening]:
    plugins = Plugins()
    plugins.policies["listening"] = PolicySpec("listening", "Listens", Listening)
    plugins.policies["by-model"] = PLUGINS.policy("by-model")
    parts = [{"models": ["m"], "policy": "listening", "separate_applications": separate_applications}]
    policy = plugins.make_policy("by-model", setup, {"parts": parts})
    assert isinstance(policy, ByModel)
    part = policy.parts[0]
    assert isinstance(part, Listening)
    return policy, part


@pytest.mark.parametrize("apart", [False, True])
def test_what_profiles_say_already_is_not_told_once_more(apart: bool) -> None:
    """Orloj and Symphony would count the spread of times twice."""
    times = times_of("short", 4)
    policy, part = listening(replace(SETUP, latency_distributions=(times,)), separate_applications=apart)
    policy.handle(LatencyDistributionUpdated(0, times))
    assert (len(part.setup.latency_distributions), part.distributions) == ((0, 0) if apart else (1, 1))


class Agreed:
    """A listener: books add up, and what the policy was told is what the engine expects (invariant 8)."""

    def __init__(self, engine: Engine, part: Listening) -> None:
        self._engine, self._part = engine, part

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        self._engine.validate()
        assert self._part.profiles == self._engine.expectations.profiles


def run(engine: Engine, rng: random.Random, *, count: int, gap_ms: float, listeners: Sequence[Listener] = ()) -> None:
    """Requests of all applications, in batches that are padded to the longest."""
    apps = {number: rng.choice(list(APPS)) for number in range(count)}
    carried_ms = {number: APPS[app] * rng.uniform(0.7, 1.3) for number, app in apps.items()}

    def service_ns(effect: StartStage) -> int:
        longest_ms = max(carried_ms[request_id] for request_id in effect.batch.request_ids)
        return ms_to_ns(1 + effect.rows * longest_ms)

    simulation = Simulation(engine, ExactWorkers(taking(service_ns)), listeners=listeners)
    at_ns = 0
    for number, app in apps.items():
        at_ns += round(rng.expovariate(1 / ms_to_ns(gap_ms)))
        simulation.schedule([RequestArrived(at_ns, of_app(app, number, at_ns))])
    simulation.run()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 999), gap_ms=st.floats(8, 60))
def test_8_the_policy_knows_of_every_class_what_the_engine_expects(seed: int, gap_ms: float) -> None:
    policy, part = listening(separate_applications=True)
    engine = Engine(policy, name="by-model", strict=True)
    run(engine, random.Random(seed), count=150, gap_ms=gap_ms, listeners=[Agreed(engine, part)])
    assert engine.tally.ended == engine.tally.accepted == 150


def test_classes_are_learned_and_their_profiles_cover_what_batches_of_them_take() -> None:
    policy, part = listening(separate_applications=True)
    engine = Engine(policy, name="by-model", strict=True)
    run(engine, random.Random(1), count=600, gap_ms=40)
    by_shape = {shape: profile for (_, _, shape), profile in part.profiles.items()}
    assert len(by_shape) == 3
    quick, *slower = sorted(by_shape.values(), key=lambda profile: profile.expected_ns(1))
    long, longest = slower
    for profile, mean_ms in ((quick, 4.2), (long, 24), (longest, 80)):
        assert profile.expected_ns(1) == pytest.approx(ms_to_ns(1 + mean_ms), rel=0.2)
        assert profile.upper_ns(1) > profile.expected_ns(1)


@pytest.mark.parametrize("policy", sorted(name for name in PLUGINS.policies if name != "by-model"))
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 999), gap_ms=st.floats(4, 40))
def test_every_policy_keeps_the_invariants_with_classes_and_is_replayed(policy: str, seed: int, gap_ms: float) -> None:
    log = io.BytesIO()
    engine = Engine(separate_applications(policy), name="by-model", strict=True, observers=[Recorder(log)])
    run(engine, random.Random(seed), count=80, gap_ms=gap_ms)
    assert engine.tally.ended == engine.tally.accepted == 80
    header, entries = read_log(log.getvalue().splitlines())
    again = PLUGINS.make_policy(header.policy, header.setup, header.options)
    assert replay(header, entries, again).difference is None


def test_a_reload_begins_and_ends_it_and_what_waits_keeps_its_class() -> None:
    setup = replace(SETUP, latency_distributions=tuple(times_of(app, mean_ms) for app, mean_ms in APPS.items()))
    engine = Engine(PLUGINS.make_policy("fifs", setup, {}), name="fifs", strict=True, policies=PLUGINS.make_policy)
    parts = [{"models": ["m"], "policy": "fifs", "separate_applications": True}]
    running: list[StartStage] = []
    shapes: dict[int, str] = {}

    def arrive(number: int, app: str) -> None:
        effects = engine.handle(RequestArrived(engine.now_ns, of_app(app, number)))
        running.extend(effect for effect in effects if isinstance(effect, StartStage))

    def finish(stage: StartStage) -> None:
        at_ns, worker_id = engine.now_ns + 1, stage.batch.stages[0].worker_id
        effects = engine.handle(StageFinished(at_ns, stage.batch.id, 0, worker_id, engine.now_ns, at_ns))
        running.extend(effect for effect in effects if isinstance(effect, StartStage))

    for number, app in enumerate(("long", "short", "long")):  # two run, one waits
        arrive(number, app)
    engine.handle(PolicyChanged(engine.now_ns, "by-model", {"parts": parts}))
    for number, app in enumerate(("long", "longest"), start=3):
        arrive(number, app)
    engine.handle(PolicyChanged(engine.now_ns, "fifs", {}))
    arrive(5, "long")
    while running:
        engine.validate()
        shapes.update(dict.fromkeys(running[0].batch.request_ids, running[0].shape))
        finish(running.pop(0))
    assert [bool(shapes[number]) for number in range(6)] == [False, False, False, True, True, False]
    assert shapes[3] != shapes[4]
