"""Diagnosis: derives findings from facts, rule by rule."""

from collections.abc import Callable, Iterator
from typing import Final

from tidegate_proxy.app.doctor.facts import DoctorFacts, Finding, grouped
from tidegate_proxy.app.doctor.installation import broken_plugins, unseen_gpus
from tidegate_proxy.app.doctor.latency import (
    in_turn_on_processors,
    measured_elsewhere,
    measured_in_vain,
    measured_otherwise,
    not_measured,
    requests_not_timed,
    shapes_in_vain,
    slos_in_vain,
    slos_too_short,
    waits_behind_longer_ones,
)
from tidegate_proxy.app.doctor.models import (
    batches_of_one,
    disagreements,
    judged_twice,
    merged_by_nobody,
    merged_rows,
    models_that_do_not_load,
    models_that_nobody_has,
    parts_of_nobody,
    policies_that_refuse,
    waiting_twice,
    words_in_vain,
)

Rule = Callable[[DoctorFacts], Iterator[Finding]]

AT_START: Final[tuple[Rule, ...]] = (
    slos_too_short,
    slos_in_vain,
    judged_twice,
    models_that_do_not_load,
    measured_elsewhere,
)
"""Rules whose findings `serve` logs at start; it reports the others elsewhere or does not start."""
DIAGNOSIS_RULES: Final[tuple[Rule, ...]] = (
    policies_that_refuse,
    models_that_nobody_has,
    parts_of_nobody,
    disagreements,
    words_in_vain,
    merged_rows,
    waiting_twice,
    not_measured,
    shapes_in_vain,
    measured_in_vain,
    broken_plugins,
    *AT_START,
    waits_behind_longer_ones,
    requests_not_timed,
    measured_otherwise,
    merged_by_nobody,
    batches_of_one,
    in_turn_on_processors,
    unseen_gpus,
)


def diagnose(facts: DoctorFacts, rules: tuple[Rule, ...] = DIAGNOSIS_RULES) -> list[Finding]:
    """Return all findings, most severe first; a finding that applies to several models appears once."""
    return grouped(finding for rule in rules for finding in rule(facts))
