"""Quick models beside slow ones: batches that last long leave room for requests with little time."""

from dataclasses import replace
from math import ceil, factorial, floor
from typing import Any

import pytest

from tests.examples import few
from tidegate.api import Profile, ms_to_ns
from tidegate.sim.result import RunResult
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_symphony.latency_bounds import LatencyBounds, QueueOutlook
from tidegate_symphony.natural_batching import ArrivalEstimate
from tidegate_symphony.worker_headroom import (
    MAX_BLOCKING_PROBABILITY,
    OVERLOAD_FACTOR,
    WorkerHeadroom,
    rooms_for,
)

SLOW, QUICK = (6.0, 24.0, 180.0), (1.0, 2.0, 22.0)
"""(alpha, beta, SLO) in ms."""
ALONE = 1.0
"""A cycle so short that each request runs by itself, in ns."""


def arriving(model: tuple[float, float, float], rate_rps: float, *, rows: int = 1) -> ArrivalEstimate:
    alpha_ms, beta_ms, slo_ms = model
    profile = Profile.linear("m", alpha_ms=alpha_ms, beta_ms=beta_ms, max_rows=32)
    outlook = QueueOutlook(LatencyBounds.of(profile, 0.99), 4, profile.fixed_cost_ns, 32, ms_to_ns(slo_ms))
    return ArrivalEstimate(outlook, rows * rate_rps / 1e9, rows)


def test_requests_with_little_time_are_left_the_workers_that_their_load_needs() -> None:
    """150/s of 3 ms and a wait of 19 ms ask for 0.3 of a worker: one, and one more."""
    assert rooms_for([arriving(SLOW, 150), arriving(QUICK, 150)], 4, ALONE) == (WorkerHeadroom(ms_to_ns(19), 2),)
    assert rooms_for([arriving(SLOW, 150), arriving(QUICK, 150)], 3, ALONE) == (WorkerHeadroom(ms_to_ns(19), 1),), (
        "half at most"
    )


@pytest.mark.parametrize(
    "kinds",
    [
        [arriving(SLOW, 2), arriving(QUICK, 150)],
        [arriving(SLOW, 150), arriving(SLOW, 150)],
        [arriving(QUICK, 150), arriving(QUICK, 150)],
        [arriving(SLOW, 150), arriving(QUICK, 0)],
    ],
    ids=["a light load", "both slow", "both quick", "the quick do not come"],
)
def test_nothing_is_left_where_enough_workers_are_free_anyway(kinds: list[ArrivalEstimate]) -> None:
    assert rooms_for(kinds, 4, ALONE) == ()


def test_overloaded_workers_leave_nothing() -> None:
    kinds = [arriving(SLOW, 600), arriving(QUICK, 150)]
    asked = sum(kind.asked_in_cycles_of(kind.outlook.slo_ns or 0) for kind in kinds)
    assert rooms_for(kinds, ceil(asked / OVERLOAD_FACTOR), None), "as many workers as are enough but for what is unsure"
    assert not rooms_for(kinds, floor(asked / OVERLOAD_FACTOR), None)
    assert rooms_for(kinds, floor(asked / OVERLOAD_FACTOR), ALONE), "the load is sustained, as the cycle shows"


def test_rows_count_rather_than_requests() -> None:
    """A request of eight rows takes 10 ms alone, and so leaves 12 ms to wait."""
    (room,) = rooms_for([arriving(SLOW, 150), arriving(QUICK, 100, rows=8)], 8, ALONE)
    assert room.wait_ns == ms_to_ns(12)
    assert room.workers == 3


@pytest.mark.parametrize(
    ("cycle_ns", "workers"), [(ALONE, 14), (3e8, 10), (None, 8)], ids=["alone", "merged", "as late as may be"]
)
def test_many_kinds_are_left_what_sums_over_all_others_say(cycle_ns: float | None, workers: int) -> None:
    """Each kind is judged by the batches of all others, whether these have SLOs or not."""
    kinds = [
        arriving((0.5 + index % 7, 2.0 + 3 * (index % 11), 12.0 + 17 * (index % 13)), 5 + index % 5)
        for index in range(60)
    ]
    kinds += [
        replace(kind, outlook=replace(kind.outlook, slo_ns=None), rows_per_ns=kind.rows_per_ns / 9)
        for kind in kinds[::8]
    ]

    def blocked(kind: ArrivalEstimate, wait_ns: int) -> float:
        others = [(each, each.outlook.slo_ns or wait_ns) for each in kinds if each is not kind]
        return sum(each.blocked_in_cycles_of(cycle_ns or slo_ns, wait_ns) for each, slo_ns in others)

    waits = [(kind.outlook.slo_ns - kind.outlook.profile.upper_ns(1), kind) for kind in kinds if kind.outlook.slo_ns]
    judged = sorted(((wait_ns, kind) for wait_ns, kind in waits if wait_ns > 0), key=lambda entry: entry[0])
    left = [wait_ns for wait_ns, kind in judged if erlang_b(workers, blocked(kind, wait_ns)) > MAX_BLOCKING_PROBABILITY]
    assert [room.wait_ns for room in rooms_for(kinds, workers, cycle_ns)] == left
    assert 0 < len(left) < len(judged)


def erlang_b(workers: int, offered: float) -> float:
    """By its definition: the share of arrivals that find all workers busy."""
    terms = [offered**number / factorial(number) for number in range(workers + 1)]
    return terms[-1] / sum(terms)


def test_to_judge_a_kind_among_many_takes_no_look_at_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = ArrivalEstimate.rows_in

    def counted(kind: ArrivalEstimate, cycle_ns: float) -> int:
        nonlocal looks
        looks += 1
        return real(kind, cycle_ns)

    monkeypatch.setattr(ArrivalEstimate, "rows_in", counted)
    kinds = [arriving(model, 150) for model in (SLOW, QUICK) for _ in range(500)]
    assert rooms_for(kinds, 600, ALONE)
    assert looks <= 8 * len(kinds)


def scenario(*models: tuple[float, float, float], workers: int, rate_rps: float, **more: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "warmup_s": 1,
            "duration_s": 5,
            "workers": [{"count": workers}],
            "models": [
                {
                    "name": f"m{number}",
                    "slo_ms": slo_ms,
                    "profile": {"alpha_ms": alpha_ms, "beta_ms": beta_ms, "max_batch": 64},
                }
                for number, (alpha_ms, beta_ms, slo_ms) in enumerate(models)
            ],
            "arrivals": {"process": "poisson", "rate_rps": rate_rps},
            **more,
        }
    )


def run(of: Scenario, policy: str, **options: str) -> RunResult:
    return simulate(RunSpec(of, PolicyChoice(name=policy, options=options), seed=4))


MIXES = [
    scenario(SLOW, QUICK, SLOW, QUICK, workers=4, rate_rps=480),
    scenario(SLOW, QUICK, QUICK, QUICK, workers=4, rate_rps=700),
    scenario((9, 55, 380), (3, 11, 75), (0.5, 1.5, 16), workers=6, rate_rps=550),
    scenario((4, 15, 100), (0.5, 2, 11), workers=3, rate_rps=400),
    scenario(SLOW, QUICK, workers=2, rate_rps=150),
]


@pytest.mark.parametrize(
    "of", few(MIXES, ids=["two of each", "three quick", "three tiers", "three workers", "two workers"])
)
def test_no_model_loses_more_than_under_the_paper_or_simple_policies(of: Scenario) -> None:
    simple = [run(of, name) for name in ("eager", "nexus", "triton")] + [run(of, "symphony", deferral="frontrun")]
    best = min(result.total.worst_bad_rate for result in simple)
    assert run(of, "symphony").total.worst_bad_rate <= best + 0.01
