"""Advice on load is followed, simulated: the figures are not worse than before, under any load."""

import re
from pathlib import Path
from typing import Any

import pytest

from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_proxy.app.doctor.facts import OneRow
from tidegate_proxy.app.doctor.latency import _enough_ms
from tidegate_proxy.tritons.initial_profiles import DEFAULT_LATENCY

RULES = re.compile(r"^\| ((?:`[a-z-]+`(?:, )?)+) \|", re.MULTILINE)
DOCTOR = Path(__file__).parents[4] / "docs" / "reference" / "doctor.md"
LATENCY = {"alpha_ms": 1.0, "beta_ms": 12.0}
DELAY_MS = 5.0
Change = dict[str, Any]

CASES: dict[str, tuple[Change, Change]] = {
    "slo-too-short": ({"slo_ms": 10.0}, {"slo_ms": float(_enough_ms([OneRow(13.0, 13.0, "the profile")]))}),
    "slo-tight": ({"slo_ms": 13.5}, {"slo_ms": float(_enough_ms([OneRow(13.0, 13.0, "the profile")]))}),
    "double-batching-delay": ({"true": {**LATENCY, "beta_ms": 12.0 + DELAY_MS}}, {}),
    "no-profile": ({"profile": {**DEFAULT_LATENCY, "max_batch": 16}, "true": LATENCY}, {"true": LATENCY}),
    "profile-hardware-mismatch": ({"profile": {"alpha_ms": 0.5, "beta_ms": 6.0, "max_batch": 16}, "true": LATENCY}, {}),
    "unbatched-model": ({"scheduling": "unbatched"}, {}),
    "batch-of-one": ({"profile": {**LATENCY, "max_batch": 1}}, {}),
}
"""The model before and after the remedy of a rule, beside its other fields."""
NOT_OF_LOAD = {
    "configuration", "not-a-triton", "unreachable", "source-unreadable", "no-explicit-control",
    "restricted-api", "shared-memory-refused",
    "policy-refuses", "unknown-model", "unmatched-policy-part", "not-loaded", "slo-shorter-than-serialized-wait",
    "slo-ignored",
    "setting-ignored", "not-padded", "double-queue-policy", "disagreement", "profile-shape-mismatch",
    "profile-unknown-model", "rows-mixed", "rows-in-doubt", "called-inside-triton", "serialized-models",
    "ensemble-not-expanded", "broken-plugin", "nvml",
}  # fmt: skip
"""Rules whose remedy mends what does not work, or acts on what no simulation has."""


SHOWN = ("slo-too-short", "slo-tight", "unbatched-model", "batch-of-one")
"""Rules whose remedy must help under some load; the policy learns the latencies of others while it serves."""


def attainment(change: Change, rate_rps: float, workers: int = 2) -> float:
    given = dict(change)
    true = given.pop("true", None)
    model = {"name": "m", "slo_ms": 60.0, "profile": {**LATENCY, "max_batch": 16}, **given}
    scenario: dict[str, Any] = {
        "warmup_s": 1,
        "duration_s": 3,
        "workers": [{"count": workers}],
        "models": [model],
        "arrivals": {"process": "poisson", "rate_rps": rate_rps},
    }
    if true is not None:
        scenario["simulation"] = {"service": {"m": {"profile": {**true, "max_batch": 16}}}}
    run = RunSpec(Scenario.model_validate(scenario), PolicyChoice(name="symphony"), 1)
    return simulate(run).total.attainment


@pytest.mark.parametrize("rule", CASES)
def test_the_remedy_of_a_rule_makes_no_figure_worse(rule: str) -> None:
    before, after = CASES[rule]
    gains = [attainment(after, rate_rps) - attainment(before, rate_rps) for rate_rps in (20, 120, 600)]
    assert min(gains) >= -0.002
    assert max(gains) > 0.02 or rule not in SHOWN


def test_more_workers_and_longer_slos_of_troubleshooting_are_not_worse() -> None:
    now = attainment({}, 600)
    assert attainment({}, 600, workers=3) >= now
    assert attainment({"slo_ms": 90.0}, 600) >= now


def test_every_rule_is_followed_here_or_is_no_advice_on_load() -> None:
    rules = {rule for row in RULES.findall(DOCTOR.read_text()) for rule in re.findall(r"[a-z-]+", row)}
    assert rules == CASES.keys() | NOT_OF_LOAD
    assert not CASES.keys() & NOT_OF_LOAD
