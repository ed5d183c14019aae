"""Several policies in one: each decides as it would alone, and what cannot be parted is refused with the remedy."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.host.joined_worlds import joined
from tests.examples import examples, few
from tidegate.api import (
    AnyEvent,
    Batch,
    Commands,
    Dispatch,
    Drop,
    Model,
    Pipeline,
    PolicyOptions,
    PolicySpec,
    Profile,
    ProfileUpdated,
    Request,
    RequestArrived,
    SetTimer,
    Setup,
    TimerFired,
    TimerLatencyUpdated,
    Worker,
    WorkerJoined,
)
from tidegate.engine import Engine
from tidegate.host import PluginError, Plugins
from tidegate.host.by_model import ByModel
from tidegate.observation import (
    AnyEffect,
    AnyStimulus,
    ClockAdvanced,
    PolicyChanged,
    PolicyReplaced,
    PolicyRestored,
    TopologyChanged,
)
from tidegate.sim import ExactWorkers, Simulation
from tidegate.sim.run import RunSpec, simulate
from tidegate.sim.workers import taking
from tidegate.testing import check_policy
from tidegate.testing.conformance import check_world
from tidegate.testing.world import random_world
from tidegate.toolkit import FirstComeFirstServed
from tidegate.workload import PolicyChoice, Scenario, read_scenario

PLUGINS = Plugins.installed()
ROOT = Path(__file__).parents[3]
SLOW, QUICK = [{"alpha_ms": alpha_ms, "beta_ms": 4, "max_batch": 8} for alpha_ms in (6, 1)]
MODELS = {
    "a": {"name": "a", "slo_ms": 60, "profile": SLOW},
    "b": {"name": "b", "slo_ms": 25, "profile": QUICK},
    "c": {"name": "c", "slo_ms": 30, "profile": QUICK, "rows": {"distribution": "table", "values": [1, 3]}},
}
WORKERS = {"a": {"count": 2, "hosts": ["a"]}, "bc": {"count": 3, "hosts": ["b", "c"]}}
POLICIES = ("timeout", "symphony")
PARTS = [{"models": ["a"], "policy": "timeout"}, {"models": ["[bc]"], "policy": "symphony"}]


def profile_of(model: str) -> Profile:
    return Profile(model, "default", (10, 11, 12, 13))


SETUP = Setup(
    (Model("a", 4), Model("b", 4)),
    (Worker(0, "w0", ("a",)), Worker(1, "w1", ("b",))),
    (profile_of("a"), profile_of("b")),
)


def scenario_of(*models: str, rate_rps: float) -> Scenario:
    """The models, on the workers that host them, all at the same rate, with stages that fail."""
    return Scenario.model_validate(
        {
            "warmup_s": 0,
            "duration_s": 3,
            "workers": [pool for names, pool in WORKERS.items() if names[0] in models],
            "models": [MODELS[name] for name in models],
            "arrivals": {"process": "poisson", "rate_rps": rate_rps * len(models)},
        }
    )


def outcomes(scenario: Scenario, policy: str, **options: object) -> dict[str, tuple[object, ...]]:
    """What becomes of each model's requests, and in which batches they run."""
    result = simulate(RunSpec(scenario, PolicyChoice(name=policy, options=options), 1))
    return {
        row.model: (row.accepted, row.answered, row.late, row.dropped, row.mean_waiting_ms, row.batch_rows)
        for row in result.rows
        if row.model in MODELS
    }


def test_each_part_decides_as_it_would_alone() -> None:
    scenario = scenario_of("a", "b", "c", rate_rps=200)
    together = outcomes(scenario, "by-model", parts=PARTS)
    apart = outcomes(scenario_of("a", rate_rps=200), "timeout")
    apart |= outcomes(scenario_of("b", "c", rate_rps=200), "symphony")
    assert together == apart
    assert all(outcomes(scenario, policy) != together for policy in POLICIES)


def test_models_that_no_part_names_are_first_come_first_served() -> None:
    scenario = scenario_of("a", "b", "c", rate_rps=200)
    assert outcomes(scenario, "by-model", parts=PARTS[:1]) == (
        outcomes(scenario_of("a", rate_rps=200), "timeout") | outcomes(scenario_of("b", "c", rate_rps=200), "fifs")
    )


class ByWholeModel(ByModel):
    """Is tried in worlds without split models."""

    runs_pipelines = False


@pytest.mark.parametrize("policy", few(["ppipe", "symphony", "shepherd"], 2))
def test_what_a_part_is_told_and_commands_is_passed_on(policy: str) -> None:
    """Timers, preemption, reservations, losses and cancellations in conformance's worlds, where one part has all."""
    kind = ByModel if policy == "ppipe" else ByWholeModel
    options = {"parts": [{"models": ["*"], "policy": policy}]}
    check_policy(PolicySpec("by-model", "Several policies", kind), worlds=examples(0.2), options=options)


def test_late_requests_take_no_worker_that_a_part_has_reserved_ahead() -> None:
    for policy in ("ppipe", "reactive"):
        options = {"parts": [{"models": ["*"], "policy": policy}]}
        check_policy(PLUGINS.policy("by-model"), worlds=1, seed=12, options=options)


@pytest.mark.parametrize("seed", few(range(10), 2))
def test_two_policies_in_worlds_side_by_side_keep_all_invariants(seed: int) -> None:
    rng = random.Random(seed)
    names = rng.choices([name for name in PLUGINS.policies if name not in ("auto", "by-model")], k=2)  # auto: symphony
    worlds = [
        random_world(
            rng,
            disturbances=rng.random() < 0.6,
            pipelines=PLUGINS.policy(name).policy.runs_pipelines and rng.random() < 0.4,
        )
        for name in names
    ]
    parts = [{"models": ["other-*"], "policy": names[1]}, {"models": ["*"], "policy": names[0]}]
    check_world(PLUGINS.policy("by-model"), joined(*worlds), {"parts": parts})


class Timed(FirstComeFirstServed):
    """Sets a timer at every arrival, of a name that its neighbor's have, too, and collects those that fire."""

    def __init__(self, setup: Setup, options: PolicyOptions) -> None:
        super().__init__(setup, options)
        self.fired: list[object] = []

    def on_request_arrived(self, event: RequestArrived) -> Commands:
        number = event.request.id
        return [
            SetTimer("word", event.now_ns + 10),
            SetTimer(("of", "model", number // 10), event.now_ns + 10),
            *super().on_request_arrived(event),
        ]

    def on_timer_fired(self, event: TimerFired) -> Commands:
        self.fired.append(event.key)
        return ()


def test_timers_of_two_parts_are_two_timers_even_under_one_name() -> None:
    plugins = Plugins()
    plugins.policies["timed"] = PolicySpec("timed", "Sets timers", Timed)
    engine = engine_of(plugins, [{"models": ["a"], "policy": "timed"}, {"models": ["b"], "policy": "timed"}])
    engine.handle(arrived(0, 0, "a"))
    engine.handle(arrived(5, 1, "b"))
    engine.handle(ClockAdvanced(12))
    a, b, _ = parts_of(engine)
    assert (a.fired, b.fired) == (["word", ("of", "model", 0)], [])
    engine.handle(ClockAdvanced(15))
    assert (a.fired, b.fired) == (["word", ("of", "model", 0)], ["word", ("of", "model", 0)])


class Breaks(FirstComeFirstServed):
    """Answers one event, counted from 0, as the option says that nobody may."""

    class Options(PolicyOptions):
        nth: int
        how: Literal["raises", "commands what is none", "drops another's", "is no list"] = "raises"

    options: Options
    heard = 0

    def handle(self, event: AnyEvent) -> Commands:
        self.heard += 1
        if self.heard != self.options.nth + 1:
            return super().handle(event)
        match self.options.how:
            case "raises":
                raise RuntimeError("out of wits")
            case "commands what is none":
                return [Dispatch(Batch(10**6, "a", (), ()))]
            case "drops another's":
                return [Drop(10**6, "")]
            case _:
                return cast("Commands", 1)


def breaking(nth: int, how: str = "raises") -> tuple[Plugins, list[dict[str, Any]]]:
    plugins = Plugins.installed()
    plugins.policies["breaks"] = PolicySpec("breaks", "Breaks", Breaks)
    broken = {"models": ["a"], "policy": "breaks", "options": {"nth": nth, "how": how}}
    return plugins, [broken, {"models": ["b"], "policy": "symphony"}]


@pytest.mark.parametrize("how", ["raises", "commands what is none", "drops another's", "is no list"])
@settings(max_examples=examples(0.15))
@given(nth=st.integers(0, 12), models=st.lists(st.sampled_from("ab"), min_size=1, max_size=30))
def test_a_part_that_breaks_is_replaced_and_the_others_go_on(how: str, nth: int, models: list[str]) -> None:
    plugins, parts = breaking(nth, how)
    engine = Engine(plugins.make_policy("by-model", SETUP, {"parts": parts}), name="by-model")
    watch = Watch()
    simulation = Simulation(engine, ExactWorkers(taking(lambda effect: 7)), listeners=[watch])
    for number, model in enumerate(models):
        simulation.schedule([arrived(4 * number, number, model)])
    simulation.schedule([ProfileUpdated(4 * len(models) // 2, profile_of(model)) for model in "ab"])
    simulation.run()
    engine.validate()
    assert engine.tally.ended == engine.tally.accepted == len(models)
    broke, whole, _ = parts_of(engine)
    assert type(whole).__name__ == "Symphony"
    assert type(broke) is (FirstComeFirstServed if watch.replaced else Breaks)
    assert [effect.part for effect in watch.replaced] in ([], ["part 0 (breaks for a)"])
    assert watch.replaced or (isinstance(broke, Breaks) and broke.heard <= nth)


def test_where_all_parts_break_one_after_the_other_each_is_replaced_and_a_reload_begins_anew() -> None:
    plugins, parts = breaking(0)
    parts[1] = {**parts[0], "models": ["b"]}
    engine = Engine(
        plugins.make_policy("by-model", SETUP, {"parts": parts}), name="by-model", policies=plugins.make_policy
    )
    first, second = (
        [effect for effect in engine.handle(arrived(0, number, model)) if isinstance(effect, PolicyReplaced)]
        for number, model in enumerate("ab")
    )
    assert [effect.part for effect in (*first, *second)] == ["part 0 (breaks for a)", "part 1 (breaks for b)"]
    assert str(first[0]) == (
        "part 0 (breaks for a) of policy by-model broke and was replaced by first come, first served: "
        "ByModel: RuntimeError: out of wits; it is tried again in 1 s"
    )
    assert {type(part) for part in parts_of(engine)} == {FirstComeFirstServed}
    assert engine.decides == "by-model without part 0 (breaks for a) and part 1 (breaks for b), which broke"
    engine.handle(TopologyChanged(1, SETUP.models, SETUP.workers, SETUP.profiles))
    assert {type(part) for part in parts_of(engine)} == {FirstComeFirstServed}
    engine.handle(PolicyChanged(1, "by-model", {"parts": [{**parts[0], "options": {"nth": 99}}]}))
    assert type(parts_of(engine)[0]) is Breaks
    assert engine.decides == "by-model"


def test_parts_that_broke_are_made_again_after_the_back_off_and_the_others_keep_what_they_know() -> None:
    plugins, parts = breaking(0)
    engine = Engine(plugins.make_policy("by-model", SETUP, {"parts": parts}), name="by-model")
    engine.handle(arrived(0, 0, "a"))
    broken, other, _ = parts_of(engine)
    other.readmitted_ids.add(77)
    engine.handle(ClockAdvanced(999_999_999))
    assert parts_of(engine)[0] is broken
    (restored,) = engine.handle(ClockAdvanced(1_000_000_000))
    assert restored == PolicyRestored("by-model")
    assert type(parts_of(engine)[0]) is Breaks
    assert 77 in parts_of(engine)[1].readmitted_ids
    assert engine.decides == "by-model"
    engine.validate()


def test_of_several_parts_that_are_told_at_once_the_one_that_raised_is_replaced() -> None:
    plugins, parts = breaking(0)
    engine = Engine(plugins.make_policy("by-model", SETUP, {"parts": [parts[1], parts[0]]}), name="by-model")
    policy = engine.policy
    with pytest.raises(RuntimeError):
        policy.handle(TimerLatencyUpdated(0, 5))
    relief = policy.fallback(0)
    assert relief
    assert relief[0] == "part 1 (breaks for a)"


class Watch:
    """A listener that remembers which policies were replaced."""

    def __init__(self) -> None:
        self.replaced: list[PolicyReplaced] = []

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        self.replaced += [effect for effect in effects if isinstance(effect, PolicyReplaced)]


def engine_of(plugins: Plugins, parts: list[dict[str, Any]]) -> Engine:
    """Models a and b, each on a worker of its own."""
    plugins.policies["by-model"] = PLUGINS.policy("by-model")
    return Engine(plugins.make_policy("by-model", SETUP, {"parts": parts}), name="by-model", strict=True)


def parts_of(engine: Engine) -> list[Any]:
    assert isinstance(engine.policy, ByModel)
    return engine.policy.parts


def arrived(now_ns: int, number: int, model: str) -> RequestArrived:
    return RequestArrived(now_ns, Request(number, model, 1, now_ns))


def test_a_model_that_is_loaded_goes_to_the_part_that_names_it_and_the_parts_go_on() -> None:
    parts = [{"models": ["a*"], "policy": "symphony"}]
    engine = engine_of(Plugins.installed(), parts)
    before = parts_of(engine)[0]
    models = (*SETUP.models, Model("a2", 4))
    workers = (*SETUP.workers, Worker(2, "w2", ("a2",)))
    engine.handle(TopologyChanged(1, models, workers, (*SETUP.profiles, profile_of("a2"))))
    after = parts_of(engine)[0]
    assert after is not before
    assert [model.name for model in after.setup.models] == ["a", "a2"]
    assert {worker.id for worker in after.setup.workers} == {0, 2}


def test_a_worker_of_two_parts_is_refused_and_nothing_changes() -> None:
    engine = engine_of(Plugins.installed(), [{"models": ["a"], "policy": "symphony"}])
    both = Worker(2, "w2", ("a", "b"))
    says = "worker 'w2' hosts 'a' and 'b', for which different parts decide: let one part name both, or give the models"
    with pytest.raises(ValueError, match=says):
        engine.handle(WorkerJoined(1, both))
    with pytest.raises(ValueError, match=says):
        engine.handle(TopologyChanged(1, SETUP.models, (both,), SETUP.profiles))
    assert {worker.id for worker in engine.policy.setup.workers} == {0, 1}
    with pytest.raises(PluginError, match=f"policy 'by-model': {says}"):
        setup = Setup(SETUP.models, (both,), SETUP.profiles)
        PLUGINS.make_policy("by-model", setup, {"parts": [{"models": ["a"], "policy": "symphony"}]})


def test_a_reload_to_parts_that_share_a_worker_is_refused_and_the_policy_stays() -> None:
    setup = Setup(SETUP.models, (Worker(0, "both", ("a", "b")),), SETUP.profiles)
    engine = Engine(PLUGINS.make_policy("fifs", setup, {}), name="fifs", policies=PLUGINS.make_policy)
    before = engine.policy
    for _ in ("while the worker is idle", "while it is busy"):
        with pytest.raises(ValueError, match="'by-model' cannot take over: worker 'both' hosts 'a' and 'b', for which"):
            engine.handle(PolicyChanged(1, "by-model", {"parts": [{"models": ["a"], "policy": "symphony"}]}))
        assert engine.policy is before
        engine.handle(arrived(1, 0, "a"))


@pytest.mark.parametrize(
    ("paths", "shared"), [({"a": ("encode", "a.x"), "b": ("encode", "b.x")}, "encode"), ({"a": ("b", "a.x")}, "b")]
)
def test_models_of_two_parts_that_share_a_partition_are_refused(paths: dict[str, tuple[str, ...]], shared: str) -> None:
    split = {name: Model(name, 4, pipelines=(Pipeline(path, 4),)) for name, path in paths.items()}
    models = {"b": Model("b", 4), **split}.values()
    partitions = sorted({partition for model in models for path in model.paths for partition in path.partitions})
    workers = tuple(Worker(number, name, (name,)) for number, name in enumerate(partitions))
    setup = Setup(tuple(models), workers, tuple(map(profile_of, partitions)))
    with pytest.raises(PluginError, match=f"for which different parts decide, share '{shared}': let one part name"):
        PLUGINS.make_policy("by-model", setup, {"parts": [{"models": ["a"], "policy": "ppipe"}]})


def test_coverage_follows_the_parts_that_decide() -> None:
    """Nexus covers less than others do: as soon as anybody else decides for a model, that is not enough."""
    engine = engine_of(Plugins.installed(), [{"models": ["a", "b"], "policy": "nexus"}])
    assert engine.expectations._quantile == engine.policy.quantile < 0.9
    models, workers = (*SETUP.models, Model("c", 4)), (*SETUP.workers, Worker(2, "w2", ("c",)))
    engine.handle(TopologyChanged(1, models, workers, (*SETUP.profiles, profile_of("c"))))
    assert engine.expectations._quantile == engine.policy.quantile == 0.99


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"models": ["a"], "policy": "symfony"}, "parts.0: no policy named 'symfony' is installed"),
        ({"models": ["a"], "policy": "symphony", "options": {"reserve": 1}}, "options of policy 'symphony': reserve: "),
        ({"models": [], "policy": "symphony"}, "parts.0.models: "),
        ({"models": ["a"]}, "parts.0.policy: must be given"),
        ({"models": ["a"], "policy": "by-model"}, "parts.0: 'by-model' is no part of another: name its parts here"),
    ],
)
def test_parts_that_cannot_be_say_why(part: dict[str, Any], says: str) -> None:
    with pytest.raises(PluginError, match=f"options of policy 'by-model': .*{says}"):
        PLUGINS.make_policy("by-model", SETUP, {"parts": [part]})


def test_a_part_that_does_not_schedule_its_model_says_so() -> None:
    split = Model("a", 4, pipelines=(Pipeline(("a.x", "a.y"), 4),))
    with pytest.raises(PluginError, match=r"policy 'symphony': it schedules whole models only, and 'a' is split"):
        PLUGINS.make_policy("by-model", Setup((split,), (), ()), {"parts": [{"models": ["a"], "policy": "symphony"}]})


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        pytest.param("composed_pools", ["ppipe", "reactive"], marks=pytest.mark.slow),
        ("composed_dynamic", ["ppipe", "reactive"]),
    ],
)
def test_the_compositions_of_the_examples_beat_their_parts(name: str, parts: list[str]) -> None:
    scenario = read_scenario(ROOT / "scenarios" / f"{name}.yaml")
    shorter = scenario.model_copy(update={"duration_s": 3.0})
    bad = {
        choice.title: simulate(RunSpec(shorter, choice, seed=1)).rows[0].bad_rate
        for choice in scenario.policies
        if choice.name in ("by-model", *parts)
    }
    composed = [title for title in bad if title not in parts]
    assert max(bad[title] for title in composed) < 0.01
    assert min(bad[title] for title in parts) > 0.04


@pytest.mark.parametrize("policy", few(["symphony", "nexus", "clockwork", "eager"], 2))
def test_with_distributions_a_policy_beats_itself_without(policy: str) -> None:
    scenario = read_scenario(ROOT / "scenarios" / "layered.yaml").model_copy(update={"duration_s": 4.0})
    with_them, without = (
        simulate(RunSpec(scenario, next(each for each in scenario.policies if each.title == title), seed=3))
        .rows[0]
        .bad_rate
        for title in (f"{policy} by application", policy)
    )
    assert with_them < 0.9 * without
    assert without > 0.01
