"""Load test of dynamic models: Poisson arrivals at shares of the capacity, all contenders alternating.

Tidegate is compared with the best contender of Triton.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.dynamic_models.baselines import Contender
from bench.dynamic_models.case import Case
from bench.dynamic_models.measuring import Alone
from tidegate.workload import Scenario
from tidegate_loadtest.comparison.document import comparison_document
from tidegate_loadtest.comparison.findings import (
    ATTAINMENT_FIGURE,
    COMPARED_FIGURES,
    TargetContrast,
    contrast_of,
    interval_of,
)
from tidegate_loadtest.comparison.runs import Comparison, compare
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.progress_bar import progress_bar

LATE_SHARE = 0.05
"""Maximum generator delay (99th percentile) as a share of the SLO; above it the generator fell behind."""
TIMEOUT_S = 10.0
"""Seconds that the generator waits for a response."""
BESIDE = ("attainment", "p50_ms", "p99_ms")
"""Figures by which Tidegate is compared with the best of Triton's settings."""


@dataclass(frozen=True)
class Load:
    """Results of one load."""

    share: float
    """Rate as a share of the capacity of one instance that serves the inputs one by one."""
    rate_rps: float
    comparison: Comparison
    best: Target
    """The Triton with the highest attainment; among equals the one with the lowest median latency."""
    contrasts: Sequence[TargetContrast]
    """Comparison of each Tidegate with `best`, for each figure of BESIDE."""

    def document(self) -> dict[str, Any]:
        """Return the results as a JSON object."""
        against = [
            {"target": contrast.target.name, "figure": contrast.figure.name, **asdict(contrast.difference)}
            for contrast in self.contrasts
        ]
        comparison = comparison_document(self.comparison)
        own = {"load": self.share, "rate_rps": self.rate_rps, "best_of_triton": self.best.name, "against_it": against}
        return {**own, "comparison": comparison}


def run_load(
    console: Console,
    case: Case,
    chosen: Sequence[Contender],
    targets: Sequence[Target],
    folder: Path,
    alone: Alone,
    share: float,
    *,
    rounds: int,
    duration_s: float,
    warmup_s: float,
) -> Load:
    """Run one load, with a progress bar.

    Args:
        console: where the bar is shown.
        case: the model.
        chosen: the contenders.
        targets: their addresses, in the same order.
        folder: the inputs.
        alone: latencies without load.
        share: rate as a share of the capacity.
        rounds: number of repetitions, alternating between contenders.
        duration_s: measured window, seconds.
        warmup_s: seconds before it.
    """
    rate_rps = share * 1e3 / alone.mean_ms
    scenario = _scenario(case, alone.mean_ms, rate_rps, duration_s, warmup_s)
    sending = SendingOptions(
        {}, timeout_s=TIMEOUT_S, lateness_limit_ms=LATE_SHARE * case.slo_ms, inputs={case.model: folder}
    )
    each_s = warmup_s + duration_s
    with progress_bar(console, each_s * rounds * len(targets)) as show:
        comparison = compare(
            scenario,
            targets,
            sending,
            rounds=rounds,
            seed=1,
            shown=lambda done, name, progress: show(done * each_s + progress.elapsed_ns / 1e9, f"{name}: {progress}"),
        )
    tritons = [target for target, contender in zip(targets, chosen, strict=True) if contender.batcher]
    best = max(tritons, key=lambda target: _merit(comparison, target))
    others = [target for target in targets if target not in tritons]
    figures = [figure for figure in COMPARED_FIGURES if figure.name in BESIDE]
    contrasts = [contrast_of(comparison, target, best, figure) for target in others for figure in figures]
    return Load(share, rate_rps, comparison, best, [contrast for contrast in contrasts if contrast])


def _merit(comparison: Comparison, target: Target) -> tuple[float, float]:
    by_name = {figure.name: figure for figure in COMPARED_FIGURES}
    attained = interval_of(comparison, target, ATTAINMENT_FIGURE)
    p50_ms = interval_of(comparison, target, by_name["p50_ms"])
    return attained.mean if attained else 0.0, -p50_ms.mean if p50_ms else float("-inf")


def _scenario(case: Case, mean_ms: float, rate_rps: float, duration_s: float, warmup_s: float) -> Scenario:
    """One worker, one model."""
    model = {
        "name": case.model,
        "slo_ms": case.slo_ms,
        "max_batch": case.max_batch,
        "rows": case.rows,
        "profile": {"points_ms": {case.rows: round(mean_ms, 3)}},
    }
    return Scenario.model_validate(
        {
            "name": case.model,
            "warmup_s": warmup_s,
            "duration_s": duration_s,
            "workers": [{"count": 1}],
            "models": [model],
            "arrivals": {"rate_rps": round(rate_rps, 2)},
        }
    )
