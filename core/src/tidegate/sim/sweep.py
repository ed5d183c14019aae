"""Sweeps: simulations over a grid of changes to a scenario."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tidegate.host import Plugins
from tidegate.sim.run import RunSpec, choose_policies
from tidegate.workload import ScenarioError, read_scenario
from tidegate.workload.scenario_file import parse_value

Grid = dict[str, list[Any]]
"""Values of each changed field by its path, such as `arrivals.rate_rps`; `*` in a path: every entry of a list."""


def parse_grid(texts: Sequence[str]) -> Grid:
    """Parse `PATH=V1,V2,...` into a grid of YAML values. Raises ScenarioError."""
    grid: Grid = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not (field and equals and values) or field in grid:
            raise ScenarioError(f"--set {text!r}: give PATH=V1,V2,..., each path once")
        grid[field] = parse_value(f"[{values}]")
    return grid


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Parse `PATH=VALUE` texts into one value for each path. Raises ScenarioError."""
    grid = parse_grid(texts)
    for field, values in grid.items():
        if len(values) != 1:
            raise ScenarioError(f"--set {field}: give one value; `tidegate sweep` tries several")
    return {field: value for field, (value,) in grid.items()}


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
