"""Diagnosis: derives findings from facts, rule by rule."""

from collections.abc import Callable, Iterator
from typing import Final

from tidegate_proxy.app.doctor.facts import DoctorFacts, Finding, grouped
from tidegate_proxy.app.doctor.installation import broken_plugins, unseen_gpus
from tidegate_proxy.app.doctor.latency import (
    in_turn_on_processors,
    measured_elsewhere,
    measured_otherwise,
    not_measured,
    requests_not_timed,
    slos_too_short,
    unreachable_slos,
    unused_profiles,
    unused_shapes,
    waits_behind_longer_ones,
)
from tidegate_proxy.app.doctor.models import (
    batches_of_one,
    calls_inside_triton,
    conflicting_queue_policies,
    disagreements,
    double_batching_delay,
    ensembles_not_expanded,
    ineffective_settings,
    merged_rows,
    models_that_do_not_load,
    models_that_nobody_has,
    policies_that_refuse,
    unbatched_models,
    unused_policy_parts,
)

Rule = Callable[[DoctorFacts], Iterator[Finding]]

AT_START: Final[tuple[Rule, ...]] = (
    slos_too_short,
    unreachable_slos,
    conflicting_queue_policies,
    models_that_do_not_load,
    measured_elsewhere,
)
"""Rules whose findings `serve` logs at start; it reports the others elsewhere or does not start."""
DIAGNOSIS_RULES: Final[tuple[Rule, ...]] = (
    policies_that_refuse,
    models_that_nobody_has,
    unused_policy_parts,
    disagreements,
    ineffective_settings,
    merged_rows,
    calls_inside_triton,
    ensembles_not_expanded,
    double_batching_delay,
    not_measured,
    unused_shapes,
    unused_profiles,
    broken_plugins,
    *AT_START,
    waits_behind_longer_ones,
    requests_not_timed,
    measured_otherwise,
    unbatched_models,
    batches_of_one,
    in_turn_on_processors,
    unseen_gpus,
)


def diagnose(facts: DoctorFacts, rules: tuple[Rule, ...] = DIAGNOSIS_RULES) -> list[Finding]:
    """Return all findings, most severe first; a finding that applies to several models appears once."""
    return grouped(finding for rule in rules for finding in rule(facts))
