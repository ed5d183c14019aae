"""Sentences at the top of a report: the conclusions from its figures, most important first."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tidegate.api import Profile
from tidegate.report import number_format
from tidegate.report.number_format import listed, plural, rate, share
from tidegate.sim.build import setup_of, with_shapes
from tidegate.sim.goodput import Goodput
from tidegate.sim.result import RunResult
from tidegate.workload import Scenario

MAX_OTHERS = 9
"""Maximum number of further policies that are named after the best one."""
MAX_NAMED_SETTINGS = 3
"""Maximum number of settings of a sweep that a sentence names if it holds for all."""


@dataclass(frozen=True)
class PolicyStanding:
    """Summary of a policy's results over the seeds."""

    policy: str
    attainment: float
    """Mean attainment over the seeds."""
    least: float
    most: float
    seeds: int
    offered_rps: float
    worst_model: str
    worst_attainment: float


def standings(results: Sequence[RunResult]) -> list[PolicyStanding]:
    """Return the policies' summaries, best first."""
    found = []
    for policy, own in by_policy(results).items():
        attained = [result.total.attainment for result in own]
        of_model: dict[str, list[float]] = {}
        for result in own:
            for row in result.rows[1:]:
                if row.accepted:
                    of_model.setdefault(row.model, []).append(row.attainment)
        means = {model: fmean(values) for model, values in of_model.items()} or {"": 1.0}
        worst = min(means, key=lambda model: means[model])
        offered = fmean(result.total.offered_rps for result in own)
        found.append(
            PolicyStanding(
                policy, fmean(attained), min(attained), max(attained), len(own), offered, worst, means[worst]
            )
        )
    return sorted(found, key=lambda each: -each.attainment)


def simulate_verdicts(scenario: Scenario, results: Sequence[RunResult], *, workers: int | None) -> list[str]:
    """Return sentences on a simulation or live run. `workers`: their number; None: unknown, those of the server."""
    best, *others = standings(results)
    promised = any(slo_ms is not None for slo_ms in scenario.slos_ms.values())
    kept = "within their SLOs" if promised else "answered (no model has an SLO)"
    where = "" if workers is None else f" on {plural(workers, 'worker')}"
    first = f"{best.policy} keeps {share(best.attainment)} of {rate(best.offered_rps)} requests/s {kept}{where}"
    if share(best.least) != share(best.most):
        first += f" ({share(best.least)} to {share(best.most)} by seed)"
    if len(scenario.request_names) > 1 and best.worst_attainment < 1:
        first += f"; {best.worst_model} is the worst, {share(best.worst_attainment)}"
    said = [f"{first}."]
    if others:
        named = [f"{each.policy} {share(each.attainment)}" for each in others[:MAX_OTHERS]]
        left = len(others) - len(named)
        said.append(f"Then {listed([*named, f'{left} more'] if left else named)}.")
    return said if workers is None else said + impossible_slos(scenario)


def impossible_slos(scenario: Scenario, profiles: Iterable[Profile] | None = None) -> list[str]:
    """Return a sentence for each model whose SLO is shorter than one row takes on its fastest worker.

    `profiles`: those of the GPUs that could be used, without those of shapes; None: of the scenario's workers.
    """
    setup = setup_of(scenario, scenario.seed)
    fastest: dict[str, int] = {}
    for profile in setup.profiles if profiles is None else with_shapes(scenario, profiles, known_to_policy=True):
        fastest[profile.partition] = min(profile.expected_ns(1), fastest.get(profile.partition, sys.maxsize))
    return [
        f"The SLO of {model.name}, {model.slo_ns / 1e6:g} ms, is shorter than one row takes by its profile, "
        f"{fastest[model.name] / 1e6:.3g} ms."
        for model in setup.models
        if model.slo_ns is not None and model.slo_ns < fastest.get(model.name, 0)
    ]


def goodput_verdicts(goodputs: Sequence[Goodput], limit: float) -> list[str]:
    """Return sentences on a goodput search: the best policy, and its ratio to the others.

    `limit`: maximum miss rate.
    """
    best, *others = sorted(goodputs, key=lambda each: -each.median_rps)
    kept = f"at most {number_format.limit(limit)} of every model's requests late, dropped or failed"
    if not best.median_rps:
        return [f"No policy carries any rate that was tried with {kept}."]
    spread = f" ({rate(best.min_rps)} to {rate(best.max_rps)} by seed)" if best.min_rps < best.max_rps else ""
    least = "" if all(search.bounded for search in best.searches) else "at least "
    said = [f"{best.policy} carries {least}{rate(best.median_rps)} requests/s with {kept}{spread}."]
    if others:
        named = [
            f"{each.policy} {rate(each.median_rps)}" + (f" ({share(each.median_rps / best.median_rps)} of that)")
            for each in others[:MAX_OTHERS]
        ]
        left = len(others) - len(named)
        said.append(f"Then {listed([*named, f'{left} more'] if left else named)}.")
    return said


def sweep_verdicts(field: str, lines: Mapping[str, Mapping[str, Sequence[float]]], limit: float) -> list[str]:
    """Return sentences on a sweep: for each line, the values of the field at which the worst model meets the limit.

    `lines`: by line and value the miss rates of the worst model, one for each seed. `limit`: maximum miss rate.
    """
    alike: dict[str, list[str]] = {}
    for name, points in lines.items():
        kept = [value for value, rates in points.items() if fmean(rates) <= limit]
        every = f"all values of {field}" if kept else f"no value of {field}"
        alike.setdefault(every if len(kept) in (0, len(points)) else f"{field} = {listed(kept)}", []).append(name)
    of_all = f"{number_format.limit(1 - limit)} of every model's requests on time"
    return [
        f"{f'All {len(names)} settings' if len(names) == len(lines) > MAX_NAMED_SETTINGS else listed(names)} "
        f"keep{'s' * (len(names) == 1)} {of_all} at {values}."
        for values, names in alike.items()
    ]


def by_policy(results: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Return the results by policy, in order of appearance."""
    return grouped(results, lambda result: result.total.policy)


def grouped(results: Sequence[RunResult], key: Callable[[RunResult], str]) -> dict[str, list[RunResult]]:
    """Return the results grouped by `key`, in order of appearance."""
    found: dict[str, list[RunResult]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result)
    return found
