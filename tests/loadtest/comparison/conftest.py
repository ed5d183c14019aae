"""Comparisons with goodputs of our choice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_loadtest.comparison.runs import Comparison
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.live import LiveObservations, SendingOptions
from tidegate_loadtest.result import RunResult
from tidegate_loadtest.scenario_run import LiveResult, LiveRun

SCENARIO = Scenario.model_validate(
    {
        "warmup_s": 0.1,
        "duration_s": 0.5,
        "workers": [{"count": 2}],
        "models": [{"name": "m", "slo_ms": 50, "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 8}}],
        "arrivals": {"rate_rps": 100},
        "policies": [{"name": "fifs"}],
    }
)


def live_result(
    target: Target, seed: int, goodput_rps: float, attainment: float, status: Sequence[str], lateness_ms: float
) -> LiveResult:
    choice = PolicyChoice(name=target.name)
    simulated = simulate(RunSpec(SCENARIO, SCENARIO.policies[0], seed, gantt_s=0.001))
    total = replace(
        simulated.total,
        policy=target.name,
        goodput_rps=goodput_rps,
        attainment=attainment,
        lateness_p99_ms=lateness_ms,
        failed=sum(one not in ("OK", "timeout") for one in status),
    )
    at_ns = np.arange(len(status), dtype=np.int64) * 1_000_000
    issued_ns = at_ns + round(lateness_ms * 1e6)
    messages = {one: f"said of {one}" for one in status if one != "OK"}
    run = RunResult(500_000_000, 0, at_ns, issued_ns, at_ns + 9_000_000, np.array(status), messages)
    what = LiveRun(SCENARIO, choice, seed, SendingOptions({}), target.address)
    rows = [total, *(replace(row, policy=target.name) for row in simulated.rows[1:])]
    return LiveResult(what, replace(simulated, rows=rows), LiveObservations(run, 0, {}))


def make_comparison(
    goodputs: Mapping[str, Sequence[float]],
    *,
    rounds: int | None = None,
    stopped: str | None = None,
    status: Mapping[str, Sequence[str]] | None = None,
    lateness_ms: Mapping[str, float] | None = None,
    attainment: Callable[[float], float] = lambda goodput: goodput / 1000,
) -> Comparison:
    """Make a comparison of the goodputs of each target, round by round: `{"direct": [100, 110], ...}`."""
    targets = [Target(name, f"localhost:{8001 + number}") for number, name in enumerate(goodputs)]
    lives = [
        live_result(
            target,
            seed,
            goodputs[target.name][seed],
            attainment(goodputs[target.name][seed]),
            (status or {}).get(target.name, ["OK"] * 10),
            (lateness_ms or {}).get(target.name, 0.5),
        )
        for seed in range(max(map(len, goodputs.values())))
        for target in targets
        if seed < len(goodputs[target.name])
    ]
    seeds = range(rounds or max(map(len, goodputs.values())))
    return Comparison(SCENARIO, targets, list(seeds), lives, stopped)
