"""Section of the dashboard on bypassed models: shadow mode, canary and automatic bypass."""

from typing import Any, Final

from tidegate_proxy.app.dashboard.snapshot import RolloutRow, RolloutSection, RolloutSide, cut
from tidegate_proxy.rollout.canary import Canary
from tidegate_proxy.rollout.comparison import ModelComparison, TrafficGroup
from tidegate_proxy.rollout.mode import RolloutMode
from tidegate_proxy.rollout.shadow import Shadow

MAX_SHOWN_MODELS: Final = 30
"""Number of models shown."""


def section_of(trial: RolloutMode) -> RolloutSection | None:
    """Return the section; None if every model is scheduled that can be."""
    if trial.shadow.is_on:
        return _of_shadow(trial.shadow)
    return _of_canary(trial.canary) if trial.canary.is_on else None


def _of_shadow(shadow: Shadow) -> RolloutSection:
    document = shadow.document()
    report = document["report"] or {"window_s": None, "unsimulated": 0, "estimates": []}
    rows = [_estimate(each, shadow.policy) for each in report["estimates"]]
    left_out = document["left_out"]
    notes = [
        f"{left_out} requests were left out, as the simulator did not keep up." if left_out else "",
        report["estimates"][0]["doubt"] if report["estimates"] else "",
        f"{document['why'][:1].upper()}{document['why'][1:]}." if document["why"] else "",
    ]
    note = " ".join(filter(None, notes))
    return RolloutSection(
        "shadow", shadow.policy, 0.0, report["window_s"], rows[:MAX_SHOWN_MODELS], len(rows[MAX_SHOWN_MODELS:]), note
    )


def _estimate(estimate: dict[str, Any], policy: str) -> RolloutRow:
    gain = estimate["gain"]
    sides = [
        RolloutSide("as it passes", estimate["requests"], estimate["measured"]),
        RolloutSide("Triton's batcher, simulated", None, estimate["batcher"]),
        RolloutSide("Triton's batcher tuned, simulated", None, estimate["tuned"]),
        RolloutSide(f"{policy}, simulated", None, estimate["policy"]),
    ]
    return RolloutRow(cut(estimate["model"]), sides, tuple(gain) if gain else None, cut(estimate["why"]))


def _of_canary(canary: Canary) -> RolloutSection:
    rows = [_compared(each, canary.policy) for each in canary.compared[:MAX_SHOWN_MODELS]]
    return RolloutSection(
        "canary", canary.policy, canary.share or 0.0, None, rows, len(canary.compared[MAX_SHOWN_MODELS:]), ""
    )


def _compared(compared: ModelComparison, policy: str) -> RolloutRow:
    sides = [_side("as it passes", compared.passed), _side(f"scheduled by {policy}", compared.scheduled)]
    return RolloutRow(cut(compared.model), sides, compared.gain, cut(compared.why))


def _side(name: str, side: TrafficGroup) -> RolloutSide:
    return RolloutSide(name, side.requests, side.attainment, side.p50_ms, side.p99_ms)
