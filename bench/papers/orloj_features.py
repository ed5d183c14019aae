"""Orloj and Symphony with a feature of requests (tokens, pages) in place of application names, simulated.

    python -m bench.papers.orloj_features --json features.json

Each case is run with what requests say of themselves: nothing, application names, a feature, or both; the feature goes
with the latency by a rank correlation from 1 (it decides) to 0 (it is noise). Latency is learned from nothing. Prints
finish rates, and what the feature gains over nothing and over names, with the 95 % interval over seeds. Takes about 10
minutes on two cores.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from rich.console import Console

from bench.common import console_of, parser_of, print_table, run_all, write_json
from bench.papers.orloj_workloads import Workload
from tidegate.sim.interval import interval_of
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, RequestSequence, Scenario
from tidegate.workload.scenario import FeatureSpec

CASES: Final = (("eight-modal", 2.0), ("gpt-convAI", 1.5), ("mbart-wmt", 3.0), ("rdinet-cifar", 3.0))
"""Cases on which nothing was tuned, with the SLO as a multiple of the 99th percentile."""
TUNED_CASES: Final = (("two-modal", 2.0), ("gpt-cornell", 3.0), ("rdinet-cifar", 4.0))
"""Cases on which the constants of the law were chosen."""
CORRELATIONS: Final = (1.0, 0.7, 0.0)
POLICIES: Final = ("orloj", "symphony")
SEEDS: Final = (1, 2, 3, 4, 5)
FEATURE: Final = {"distribution": "lognormal", "mean": 200, "cv": 1.0}
NOTHING, NAMES, FEATURES, BOTH = "nothing", "names", "feature", "both"


@dataclass(frozen=True)
class FeatureCell:
    """A case, what its requests say of themselves, and a policy."""

    case: str
    slo: float
    said: str
    correlation: float
    policy: str
    seed: int
    requests: int
    warm_up: float
    """Warm-up, in which latency is learned, relative to the measured window."""

    @property
    def scenario(self) -> Scenario:
        """The scenario, with a feature."""
        workload = Workload(self.case, self.slo, requests=self.requests, known=False)
        scenario = workload.scenario(PolicyChoice(name=self.policy))
        feature = FeatureSpec.model_validate({"values": FEATURE, "correlation": self.correlation})
        models = [model.model_copy(update={"feature": feature}) for model in scenario.models]
        warmup_s = self.warm_up * scenario.duration_s
        return scenario.model_copy(update={"models": models, "warmup_s": warmup_s})


def run_cell(cell: FeatureCell) -> float:
    """Return the finish rate of a cell."""
    scenario, policy = cell.scenario, PolicyChoice(name=cell.policy)
    workload = Workload(cell.case, cell.slo, requests=cell.requests, known=False)
    requests = as_said(workload.requests_of(scenario, cell.seed), cell.said)
    return simulate(RunSpec(scenario, policy, cell.seed), requests=requests).total.attainment


def as_said(requests: RequestSequence, said: str) -> RequestSequence:
    """Return the same requests without the names or features that they do not say."""
    apps = requests.apps if said in (NAMES, BOTH) else None
    features = requests.features if said in (FEATURES, BOTH) else None
    return replace(requests, apps=apps, features=features)


def cells_of(
    cases: Iterable[tuple[str, float]], seeds: Sequence[int], requests: int, warm_up: float
) -> list[FeatureCell]:
    """Return all cells; names and nothing do not depend on the correlation."""
    said = [(NOTHING, 0.0), (NAMES, 0.0), *((way, each) for way in (FEATURES, BOTH) for each in CORRELATIONS)]
    return [
        FeatureCell(case, slo, way, correlation, policy, seed, requests, warm_up)
        for case, slo in cases
        for policy in POLICIES
        for way, correlation in said
        for seed in seeds
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the simulations, print tables and write figures."""
    parser = parser_of("bench.papers.orloj_features", __doc__, jobs=True)
    parser.add_argument("--requests", type=int, default=2000, help="in each cell; default 2000")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="default 1 to 5")
    parser.add_argument("--warm-up", type=float, default=1.0, help="relative to the window; 0.05: learning counts")
    parser.add_argument("--tuned", action="store_true", help="the cases on which the constants were chosen")
    options = parser.parse_args(arguments)
    console = console_of(150)
    cells = cells_of(TUNED_CASES if options.tuned else CASES, options.seeds, options.requests, options.warm_up)
    rates = run_all(console, "cells", run_cell, cells, options.jobs)
    found = dict(zip(cells, rates, strict=True))
    write_json(options.json, [{**asdict(cell), "finish_rate": rate} for cell, rate in found.items()])
    for policy in POLICIES:
        _print(console, policy, {cell: rate for cell, rate in found.items() if cell.policy == policy})


def _print(console: Console, policy: str, found: dict[FeatureCell, float]) -> None:
    rates: dict[tuple[str, float, str, float], list[float]] = {}
    for cell, rate in found.items():
        rates.setdefault((cell.case, cell.slo, cell.said, cell.correlation), []).append(rate)
    rows = []
    for case, slo in dict.fromkeys(key[:2] for key in rates):
        of = {key[2:]: each for key, each in rates.items() if key[:2] == (case, slo)}
        nothing, names = of[NOTHING, 0.0], of[NAMES, 0.0]
        row: list[Any] = [f"{case}, {slo:g}", _mean(nothing), _mean(names)]
        row += [f"{_mean(of[FEATURES, each])} ({_gain(of[FEATURES, each], nothing)})" for each in CORRELATIONS]
        row += [f"{_mean(of[BOTH, each])} ({_gain(of[BOTH, each], names)})" for each in CORRELATIONS]
        rows.append(row)
    columns = ["case, SLO", NOTHING, NAMES]
    columns += [
        f"{way} {each:g} (over {base})" for way, base in ((FEATURES, NOTHING), (BOTH, NAMES)) for each in CORRELATIONS
    ]
    print_table(console, f"{policy}: finish rate (gain in points)", columns, rows)


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f}"


def _gain(values: Sequence[float], over: Sequence[float]) -> str:
    """Return the mean difference of paired runs in percentage points, with its 95 % interval."""
    differences = [100 * (after - before) for after, before in zip(values, over, strict=True)]
    found = interval_of(differences, -100.0, 100.0)
    return f"{found.mean:+.1f} ±{(found.high - found.low) / 2:.1f}"


if __name__ == "__main__":
    main()
