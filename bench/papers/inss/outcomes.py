"""Violations on the MPS shares that a planner chose, simulated with interference."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.papers.inss.workloads import interference_of, measured, problem_of, rates_of
from tidegate.api import PlanningError
from tidegate.host import Plugins
from tidegate.schemas import InterferenceModel, Layout, Sensitivity
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_inss.layout import layout_of
from tidegate_inss.plan import SharePlan
from tidegate_inss.problem import ShareProblem

TIME_LIMIT_S = 0.2
WITHOUT_INTERFERENCE = "-ni"
"""Suffix of a planner that ignores interference, unless a planner of that name is installed."""


@dataclass(frozen=True)
class Load:
    """A mix of models with its rates and a factor on them."""

    folder: Path
    names: tuple[str, ...]
    gpus: int
    seed: int
    scale: float


@dataclass(frozen=True)
class Way:
    """A planner and the factor on the rates given to it."""

    planner: str
    rate_factor: float = 1.0
    """Factor on the rates given to the planner."""
    policy: str = "symphony"

    @property
    def title(self) -> str:
        """Title in tables."""
        return self.planner if self.rate_factor == 1 else f"{self.planner}, rates x{self.rate_factor:g}"


@dataclass(frozen=True)
class Outcome:
    """Simulated and predicted figures of a plan."""

    late: float
    """Share of requests late or dropped, all requests of models without a share included."""
    worst: float
    """The same share for the worst model."""
    goodput_rps: float
    most_rps: float
    """Throughput as in the paper: predicted requests/s with full batches, summed over models."""
    gpus_used: float
    missing: int
    """Number of models without enough shares, as the planner reports."""
    decided_s: float
    """CPU time of the decision in seconds."""


NOTHING = Outcome(1.0, 1.0, 0.0, 0.0, 0.0, 0, 0.0)


def problem_for(load: Load, rate_factor: float = 1.0) -> ShareProblem:
    """Return the planner's problem for a load; `rate_factor`: factor on its rates."""
    base = measured(load.folder)
    return problem_of(
        load.names, base, _rates(load.folder, load.names, load.gpus, load.seed), load.gpus, load.scale * rate_factor
    )


@cache
def _rates(folder: Path, names: tuple[str, ...], gpus: int, seed: int) -> Mapping[str, float]:
    return rates_of(names, measured(folder), gpus, seed)


@cache
def _truth(folder: Path, names: tuple[str, ...]) -> InterferenceModel:
    return interference_of(names, measured(folder))


def plan(load: Load, way: Way) -> tuple[SharePlan, float]:
    """Return the plan and its CPU time in seconds. Raises PlanningError."""
    problem = problem_for(load, way.rate_factor)
    name = way.planner
    if name.endswith(WITHOUT_INTERFERENCE) and name not in _plugins().planners:
        name = name.removesuffix(WITHOUT_INTERFERENCE)
        problem = problem.model_copy(update={"interference": _deaf(problem.measured)})
    planner = _plugins().planner(name)
    began = time.process_time()

    def progress(*, objective: float | None = None, bound: float | None = None) -> float:
        # Of processor time, so that what else runs on the machine changes no plan.
        del objective, bound
        return time.process_time() - began

    found = planner.run(problem, time_limit_s=TIME_LIMIT_S, progress=progress)
    assert isinstance(found, SharePlan), "these are planners of shares"
    return found, time.process_time() - began


def outcome(load: Load, way: Way, seconds: float) -> Outcome:
    """Plan a load and simulate it with Poisson arrivals for `seconds`."""
    try:
        found, decided_s = plan(load, way)
    except PlanningError:
        return NOTHING
    problem = problem_for(load)
    rates = {model.name: model.rate_rps for model in problem.models}
    placed = {share.model for gpu in found.gpus for share in gpu.shares}
    scenario = scenario_of(load, _served(problem, found, placed), seconds, rates)
    result = simulate(RunSpec(scenario, PolicyChoice(name=way.policy), load.seed))
    bad = dict.fromkeys(rates, 1.0) | {row.model: row.bad_rate for row in result.rows[1:]}
    total = sum(rates.values())
    late = sum(bad[name] * rates[name] for name in rates) / total
    return Outcome(
        late=late,
        worst=max(bad.values()),
        goodput_rps=result.rows[0].goodput_rps,
        most_rps=found.throughput_rps,
        gpus_used=found.gpus_used,
        missing=sum(1 for model in found.models if model.missing),
        decided_s=decided_s,
    )


def scenario_of(load: Load, layout: Layout, seconds: float, rates: Mapping[str, float]) -> Scenario:
    """Return a scenario with Poisson arrivals on a layout, with interference between neighbors.

    `load`: the load; `layout`: the planner's layout; `seconds`: measured window; `rates`: requests per second by model.
    """
    served = [model.name for model in layout.models]
    return Scenario.model_validate(
        {
            "warmup_s": 0.5,
            "duration_s": seconds,
            "layout": layout,
            "models": [{"name": name, "weight": rates[name]} for name in served],
            "arrivals": {"rate_rps": sum(rates[name] for name in served)},
            "simulation": {"interference": _truth(load.folder, load.names)},
        }
    )


def largest_scale(load: Load, way: Way, seconds: float, limit: float, precision: float) -> float:
    """Return the largest factor on the rates at which the share of late requests is at most `limit`.

    `load`: the load; `way`: the planner, run for each factor; `seconds`: simulated time of each run; `limit`: share of
    late requests; `precision`: of the factor.
    """
    good, bad = 0.0, 1.4
    while bad - good > precision:
        middle = (good + bad) / 2
        tried = Load(load.folder, load.names, load.gpus, load.seed, middle)
        if outcome(tried, way, seconds).late <= limit:
            good = middle
        else:
            bad = middle
    return good


def _served(problem: ShareProblem, found: SharePlan, placed: set[str]) -> Layout:
    """The layout of those models that have a share."""
    models = tuple(model for model in problem.models if model.name in placed)
    return layout_of(problem.model_copy(update={"models": models}), found)


def _deaf(model: InterferenceModel) -> InterferenceModel:
    none = {"sensitivity": Sensitivity()}
    models = {name: each.model_copy(update=none) for name, each in model.models.items()}
    return InterferenceModel(gpu=model.gpu, models=models)


@cache
def _plugins() -> Plugins:
    return Plugins.installed()


def known(planners: Sequence[str]) -> list[str]:
    """Return the planners of the list that are installed."""
    offered = _plugins().planners
    return [name for name in planners if name.removesuffix(WITHOUT_INTERFERENCE) in offered]
