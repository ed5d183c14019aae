"""PPipe's data plane, event by event and in simulation."""

from pathlib import Path
from typing import Any

import pytest

from tests.arrivals import Arrivals
from tidegate.api import (
    NEVER_NS,
    Batch,
    BatchFailed,
    CancelTimer,
    Dispatch,
    Drop,
    Model,
    Network,
    Pipeline,
    Profile,
    Request,
    RequestArrived,
    RequestCancelled,
    Reroute,
    SetTimer,
    Setup,
    Stage,
    StageFinished,
    TimerFired,
    Worker,
    WorkerJoined,
    WorkerLost,
)
from tidegate.engine import Engine, TopologyChanged
from tidegate.schemas import Device
from tidegate.sim import Simulation
from tidegate.sim.run import RunSpec, simulate
from tidegate.testing import Playbook
from tidegate.workload import PolicyChoice, Scenario, read_scenario
from tidegate_ppipe.policy import Ppipe, PpipeOptions

KEY = ("m", "", "")
SLO = 100
SPLIT, WHOLE = Pipeline(("a", "b"), 4), Pipeline(("whole",), 2)
PROFILES = (
    Profile("a", "slow", (10, 12, 14, 16)),
    Profile("b", "fast", (5, 6, 7, 8)),
    Profile("whole", "fast", (20, 24)),
)
NETWORK = Network({"a": 2}, bytes_per_s=1e9)
"""2 ns a row."""
SLOW, SLOW2 = Worker(0, "s0", ("a",), "slow", Device("s0", 0)), Worker(1, "s1", ("a",), "slow", Device("s1", 0))
FAST, FAST2 = Worker(2, "f0", ("b",), "fast", Device("f0", 0)), Worker(3, "f1", ("b",), "fast", Device("f1", 0))
ALONE = Worker(4, "f2", ("whole",), "fast", Device("f2", 0))


def playbook(
    *workers: Worker, pipelines: tuple[Pipeline, ...] = (SPLIT,), slack_ns: int = 0, **options: float | bool | str
) -> Playbook:
    model = Model("m", 4, SLO, pipelines)
    setup = Setup((model,), workers, PROFILES, network=NETWORK, timer_latency_ns=slack_ns)
    return Playbook(Ppipe(setup, PpipeOptions.model_validate({"batch_formation": "full_size", **options})))


arrived = Arrivals(slo_ns=SLO)


def split(
    *request_ids: int,
    batch: int = 0,
    at_ns: int = 0,
    rows: int | None = None,
    slow: int = 0,
    fast: int = 2,
    sent_ns: int | None = None,
    second_ns: int | None = None,
) -> Dispatch:
    """Along both partitions: the transfer and the second stage at once, unless other instants are given."""
    rows = rows or len(request_ids)
    first = Stage(slow, "a", at_ns, PROFILES[0].upper_ns(rows))
    sent_ns = first.end_ns if sent_ns is None else sent_ns
    second_ns = sent_ns + 2 * rows if second_ns is None else second_ns
    second = Stage(fast, "b", second_ns, PROFILES[1].upper_ns(rows), sent_ns)
    return Dispatch(Batch(batch, "m", request_ids, (first, second)))


def finished(now_ns: int, batch: int = 0, *, stage: int = 0, worker: int = 0) -> StageFinished:
    return StageFinished(now_ns, batch, stage, worker, 0, now_ns)


# How large a batch is and when it leaves ------------------------------------------------------------------------------


def test_a_batch_gathers_until_it_has_its_planned_size() -> None:
    assert (
        playbook(SLOW, FAST)
        >> arrived(0)
        << SetTimer(KEY, SLO - 10 - 2 - 5)
        >> arrived(1, 3)
        << SetTimer(KEY, SLO - 12 - 4 - 6)
        >> arrived(2, 4)
        << SetTimer(KEY, SLO - 14 - 6 - 7)
        >> arrived(3, 5)
        << split(0, 1, 2, 3, at_ns=5)
        << CancelTimer(KEY)
    )


def test_what_is_not_to_wait_for_more_does_not() -> None:
    at_once = RequestArrived(0, Request(0, "m", 1, 0, SLO, deferrable=False))
    assert playbook(SLOW, FAST) >> at_once << split(0)


def test_or_until_the_last_moment() -> None:
    play = playbook(SLOW, FAST) >> arrived(0) << SetTimer(KEY, 83)
    assert play >> TimerFired(83, KEY) << split(0, at_ns=83) << CancelTimer(KEY)


def test_timers_that_fire_late_are_set_earlier() -> None:
    assert playbook(SLOW, FAST, slack_ns=4) >> arrived(0) << SetTimer(KEY, 79)


def test_so_is_what_keeps_a_reserve() -> None:
    assert playbook(SLOW, FAST, deadline_margin_ms=1e-5) >> arrived(0) << SetTimer(KEY, 73)


def test_under_light_load_nothing_waits_for_company() -> None:
    assert playbook(SLOW, FAST, batch_formation="when_needed") >> arrived(0) << split(0)


def test_under_load_a_batch_gathers_until_one_more_could_not_join_it() -> None:
    """Symphony's frontrun: what the batch takes with a row more than it has, before its deadline."""
    play = playbook(SLOW, FAST, batch_formation="when_needed") >> arrived(0) << split(0)
    play = play >> arrived(1, 1) << SetTimer(KEY, 1 + SLO - 12 - 4 - 6)
    assert play >> arrived(2, 2) << SetTimer(KEY, 1 + SLO - 14 - 6 - 7)
    play = playbook(SLOW, SLOW2, FAST, FAST2) >> arrived(0, rows=4) << split(0, rows=4)
    assert play >> arrived(1, 1) << SetTimer(KEY, 1 + SLO - 10 - 2 - 5)  # the paper's: until it has to leave itself


def test_deferral_at_the_head_of_a_pipeline_answers_more_on_time_than_gathering_to_the_last_moment() -> None:
    scenario = read_scenario(Path(__file__).parents[3] / "scenarios" / "deferred_pipeline.yaml")
    needed, planned = (
        sum(simulate(RunSpec(scenario, choice, seed)).rows[0].bad_rate for seed in (2, 3, 4))
        for choice in scenario.policies
    )
    assert needed < 0.8 * planned


def test_a_request_with_a_nearer_deadline_is_waited_for_no_longer() -> None:
    play = playbook(SLOW, FAST) >> arrived(0) << SetTimer(KEY, 83)
    assert play >> arrived(1, 1, due_ns=50) << SetTimer(KEY, 50 - 22)


def test_without_a_deadline_nothing_waits() -> None:
    assert playbook(SLOW, FAST) >> arrived(0, due_ns=NEVER_NS) << split(0)


def test_a_batch_is_as_large_as_the_oldest_deadline_allows() -> None:
    play = playbook(SLOW, FAST) >> arrived(0, due_ns=29) << SetTimer(KEY, 12)
    play = play >> arrived(1, 1, due_ns=29) << SetTimer(KEY, 7)
    assert play >> arrived(2, 2, due_ns=29) << split(0, 1, 2, at_ns=2) << CancelTimer(KEY)


def test_what_cannot_be_on_time_is_dropped() -> None:
    assert playbook(SLOW, FAST) >> arrived(0, due_ns=16) << Drop(0, "deadline_unreachable")


def test_a_cancelled_request_takes_its_timer_along() -> None:
    play = playbook(SLOW, FAST) >> arrived(0) << SetTimer(KEY, 83)
    assert play >> RequestCancelled(9, 0) << CancelTimer(KEY)


def test_a_batch_is_bound_to_its_path_when_its_first_worker_is_free() -> None:
    play = playbook(SLOW, FAST) >> arrived(0, rows=4) << split(0, rows=4) >> arrived(1, 1, rows=4)
    assert play >> finished(16) << split(1, batch=1, at_ns=16, rows=4)


# What stages that scatter cost
# ------------------------------------------------------------------------------------------

SCATTERED = (Profile("a", "slow", (10, 12), (16, 18)), Profile("b", "fast", (5, 6), (13, 14)))
"""Standard deviations of 6 and 8: 10 for the path, of which 10 + 2 + 5 is expected with one row."""


def scattered(*workers: Worker, batch_formation: str = "full_size") -> Playbook:
    setup = Setup((Model("m", 2, SLO, (Pipeline(("a", "b"), 2),)),), workers, SCATTERED, network=NETWORK)
    return Playbook(Ppipe(setup, PpipeOptions.model_validate({"batch_formation": batch_formation})))


def test_a_path_has_one_margin_of_which_half_has_to_be_left() -> None:
    leaves = Dispatch(Batch(0, "m", (0,), (Stage(0, "a", 0, 16), Stage(2, "b", 18, 13, 16))))
    assert scattered(SLOW, FAST) >> arrived(0, due_ns=22) << leaves
    assert scattered(SLOW, FAST) >> arrived(0, due_ns=21) << Drop(0, "deadline_unreachable")


def test_a_batch_gathers_while_three_deviations_are_left() -> None:
    assert scattered(SLOW, FAST) >> arrived(0) << SetTimer(KEY, SLO - 17 - 30)


def test_what_is_promised_is_never_less_than_the_engine_allows() -> None:
    """The last stage is booked from 22 on and takes at least 2; the stages before it scatter by much."""
    parts = ("a", "b", "c")
    workers = tuple(Worker(number, part, (part,), "k") for number, part in enumerate(parts))
    profiles = (Profile("a", "k", (1,), (11,)), Profile("b", "k", (1,), (11,)), Profile("c", "k", (4,)))
    setup = Setup((Model("m", 1, SLO, (Pipeline(parts, 1),)),), workers, profiles)
    stages = Stage(0, "a", 0, 11), Stage(1, "b", 11, 11), Stage(2, "c", 22, 4)
    assert Playbook(Ppipe(setup, PpipeOptions())) >> arrived(0, due_ns=24) << Dispatch(Batch(0, "m", (0,), stages))
    assert Playbook(Ppipe(setup, PpipeOptions())) >> arrived(0, due_ns=23) << Drop(0, "deadline_unreachable")


# Which way it goes ----------------------------------------------------------------------------------------------------


def test_the_worker_that_is_done_first_is_taken_in_each_pool() -> None:
    play = playbook(SLOW, SLOW2, FAST, FAST2) >> arrived(0, rows=4) << split(0, rows=4)
    assert play >> arrived(1, 1, rows=4) << split(1, batch=1, at_ns=1, rows=4, slow=1, fast=3)


def test_links_are_reserved_too() -> None:
    """Both go to the one fast node, whose downlink is taken from 16 to 24."""
    play = playbook(SLOW, SLOW2, FAST) >> arrived(0, rows=4) << split(0, rows=4)
    assert play >> arrived(1, rows=4) << split(1, batch=1, rows=4, slow=1, sent_ns=24)


def test_the_pipeline_that_waits_least_is_taken() -> None:
    play = playbook(SLOW, FAST, ALONE, pipelines=(SPLIT, WHOLE)) >> arrived(0, rows=4) << split(0, rows=4)
    whole = Dispatch(Batch(1, "m", (1,), (Stage(4, "whole", 1, 24),)))
    assert play >> arrived(1, 1, rows=2) << whole


def test_a_pipeline_that_is_too_slow_leaves_the_request_to_another() -> None:
    """The split one waits least and takes 17, the whole one is busy until 24 and then takes 20."""
    whole = Pipeline(("whole",), 2)
    play = playbook(SLOW, FAST, ALONE, pipelines=(whole, SPLIT)) >> arrived(0, rows=2)
    play = play << Dispatch(Batch(0, "m", (0,), (Stage(4, "whole", 0, 24),)))
    assert play >> arrived(1, 1, due_ns=18) << split(1, batch=1, at_ns=1)


def test_gaps_are_filled_if_that_is_asked_for() -> None:
    """A whole batch of one row fits on the shared worker before the second stage that is booked there from 24 on."""
    shared = Worker(2, "f0", ("b", "whole"), "fast", Device("f0", 0))
    for fills, at_ns in ((True, 2), (False, 32)):
        play = playbook(SLOW, shared, pipelines=(SPLIT, WHOLE), fill_gaps=fills) >> arrived(0, rows=4)
        play = play << split(0, rows=4) >> arrived(1, 2, due_ns=22)
        expected = (
            Dispatch(Batch(1, "m", (1,), (Stage(2, "whole", at_ns, 20),))) if fills else Drop(1, "deadline_unreachable")
        )
        assert play << expected


# What comes otherwise than planned ------------------------------------------------------------------------------------


def test_after_an_early_stage_the_next_one_is_planned_earlier() -> None:
    play = playbook(SLOW, FAST) >> arrived(0, rows=4) << split(0, rows=4)
    assert play >> finished(10) << Reroute(0, (Stage(2, "b", 18, 8, 10),))


def test_what_is_late_keeps_its_place_and_those_behind_it_wait() -> None:
    play = playbook(SLOW, SLOW2, FAST) >> arrived(0, rows=4) << split(0, rows=4)
    play = play >> arrived(1, rows=4) << split(1, batch=1, rows=4, slow=1, sent_ns=24)
    assert play >> finished(19)


def slow_tail(*workers: Worker) -> Playbook:
    """The second stage takes longer than the first: batches wait for it."""
    profiles = (PROFILES[0], Profile("b", "fast", (15, 17, 18, 19)))
    setup = Setup((Model("m", 4, SLO, (SPLIT,)),), workers, profiles, network=NETWORK)
    play = Playbook(Ppipe(setup, PpipeOptions())) >> arrived(0, rows=4)
    play = (
        play << Dispatch(Batch(0, "m", (0,), (Stage(0, "a", 0, 16), Stage(2, "b", 24, 19, 16)))) >> arrived(1, rows=4)
    )
    return play << Dispatch(Batch(1, "m", (1,), (Stage(1, "a", 0, 16), Stage(2, "b", 43, 19, 24))))


def test_what_comes_otherwise_than_planned_goes_where_it_is_done_first() -> None:
    play = slow_tail(SLOW, SLOW2, FAST) >> WorkerJoined(5, FAST2) >> finished(16)
    assert play >> finished(17, batch=1, worker=1) << Reroute(1, (Stage(3, "b", 25, 19, 17),))


def test_a_worker_that_is_done_early_begins_with_the_next_batch_early() -> None:
    """It was to begin at 43, and its input is there at 32."""
    play = slow_tail(SLOW, SLOW2, FAST) >> finished(16) >> finished(16, batch=1, worker=1)
    assert play >> finished(39, stage=1, worker=2) << Reroute(1, (Stage(2, "b", 39, 19, 24),))


def test_what_is_late_is_not_booked_again_where_it_begins_earlier_than_feared() -> None:
    """Batch 1 is booked on the last worker from 37 to 47, and batch 2 from 48 on. Batch 1 is late: it can begin at 46,
    and after a quick second stage at 39. Booked from there it would end at 49, in the time of batch 2."""
    parts = ("a", "b", "c")
    workers = tuple(
        Worker(number, f"w{number}", (part,), "k", Device(part, number)) for number, part in enumerate("aabc")
    )
    profiles = tuple(Profile(part, "k", (10,)) for part in parts)
    network = Network({"b": 6}, bytes_per_s=1e9)
    setup = Setup((Model("m", 1, SLO, (Pipeline(parts, 1),)),), workers, profiles, network=network)

    def through(batch: int, *starts_ns: int, first: int = 0) -> Dispatch:
        stages = [Stage(place, part, at, 10) for place, part, at in zip((first, 2, 3), parts, starts_ns, strict=True)]
        stages[2] = Stage(3, "c", starts_ns[2], 10, starts_ns[1] + 10)
        return Dispatch(Batch(batch, "m", (batch,), tuple(stages)))

    play = Playbook(Ppipe(setup, PpipeOptions())) >> arrived(0) << through(0, 0, 10, 26)
    play = play >> finished(10) >> arrived(1, 11) << through(1, 11, 21, 37)
    play = play >> finished(20, stage=1, worker=2) >> arrived(2, 22) << through(2, 22, 32, 48, first=1)
    play = play >> finished(30, batch=1) >> finished(32, batch=2, worker=1) >> finished(33, batch=1, stage=1, worker=2)
    assert play >> finished(34, stage=2, worker=3)


def test_a_lost_worker_is_gone_around() -> None:
    play = playbook(SLOW, FAST, FAST2) >> arrived(0, rows=4) << split(0, rows=4)
    assert play >> WorkerLost(3, 2) << Reroute(0, (Stage(3, "b", 24, 8, 16),))


def test_what_waited_for_a_lost_worker_is_looked_at_once_what_ran_there_has_failed() -> None:
    play = slow_tail(SLOW, SLOW2, FAST) >> arrived(2, 1, rows=4)
    assert play >> WorkerLost(3, 0) << SetTimer(KEY, 3)


def test_what_comes_before_the_workers_of_a_later_stage_waits_for_them() -> None:
    """They may still have work of the policy before."""
    play = playbook(SLOW) >> arrived(0, rows=4)
    assert play >> WorkerJoined(1, FAST) << split(0, at_ns=1, rows=4)


def test_a_pool_without_workers_ends_its_pipeline_until_one_joins() -> None:
    play = playbook(SLOW, FAST, ALONE, pipelines=(SPLIT, WHOLE)) >> WorkerLost(0, 2)
    play = play >> arrived(0, due_ns=25) << SetTimer(KEY, 5) >> WorkerJoined(1, FAST)
    assert play >> TimerFired(5, KEY) << split(0, at_ns=5) << CancelTimer(KEY)


def test_what_finds_all_workers_idle_leaves_at_once_however_long_its_transfers_take() -> None:
    """It was put off for ever where the sum of the transfers was longer than the last of them and its stage."""
    parts = ("a", "b", "c")
    workers = tuple(Worker(number, part, (part,), "fast", Device(part, 0)) for number, part in enumerate(parts))
    profiles = tuple(Profile(part, "fast", (1,)) for part in parts)
    network = Network({"a": 100, "b": 100}, bytes_per_s=1e9)
    setup = Setup((Model("m", 1, None, (Pipeline(parts, 1),)),), workers, profiles, network=network)
    simulation = Simulation(Engine(Ppipe(setup, PpipeOptions()), name="ppipe", strict=True))
    simulation.schedule([arrived(0, due_ns=NEVER_NS)])
    simulation.run(until_ns=10_000)
    assert simulation.engine.tally.answered == 1


def test_what_a_failed_batch_had_reserved_is_free() -> None:
    play = playbook(SLOW, FAST) >> arrived(0, rows=4) << split(0, rows=4) >> arrived(1, 1, rows=4)
    assert play >> BatchFailed(5, 0, 0, 0, "broken") << split(1, batch=1, at_ns=5, rows=4)


# In simulation --------------------------------------------------------------------------------------------------------

CLUSTER: dict[str, Any] = {
    "warmup_s": 0.5,
    "duration_s": 4,
    "workers": [
        {"count": 6, "gpu": "slow", "node": "s", "per_node": 2, "hosts": ["m.a"]},
        {"count": 2, "gpu": "fast", "node": "f", "per_node": 1, "hosts": ["m.b"]},
    ],
    "network": {"gbps": 8},
    "models": [
        {
            "name": "m",
            "slo_ms": 100,
            "pipelines": [
                {
                    "batch": 8,
                    "partitions": [
                        {"name": "m.a", "profile": {"alpha_ms": 3, "beta_ms": 8}, "output_bytes": 500_000},
                        {"name": "m.b", "profile": {"alpha_ms": 1, "beta_ms": 3}},
                    ],
                }
            ],
        }
    ],
    "arrivals": {"process": "poisson", "rate_rps": 1200},
}
"""The slow pool bears 1500/s at batches of 8, the fast one 1454/s, the links of two of its nodes 4000/s."""
PPIPE = PolicyChoice(name="ppipe")


@pytest.mark.parametrize("jitter", [None, {"cv": 0.1}])
def test_a_cluster_serves_most_of_what_its_pools_bear(jitter: dict[str, float] | None) -> None:
    scenario = Scenario.model_validate(CLUSTER | {"simulation": {"jitter": jitter}})
    total = simulate(RunSpec(scenario, PolicyChoice(name="ppipe"), seed=0)).total
    assert total.attainment > 0.99
    assert total.stranded == 0


@pytest.mark.parametrize("times", [1.4, *(pytest.param(times, marks=pytest.mark.slow) for times in (2.0, 3.0))])
def test_under_overload_goodput_stays_at_the_peak(times: float) -> None:
    """1454/s are what the fast pool bears: heads that make batches small are dropped, and no pool runs a backlog."""
    arrivals = {"process": "poisson", "rate_rps": 1454 * times}
    total = simulate(RunSpec(Scenario.model_validate(CLUSTER | {"arrivals": arrivals}), PPIPE, seed=0)).total
    assert total.goodput_rps > 0.95 * 1454


def test_reservations_beat_the_reactive_baseline_where_links_are_scarce() -> None:
    """At 90 % of what the fast nodes' links carry."""
    scenario = Scenario.model_validate(
        CLUSTER | {"network": {"gbps": 1.8}, "arrivals": {"process": "poisson", "rate_rps": 810}}
    )
    attainment = {
        name: simulate(RunSpec(scenario, PolicyChoice(name=name), seed=0)).total.attainment
        for name in ("ppipe", "reactive")
    }
    assert attainment["ppipe"] > 0.99
    assert attainment["ppipe"] > attainment["reactive"]


def test_a_change_of_plans_loses_no_request() -> None:
    """In the middle of the load the pools change their workers and the model its batch size."""
    model = Model("m", 4, SLO, (SPLIT,))
    policy = Ppipe(Setup((model,), (SLOW, FAST), PROFILES, network=NETWORK), PpipeOptions())
    engine = Engine(policy, name="ppipe", strict=True)
    simulation = Simulation(engine)
    other = Model("m", 2, SLO, (Pipeline(("a", "b"), 2), WHOLE))
    moved = Worker(9, "moved", ("a",), "slow", Device("s9", 0))
    simulation.schedule([arrived(number, 7 * number) for number in range(200)])
    simulation.schedule([TopologyChanged(700, (other,), (moved, FAST, ALONE), PROFILES, NETWORK)])
    simulation.run()
    assert engine.tally.ended == engine.tally.accepted == 200
    assert engine.tally.failed == 0
    assert engine.tally.late == 0
    assert engine.tally.answered > 190
