"""Who is compared, and the figures of one workload."""

from dataclasses import dataclass
from typing import Any

from bench.no_regret.workloads import beside, draw_workload, scenario_of
from tidegate.sim.run import Run, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_proxy.configuration.config import PolicyChoice as ServedPolicy

DEFAULT = "tidegate"
"""The policy of `tidegate serve` as it comes."""
TRITON = "triton"
DELAYS = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Of Triton's batcher, as shares of the median SLO: 0 is `dynamic_batching {}`."""
SEED = 1
"""Of the arrivals: the same for every contender, so that luck divides out."""


@dataclass(frozen=True)
class Task:
    """One workload of a sample. Pickles."""

    seed: int
    number: int
    requests: int
    only_default: bool = False
    tight: bool = False
    away: bool = False


def contenders(scenario: Scenario) -> list[PolicyChoice]:
    """The default, Triton's batcher with each delay, and the simple policies."""
    slos = sorted(model.slo_ms or 0.0 for model in scenario.models)
    median_ms = slos[len(slos) // 2]
    return [
        PolicyChoice(name=ServedPolicy().name, label=DEFAULT),
        *(
            PolicyChoice(
                name="triton", label=f"{TRITON} {share:.0%}", options={"max_queue_delay_ms": share * median_ms}
            )
            for share in DELAYS
        ),
        PolicyChoice(name="fifs"),
        PolicyChoice(name="eager"),
        PolicyChoice(name="eager", label="eager window", options={"gathering": "window"}),
    ]


def measure(task: Task) -> dict[str, Any]:
    """The attainment and the median latency of every contender under one workload."""
    workload = draw_workload(task.seed, task.number, tight=task.tight, away=task.away)
    scenario = scenario_of(workload, task.seed, task.requests)
    near = scenario_of(beside(workload), task.seed, task.requests)
    figures = {}
    for choice in contenders(scenario):
        if task.only_default and choice.title != DEFAULT:
            continue
        total = simulate(Run(near if choice.name == TRITON else scenario, choice, SEED)).total
        figures[choice.title] = {
            "attainment": total.attainment,
            "p50_ms": total.p50_ms,
            "late": total.late,
            "dropped": sum(total.dropped.values()),
            "requests": total.accepted,
        }
    return {**workload.facts, "figures": figures}


def verdict(row: dict[str, Any]) -> dict[str, Any]:
    """What one workload says of the default: points of attainment over others, and the ratio of medians."""
    figures = row["figures"]
    ours = figures[DEFAULT]
    tritons = {name: figure["attainment"] for name, figure in figures.items() if name.startswith(TRITON)}
    others = {name: figure["attainment"] for name, figure in figures.items() if name != DEFAULT}
    best_triton, best = max(tritons, key=lambda name: tritons[name]), max(others, key=lambda name: others[name])
    plain_ms = figures[f"{TRITON} 0%"]["p50_ms"]
    return {
        "over_triton": 100 * (ours["attainment"] - tritons[best_triton]),
        "best_triton": best_triton,
        "over_best": 100 * (ours["attainment"] - others[best]),
        "best": best,
        "median_ratio": ours["p50_ms"] / plain_ms if ours["p50_ms"] and plain_ms else None,
    }
