"""Contenders of the regret benchmark, and their figures for one workload."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.no_regret.workloads import beside, draw_workload, scenario_of
from tidegate.schemas import tuned_settings
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_proxy.configuration.config import PolicyChoice as ServedPolicy

DEFAULT = "tidegate"
"""Label of the default policy of `tidegate serve`."""
AUTO = "auto"
"""The default policy with a tuner: a contender only where scenarios begin with time to learn."""
TRITON = "triton"
"""Name of the policy that simulates Triton's batcher."""
AWAY = "away "
"""Prefix of the labels of Triton's settings that run as policies of Tidegate, with its network latency."""
SEED = 1
"""Seed of the arrivals, the same for every contender."""


@dataclass(frozen=True)
class Task:
    """One workload of a sample. Picklable."""

    seed: int
    number: int
    requests: int
    known: frozenset[str] = frozenset()
    """Contenders with figures of an earlier run."""
    tight: bool = False
    near: bool = False
    learning_s: float = 0.0
    """Time in s before the measured window in which `auto` learns; 0: `auto` does not take part."""


def contenders(scenario: Scenario, *, auto: bool = False) -> list[PolicyChoice]:
    """Return the default policy, Triton's batcher with each of the tuned settings, and the other policies.

    `auto`: whether `auto` is one of them.

    With network latency, each setting of Triton's batcher comes twice: without that latency, and as a policy of
    Tidegate.
    """
    settings = triton_choices({model.name: model.slo_ms or 0.0 for model in scenario.models})
    is_away = any(pool.network for pool in scenario.workers)
    return [
        PolicyChoice(name=ServedPolicy().name, label=DEFAULT),
        *([PolicyChoice(name=AUTO)] if auto else []),
        *settings,
        *(choice.model_copy(update={"label": AWAY + choice.title}) for choice in settings if is_away),
        PolicyChoice(name="fifs"),
        PolicyChoice(name="eager"),
        PolicyChoice(name="eager", label="eager window", options={"batch_formation": "skip_head"}),
        PolicyChoice(name="symphony", label="frontrun", options={"deferral": "frontrun"}),
        PolicyChoice(name="nexus"),
        PolicyChoice(name="shepherd"),
        PolicyChoice(name="orloj"),
    ]


def triton_choices(slos_ms: Mapping[str, float]) -> list[PolicyChoice]:
    """Return Triton's batcher with queue delays and queue timeouts for SLOs in ms by model, `dynamic_batching {}`
    first.
    """
    return [
        PolicyChoice(name=TRITON, label=f"{TRITON} {label}", options=options)
        for label, options in tuned_settings(slos_ms).items()
    ]


def measure(task: Task) -> dict[str, Any]:
    """Simulate one workload under every contender; return their attainment and median latency."""
    workload = draw_workload(task.seed, task.number, tight=task.tight, near=task.near)
    scenario = scenario_of(workload, task.seed, task.requests, task.learning_s)
    near = scenario_of(beside(workload), task.seed, task.requests, task.learning_s)
    figures = {}
    for choice in contenders(scenario, auto=task.learning_s > 0):
        if choice.title in task.known and choice.title != DEFAULT:
            continue
        total = simulate(RunSpec(near if choice.title.startswith(TRITON) else scenario, choice, SEED)).total
        figures[choice.title] = {
            "attainment": total.attainment,
            "worst": 1 - total.worst_bad_rate,
            "p50_ms": total.p50_ms,
            "late": total.late,
            "dropped": sum(total.dropped.values()),
            "requests": total.accepted,
        }
    return {**workload.facts, "figures": figures}


def verdict(row: dict[str, Any], policy: str = DEFAULT) -> dict[str, Any]:
    """Return a policy's gain over other contenders, in points of attainment of all requests and the worst model.

    `row`: from `measure`; `policy`: its label.
    """
    figures = row["figures"]
    ours = figures[policy]
    tritons = {name: figure["attainment"] for name, figure in figures.items() if name.startswith(TRITON)}
    others = {name: figure["attainment"] for name, figure in figures.items() if name not in (DEFAULT, AUTO)}
    best_triton, best = max(tritons, key=lambda name: tritons[name]), max(others, key=lambda name: others[name])
    plain_ms = next(figures[name]["p50_ms"] for name in figures if name.startswith(TRITON))
    return {
        "over_triton": 100 * (ours["attainment"] - tritons[best_triton]),
        "best_triton": best_triton,
        "over_best": 100 * (ours["attainment"] - others[best]),
        "best": best,
        "worst_over_best": 100 * (ours["worst"] - max(figures[name]["worst"] for name in others)),
        "median_ratio": ours["p50_ms"] / plain_ms if ours["p50_ms"] and plain_ms else None,
    }
