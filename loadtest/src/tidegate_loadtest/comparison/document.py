"""JSON document of a comparison."""

from dataclasses import asdict
from typing import Any

from tidegate.sim.document import DOCUMENT_VERSION
from tidegate_loadtest.comparison.findings import (
    TargetContrast,
    contrast_of,
    figures_of,
    interval_of,
    verdicts,
    warnings,
)
from tidegate_loadtest.comparison.intervals import CONFIDENCE_LEVEL, ConfidenceInterval
from tidegate_loadtest.comparison.runs import Comparison


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return all measurements: the rows of every run, in the order of the runs, and the figures computed from them."""
    base, *others = comparison.targets
    figures = figures_of(comparison)
    of_seed = {seed: number for number, seed in enumerate(comparison.seeds, 1)}
    contrasts = [contrast_of(comparison, target, base, figure) for target in others for figure in figures]
    return {
        "version": DOCUMENT_VERSION,
        "command": "compare",
        "scenario": comparison.scenario.model_dump(mode="json", exclude_defaults=True),
        "targets": [asdict(target) for target in comparison.targets],
        "settings": {name: asdict(settings) for name, settings in comparison.settings.items()},
        "rounds": len(comparison.seeds),
        "complete_rounds": [of_seed[seed] for seed in comparison.complete],
        "confidence": CONFIDENCE_LEVEL,
        "verdicts": verdicts(comparison),
        "warnings": warnings(comparison),
        "stopped": comparison.stopped,
        "figures": [
            {"target": target.name, "figure": figure.name, **_interval(interval_of(comparison, target, figure))}
            for target in comparison.targets
            for figure in figures
        ],
        "contrasts": [_contrast(contrast) for contrast in contrasts if contrast],
        "rows": [
            {"round": of_seed[live.run.seed], "target": live.run.policy.title, **asdict(row)}
            for live in comparison.lives
            for row in live.result.rows
        ],
        "tenants": [
            {"round": of_seed[live.run.seed], "target": live.run.policy.title, **asdict(tenant)}
            for live in comparison.lives
            for tenant in live.result.tenants
        ],
        "not_measured": [
            {"target": live.run.policy.title, "round": of_seed[live.run.seed], "reason": live.not_measured}
            for live in comparison.lives
            if live.not_measured
        ],
        "failures": [
            {"target": live.run.policy.title, "round": of_seed[live.run.seed], "first": dict(live.seen.run.messages)}
            for live in comparison.lives
            if live.seen.run.messages
        ],
    }


def _interval(interval: ConfidenceInterval | None) -> dict[str, float | None]:
    if interval is None:
        return {"mean": None, "low": None, "high": None, "count": 0}
    return asdict(interval)


def _contrast(contrast: TargetContrast) -> dict[str, Any]:
    return {
        "target": contrast.target.name,
        "base": contrast.base.name,
        "figure": contrast.figure.name,
        "difference": asdict(contrast.difference),
        "ratio": contrast.ratio and asdict(contrast.ratio),
    }
