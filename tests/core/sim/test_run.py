"""A run of a scenario: what is counted, what is not, and that the random streams do not move each other."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.core.sim.conftest import make_scenario
from tidegate.api import (
    Advise,
    AnyCommand,
    Commands,
    Drop,
    PolicyOptions,
    PolicySpec,
    RequestArrived,
    Setup,
    StageFinished,
    Worker,
    hookimpl,
)
from tidegate.engine import AnyEffect, AnyStimulus
from tidegate.host import PluginError, Plugins
from tidegate.observation import EngineSettings, Observer, ObserverOptions
from tidegate.schemas import Mig
from tidegate.sim.result import ALL_MODELS, ResultRow
from tidegate.sim.run import RunSpec, SimulationError, choose_policies, simulate
from tidegate.toolkit import FirstComeFirstServed, RequestQueue
from tidegate.workload import PolicyChoice, Scenario, layout_of

FIFS = PolicyChoice(name="fifs")


class Seen(Observer):
    """An observer that keeps the stimuli."""

    def __init__(self) -> None:
        super().__init__(ObserverOptions())
        self.events: list[AnyStimulus] = []

    def started(self, policy: str, options: dict[str, Any], setup: Setup, settings: EngineSettings) -> None:
        self.setup = setup

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        self.events.append(event)

    def arrivals(self) -> list[tuple[int, str, int]]:
        return [(e.now_ns, e.request.model, e.request.rows) for e in self.events if isinstance(e, RequestArrived)]

    def durations(self, worker_id: int) -> list[int]:
        stages = [event for event in self.events if isinstance(event, StageFinished) and event.worker_id == worker_id]
        return [stage.ended_ns - stage.started_ns for stage in stages]


def plugins(policy: type[FirstComeFirstServed]) -> Plugins:
    class Plugin:
        @hookimpl
        def tidegate_policies(self) -> list[PolicySpec]:
            return [PolicySpec("own", "of this test", policy)]

    registry = Plugins()
    registry.register(Plugin(), "test")
    return registry


OWN = PolicyChoice(name="own")


def watch(scenario: Scenario, seed: int = 1) -> Seen:
    seen = Seen()
    simulate(RunSpec(scenario, FIFS, seed), observers=[seen])
    return seen


def check(row: ResultRow) -> None:
    """The figures of a row agree with each other."""
    bad = row.late + sum(row.dropped.values()) + row.failed + row.stranded
    assert row.accepted == row.answered + row.failed + row.stranded + sum(row.dropped.values())
    assert row.bad_rate == pytest.approx(bad / row.accepted, abs=1e-6)
    assert row.attainment == pytest.approx(1 - row.bad_rate)
    assert row.batches == sum(row.batch_rows.values())


@pytest.mark.parametrize("policy", ["fifs", "symphony"])
def test_a_model_of_which_nothing_merges(policy: str) -> None:
    model = {"name": "m", "slo_ms": 500, "profile": {"alpha_ms": 2, "beta_ms": 4, "max_batch": 8}, "rows": 2}
    runs = {}
    for scheduling in ("batched", "unbatched"):
        scenario = make_scenario(models=[{**model, "scheduling": scheduling}], arrivals={"rate_rps": 100})
        runs[scheduling] = simulate(RunSpec(scenario, PolicyChoice(name=policy), 1)).rows[0]
    assert set(runs["unbatched"].batch_rows) == {"2"}
    assert max(map(int, runs["batched"].batch_rows)) > 2
    assert runs["unbatched"].accepted == runs["batched"].accepted


def test_only_the_window_counts_but_all_of_it() -> None:
    scenario = make_scenario()
    seen = Seen()
    result = simulate(RunSpec(scenario, FIFS, 1), observers=[seen])
    window_from_ns = 5 * 10**8
    assert any(at_ns < window_from_ns for at_ns, _, _ in seen.arrivals()), "the warm-up is load as well"
    in_window = [model for at_ns, model, _ in seen.arrivals() if at_ns >= window_from_ns]
    assert [(row.model, row.accepted) for row in result.rows] == [
        (ALL_MODELS, len(in_window)),
        ("resnet", in_window.count("resnet")),
        ("bert", in_window.count("bert")),
    ]
    total, *models = result.rows
    for row in result.rows:
        check(row)
    for field in ("accepted", "answered", "late", "failed", "batches"):
        assert getattr(total, field) == sum(getattr(row, field) for row in models)
    assert total.goodput_rps == pytest.approx(sum(row.goodput_rps for row in models))
    assert total.worst_bad_rate == max(row.bad_rate for row in models)
    assert total.rate_rps == 250
    assert total.offered_rps == pytest.approx(len(in_window) / 2)
    for name, share in total.busy_shares.items():
        assert share == pytest.approx(sum(row.busy_shares[name] for row in models), abs=1e-5)
        assert 0 < share <= 1
    assert list(total.busy_shares) == ["node0/A100-0", "node0/A100-1"]
    assert total.busy_share == pytest.approx(sum(total.busy_shares.values()) / 2, abs=1e-5)


def test_what_waits_when_the_window_closes_is_run_to_its_end() -> None:
    total = simulate(RunSpec(make_scenario(arrivals={"rate_rps": 4000}), FIFS, 1)).total
    assert total.stranded == 0
    assert total.answered == total.accepted
    assert total.p99_ms is not None
    assert total.p99_ms > 1000, "the queue grew for seconds"
    assert total.bad_rate > 0.9
    assert all(share == pytest.approx(1, abs=0.02) for share in total.busy_shares.values())


def test_latencies_are_those_of_an_idle_worker_when_nothing_waits() -> None:
    model = {"name": "resnet", "slo_ms": 25, "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 16}}
    scenario = make_scenario(models=[model], arrivals={"process": "uniform", "rate_rps": 10})
    total = simulate(RunSpec(scenario, FIFS, 1)).total
    assert (total.p50_ms, total.p95_ms, total.p99_ms) == (6.0, 6.0, 6.0)
    assert total.batch_rows == {"1": 20}
    assert (total.median_batch_rows, total.touched_workers) == (1.0, 1)
    assert list(total.busy_shares.values()) == [pytest.approx(20 * 0.006 / 2), 0]
    assert total.attainment == 1


def test_the_gantt_shows_the_first_moments_of_the_window() -> None:
    bars = simulate(RunSpec(make_scenario(), FIFS, 1, gantt_s=0.5)).gantt
    assert bars
    assert all(bar.end_s > 0 and bar.start_s < 0.5 for bar in bars)
    assert {bar.worker for bar in bars} == {"node0/A100-0", "node0/A100-1"}
    assert simulate(RunSpec(make_scenario(), FIFS, 1)).gantt == []


def test_drops_are_counted_by_reason_and_requests_that_are_forgotten_are_bad() -> None:
    class Careless(FirstComeFirstServed):
        """Drops every third request, for two reasons, and forgets every seventh."""

        best_effort = True

        def on_request_arrived(self, event: RequestArrived) -> Commands:
            number = event.request.id
            if number % 7 == 0:
                return ()
            if number % 3 == 0:
                return [Drop(number, "odd" if number % 2 else "even"), Advise(number % 5 - 1, f"at {number}")]
            return super().on_request_arrived(event)

    result = simulate(RunSpec(make_scenario(), OWN, 1), plugins=plugins(Careless))
    total = result.total
    check(total)
    assert total.stranded == pytest.approx(total.accepted / 7, rel=0.05)
    assert set(total.dropped) == {"odd", "even"}
    assert sum(total.dropped.values()) == pytest.approx(total.accepted * 6 / 7 / 3, rel=0.1)
    assert total.advice is not None
    assert total.advice["count"] == sum(total.dropped.values())
    assert (total.advice["least"], total.advice["most"]) == (-1, 3)
    assert len(result.advice) == total.advice["count"]
    for said in result.advice:
        assert said.workers == int(said.reason.removeprefix("at ")) % 5 - 1
    instants = [said.at_s for said in result.advice]
    assert instants == sorted(instants)
    assert instants[0] >= 0
    assert instants[-1] < 4


def test_a_policy_that_breaks_is_named() -> None:
    class Broken(FirstComeFirstServed):
        def worker_freed(self, now_ns: int, worker: Worker) -> Commands:
            raise KeyError("lost my notes")

    with pytest.raises(
        SimulationError,
        match=r"policy 'own', seed 1, at \d+ ns: KeyError: 'lost my notes' \(test_run.py:\d+, in worker_freed: raise ",
    ):
        simulate(RunSpec(make_scenario(), OWN, 1), plugins=plugins(Broken))


def test_a_run_is_given_up_once_too_much_went_wrong() -> None:
    ended: list[int] = []

    class Counting(FirstComeFirstServed):
        def queue_changed(self, now_ns: int, queue: RequestQueue) -> Commands:
            ended.append(now_ns)
            return super().queue_changed(now_ns, queue)

    overloaded = make_scenario(arrivals={"rate_rps": 4000}, warmup_s=0)
    result = simulate(RunSpec(overloaded, OWN, 1, bad_limit=0.01), plugins=plugins(Counting))
    assert result.stopped_early
    assert ended[-1] < 10**9, "of four seconds"
    fine = simulate(RunSpec(make_scenario(), FIFS, 1, bad_limit=0.01))
    assert not fine.stopped_early
    assert fine.rows == simulate(RunSpec(make_scenario(), FIFS, 1)).rows


def test_a_limit_is_not_spent_by_the_warm_up() -> None:
    steps = [{"from_s": 0, "rate_rps": 1}, {"from_s": 0.001, "rate_rps": 50}]
    scenario = make_scenario(warmup_s=0.0, arrivals={"rate_rps": steps})
    assert not simulate(RunSpec(scenario, FIFS, 1, bad_limit=0.0)).stopped_early


# Streams -------------------------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    simulation = {"jitter": {"cv": 0.2}, "failures": {"probability": 0.05}}
    first, again, other = (watch(make_scenario(simulation=simulation), seed) for seed in (1, 1, 2))
    assert first.events == again.events
    assert first.arrivals() != other.arrivals()


def test_jitter_and_failures_leave_the_load_as_it_is() -> None:
    plain, noisy = watch(make_scenario()), watch(make_scenario(simulation={"jitter": {"cv": 0.3}}))
    failing = watch(make_scenario(simulation={"failures": {"probability": 0.2}}))
    assert plain.arrivals() == noisy.arrivals() == failing.arrivals()
    assert set(plain.durations(0)) != set(noisy.durations(0))


def test_failures_leave_the_jitter_as_it_is() -> None:
    """One model, one worker, one row a batch: the n-th stage has the n-th factor, whether or not others fail."""
    model = {"name": "m", "profile": {"alpha_ms": 0, "beta_ms": 5, "max_batch": 1}}
    world = {"models": [model], "workers": [{"count": 1}], "arrivals": {"rate_rps": 20}}
    calm = watch(make_scenario(**world, simulation={"jitter": {"cv": 0.3}}))
    failing = watch(make_scenario(**world, simulation={"jitter": {"cv": 0.3}, "failures": {"probability": 0.3}}))
    drawn, kept = calm.durations(0), failing.durations(0)
    assert kept
    assert kept[0] in drawn
    assert len(set(kept[:20]) & set(drawn)) >= 19


def test_hidden_times_are_not_told() -> None:
    model = {"name": "m", "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 4}, "time_ms": 30}
    truth = {"m": {"profile": {"alpha_ms": 0, "beta_ms": 2}}}
    scenario = make_scenario(models=[model], arrivals={"rate_rps": 5}, simulation={"service": truth, "learn": False})
    seen = watch(scenario)
    assert set(seen.durations(0)) == {32_000_000}
    assert seen.setup.profiles[0].upper_ns(1) == 6_000_000


def test_the_network_is_not_told_and_moves_nothing_else() -> None:
    model = {"name": "m", "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 4}}
    world = {"models": [model], "arrivals": {"rate_rps": 5}}
    far = [{"count": 1, "network": {"control_ms": 2, "data_ms_per_row": 0.5}}]
    noisy = [{"count": 1, "network": {"control_ms": 2, "data_ms_per_row": 0.5, "jitter_ms": 0.1}}]
    seen = watch(make_scenario(**world, workers=far, simulation={"learn": False}))
    assert 8_500_000 in seen.durations(0)
    assert seen.setup.profiles[0].upper_ns(1) == 6_000_000
    jittery = watch(make_scenario(**world, workers=noisy, simulation={"learn": False}))
    assert jittery.arrivals() == seen.arrivals()
    assert min(jittery.durations(0)) > 8_500_000


def test_workers_go_and_come_back_by_number_and_by_node() -> None:
    pools = [{"count": 1, "node": "east"}, {"count": 2, "node": "west"}]
    events = [{"at_s": 1, "lost": 0}, {"at_s": 1.5, "lost": "west"}, {"at_s": 1.75, "joined": "west"}]
    seen = watch(make_scenario(workers=pools, simulation={"events": events}))
    told = [(type(event).__name__, event.now_ns) for event in seen.events if "Worker" in type(event).__name__]
    s = 10**9
    assert told == [("WorkerLost", 3 * s // 2)] + [("WorkerLost", 2 * s)] * 2 + [("WorkerJoined", 9 * s // 4)] * 2
    assert [worker.name for worker in seen.setup.workers] == ["east/default-0", "west/default-1", "west/default-2"]


def test_workers_may_share_gpus() -> None:
    model = {"name": "m", "profile": {"alpha_ms": 0, "beta_ms": 10, "max_batch": 1}}
    world = {"models": [model], "workers": [{"count": 2, "per_gpu": 2}], "arrivals": {"rate_rps": 400}}
    scenario = make_scenario(**world, simulation={"interference": 1.5, "learn": False})
    busy = watch(scenario).durations(0)
    assert sorted(busy)[len(busy) // 2] == 15_000_000


def test_workers_on_one_device_slow_each_other_down_whatever_they_host() -> None:
    """Two models that are always busy, on halves of one GPU, on a GPU each, or on two MIG instances of one."""
    models = [{"name": name, "profile": {"alpha_ms": 0, "beta_ms": 10, "max_batch": 1}} for name in "ab"]
    halves = [{"count": 1, "per_gpu": 2, "device": 0, "hosts": [name]} for name in "ab"]
    world = {"models": models, "arrivals": {"rate_rps": 400}, "simulation": {"interference": 1.5, "learn": False}}

    def typical_ms(scenario: Scenario) -> list[float]:
        seen = watch(scenario)
        return [sorted(busy)[len(busy) // 2] / 1e6 for busy in map(seen.durations, (0, 1))]

    assert typical_ms(make_scenario(**world, workers=halves)) == [15, 15]
    apart = [{**half, "device": number} for number, half in enumerate(halves)]
    assert typical_ms(make_scenario(**world, workers=apart)) == [10, 10]
    layout = layout_of(make_scenario(**world, workers=halves))
    instances = tuple(
        worker.model_copy(update={"slice": Mig("3g.20gb", 4 * number), "device_class": "default/mps-50"})
        for number, worker in enumerate(layout.workers)
    )
    isolated = {**world, "models": [], "workers": [], "layout": layout.model_copy(update={"workers": instances})}
    assert typical_ms(make_scenario(**isolated)) == [10, 10]


# Which policies ------------------------------------------------------------------------------------------------------


def test_policies_are_chosen_by_label_then_by_name() -> None:
    scenario = make_scenario()
    assert [choice.title for choice in choose_policies(scenario, [])] == ["fifs", "one by one"]
    assert [choice.title for choice in choose_policies(scenario, ["one by one"])] == ["one by one"]
    assert [choice.title for choice in choose_policies(scenario, ["fifs"])] == ["fifs"]
    assert choose_policies(scenario, ["symphony"]) == [PolicyChoice(name="symphony")]


def test_a_policy_must_be_installed_and_have_the_options() -> None:
    with pytest.raises(PluginError, match="no policy named 'oracle' is installed"):
        choose_policies(make_scenario(), ["oracle"])
    with pytest.raises(PluginError, match="name one with --policy"):
        choose_policies(make_scenario(policies=[]), [])
    with pytest.raises(PluginError, match="max_rows"):
        simulate(RunSpec(make_scenario(), PolicyChoice(name="fifs", options={"size": 1}), 1))


def test_a_policy_hears_what_the_scenario_says() -> None:
    heard: list[Setup] = []

    class Listening(FirstComeFirstServed):
        def __init__(self, setup: Setup, options: PolicyOptions) -> None:
            super().__init__(setup, options)
            heard.append(setup)

    pools = [{"count": 1, "gpu": "A100", "hosts": ["resnet"]}, {"count": 1, "gpu": "A100"}]
    simulate(RunSpec(make_scenario(workers=pools), OWN, seed=7), plugins=plugins(Listening))
    (setup,) = heard
    assert setup.seed == 7
    assert [worker.hosts for worker in setup.workers] == [("resnet",), ("bert", "resnet")]
    assert [(model.name, model.max_rows, model.slo_ns) for model in setup.models] == [
        ("resnet", 16, 25_000_000),
        ("bert", 8, 60_000_000),
    ]
    assert [(profile.partition, profile.device_class) for profile in setup.profiles] == [
        ("bert", "A100"),
        ("resnet", "A100"),
    ]
