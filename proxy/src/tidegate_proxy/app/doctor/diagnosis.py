"""From facts to findings: every concept in turn."""

from collections.abc import Callable, Iterator
from typing import Final

from tidegate_proxy.app.doctor.agreement import disagreements
from tidegate_proxy.app.doctor.batching import (
    batches_of_one,
    judged_twice,
    merged_by_nobody,
    waiting_twice,
    words_in_vain,
)
from tidegate_proxy.app.doctor.deciding import policies_that_refuse
from tidegate_proxy.app.doctor.facts import Facts
from tidegate_proxy.app.doctor.finding import Finding, grouped
from tidegate_proxy.app.doctor.hardware import measured_elsewhere, measured_otherwise
from tidegate_proxy.app.doctor.installation import broken_plugins, unseen_gpus
from tidegate_proxy.app.doctor.loading import models_that_do_not_load
from tidegate_proxy.app.doctor.names import models_that_nobody_has, parts_of_nobody
from tidegate_proxy.app.doctor.neighbours import in_turn_on_processors, waits_behind_longer_ones
from tidegate_proxy.app.doctor.profiles import measured_in_vain, not_measured, shapes_in_vain
from tidegate_proxy.app.doctor.rows import merged_rows
from tidegate_proxy.app.doctor.slos import requests_not_timed, slos_in_vain, slos_too_short

Rule = Callable[[Facts], Iterator[Finding]]

AT_START: Final[tuple[Rule, ...]] = (
    slos_too_short,
    slos_in_vain,
    judged_twice,
    models_that_do_not_load,
    measured_elsewhere,
)
"""What `serve` says of itself: the rest is said in other lines of its log, or keeps it from serving."""
ALL: Final[tuple[Rule, ...]] = (
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


def diagnose(facts: Facts, rules: tuple[Rule, ...] = ALL) -> list[Finding]:
    """All that deserves attention, gravest first; what several models have in common is said once."""
    return grouped(finding for rule in rules for finding in rule(facts))
