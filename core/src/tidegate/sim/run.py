"""One simulated run (a scenario, a policy, a seed), and sweeps: runs over a grid of changes to a scenario."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import floor
from pathlib import Path
from typing import Any

from tidegate.control import Controller
from tidegate.control.capacity import gpus_of
from tidegate.host import PluginError, Plugins
from tidegate.observation import Observer
from tidegate.sim.build import setup_of, simulation_of
from tidegate.sim.policy_frames import policy_frame
from tidegate.sim.record import RunRecord
from tidegate.sim.result import RunResult, summarize
from tidegate.workload import (
    PolicyChoice,
    RequestSequence,
    Scenario,
    ScenarioError,
    draw_requests,
    layout_of,
    mean_rate_rps,
    read_scenario,
)
from tidegate.workload.arrivals import NS_PER_S
from tidegate.workload.scenario_file import parse_value


class SimulationError(Exception):
    """Error: a run had no result; the message names policy, seed and cause."""


@dataclass(frozen=True)
class RunSpec:
    """Specification of a simulation; can be pickled for another process."""

    scenario: Scenario
    policy: PolicyChoice
    seed: int
    load: float = 1.0
    """Factor on the arrival rate."""
    bad_limit: float | None = None
    """Miss rate of a model above which the run stops as soon as it is certain; None: never."""
    gantt_s: float = 0.0
    """Seconds of the window whose requests and stages are kept individually for charts, with chart data; 0: none."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the scenario that a sweep changed, with their values, for labels."""


def simulate(
    run: RunSpec,
    *,
    plugins: Plugins | None = None,
    observers: Sequence[Observer] = (),
    requests: RequestSequence | None = None,
) -> RunResult:
    """Run a simulation: warm-up and window, then until every request has ended.

    `plugins`: source of policies and controllers; None: what is installed. `observers`: of the engine. `requests`:
    arrivals to use; None: drawn from the scenario. Raises PluginError (unknown policy or controller, invalid options),
    TraceError, and SimulationError (the policy failed).
    """
    scenario, choice = run.scenario, run.policy
    setup = setup_of(scenario, run.seed)
    plugins = plugins or _installed()
    policy = plugins.make_policy(choice.name, setup, choice.options)
    if requests is None:
        requests = draw_requests(scenario, run.seed, run.load)
    warmup_ns = round(scenario.warmup_s * NS_PER_S)
    record = RunRecord(requests, measured_from_ns=warmup_ns, limits=_limits(requests, warmup_ns, run.bad_limit))
    simulation = simulation_of(
        scenario,
        policy,
        requests,
        record,
        name=choice.name,
        seed=run.seed,
        observers=observers,
        controller=_controller_of(run, plugins),
        plugins=plugins,
    )
    try:
        simulation.run()
    except Exception as error:  # a policy may raise anything
        why = f"{type(error).__name__}: {error}{policy_frame(error, type(policy))}"
        raise SimulationError(
            f"policy {choice.title!r}, seed {run.seed}, at {simulation.engine.now_ns} ns: {why}"
        ) from error
    return summarize(
        record,
        requests,
        setup,
        policy=choice.title,
        seed=run.seed,
        rate_rps=mean_rate_rps(scenario, run.load),
        warmup_s=scenario.warmup_s,
        duration_s=scenario.duration_s,
        gantt_s=run.gantt_s,
        gpus=gpus_of(layout_of(scenario)),
    )


def _controller_of(run: RunSpec, plugins: Plugins) -> Controller | None:
    """The controller that the scenario names. Raises PluginError."""
    chosen = run.scenario.controller
    if chosen is None:
        return None
    layout = layout_of(run.scenario)
    return plugins.make_controller(chosen, layout, seed=run.seed)


@lru_cache(maxsize=1)
def _installed() -> Plugins:
    return Plugins.installed()


def _limits(requests: RequestSequence, warmup_ns: int, bad_limit: float | None) -> dict[int, int] | None:
    """How many requests of each model may go wrong."""
    if bad_limit is None:
        return None
    measured = Counter(model for model, at_ns in zip(requests.model, requests.at_ns, strict=True) if at_ns >= warmup_ns)
    return {model: floor(bad_limit * measured[model] + 1e-9) for model in range(len(requests.models))}


def choose_policies(scenario: Scenario, names: Sequence[str], plugins: Plugins | None = None) -> list[PolicyChoice]:
    """Return the scenario's policies, or those with the given labels or names; unlisted ones with default options.

    Raises PluginError for a policy that is not installed, or if there is none to run.
    """
    listed = scenario.policies
    chosen = list(listed) if not names else []
    for name in names:
        own = [choice for choice in listed if choice.title == name] or [c for c in listed if c.name == name]
        chosen += own or [PolicyChoice(name=name)]
    if not chosen:
        raise PluginError("the scenario lists no policies: list some, or name one with --policy")
    for choice in chosen:
        (plugins or _installed()).policy(choice.name)
    return chosen


Grid = dict[str, list[Any]]
"""Values of each changed field by its path, such as `arrivals.rate_rps`; `*` in a path: every entry of a list."""


def parse_grid(texts: Sequence[str]) -> Grid:
    """Parse `PATH=V1,V2,...` into a grid of YAML values. Raises ScenarioError."""
    grid: Grid = {}
    for text in texts:
        path, equals, values = text.partition("=")
        if not (path and equals and values) or path in grid:
            raise ScenarioError(f"--set {text!r}: give PATH=V1,V2,..., each path once")
        grid[path] = parse_value(f"[{values}]")
    return grid


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Parse `PATH=VALUE` texts into one value for each path. Raises ScenarioError."""
    grid = parse_grid(texts)
    for path, values in grid.items():
        if len(values) != 1:
            raise ScenarioError(f"--set {path}: give one value; `tidegate sweep` tries several")
    return {path: value for path, (value,) in grid.items()}


def sweep_runs(
    path: Path,
    grid: Grid,
    *,
    policies: Sequence[str] = (),
    seeds: Sequence[int] = (),
    plugins: Plugins | None = None,
) -> list[RunSpec]:
    """Return one run for every combination of values, policy and seed, in that order.

    `path`: scenario file. `policies`: names or labels; empty: those of the scenario. `seeds`: empty: the scenario's
    own. All combinations are checked before any of them runs. Raises ScenarioError, PluginError.
    """
    runs = []
    for values in product(*grid.values()):
        changes = dict(zip(grid, values, strict=True))
        scenario = read_scenario(path, changes)
        for policy in choose_policies(scenario, policies, plugins):
            runs += [RunSpec(scenario, policy, seed, changes=changes) for seed in seeds or [scenario.seed]]
    return runs
