"""What a request of one row takes, as far as anybody knows: by the profile file, by Triton's statistics, or timed."""

from dataclasses import dataclass
from typing import Final

from tidegate.api import Model, Profile
from tidegate_proxy.app.doctor.facts import Facts, Service

ENOUGH_EXECUTIONS: Final = 100
"""From so many executions on their mean is believed: the first ones of a model may take a hundred times as long."""


@dataclass(frozen=True, slots=True)
class OneRow:
    """What requests of one row and one shape take where they are answered the quickest."""

    expected_ms: float
    planned_ms: float
    """What 95 of a hundred take at most; as expected, where nobody knows."""
    source: str
    """Who says so."""
    shape: str = ""
    """Empty: of every shape that nothing else is known of."""


def one_row(facts: Facts, service: Service) -> list[OneRow]:
    """What is known of each shape; empty where nothing is. A profile counts more than a request that was timed, that
    more than a mean since Triton's start."""
    if service.model is None:
        return []
    if facts.has_layout:
        return _by_layout(facts, service.model)
    profiled = _by_profile(facts, service)
    if profiled:
        return profiled
    timed = facts.timed.get(service.name)
    if timed is not None and timed.took_ms is not None:
        smallest = ", with every open dimension 1" if timed.open_dimensions else ""
        return [OneRow(timed.took_ms, timed.took_ms, f"timed now{smallest}")]
    executions = facts.executions.get(service.name)
    if executions is not None and executions.count >= ENOUGH_EXECUTIONS:
        source = f"the mean of {executions.count:,} executions, by its Triton's statistics"
        return [OneRow(executions.mean_ms, executions.mean_ms, source)]
    return []


def _by_layout(facts: Facts, model: Model) -> list[OneRow]:
    """What the quickest way through the partitions takes, without the links between them; none that the layout does not
    tell of."""
    quickest: dict[str, Profile] = {}
    for profile in facts.planned:
        known = quickest.get(profile.partition)
        if known is None or profile.expected_ns(1) < known.expected_ns(1):
            quickest[profile.partition] = profile
    ways = [path.partitions for path in model.paths if quickest.keys() >= set(path.partitions)]
    rows = [
        OneRow(
            sum(quickest[name].expected_ns(1) for name in way) / 1e6,
            sum(quickest[name].planned_ns(1) for name in way) / 1e6,
            "the layout, without links",
        )
        for way in ways
    ]
    return [min(rows, key=lambda row: row.expected_ms)] if rows else []


def _by_profile(facts: Facts, service: Service) -> list[OneRow]:
    assert service.model is not None
    quickest: dict[str, OneRow] = {}
    for kind in service.kinds:
        profiles = facts.measured.profiles_of(service.name, kind, service.model.max_rows)
        for profile in profiles:
            if not profile.shape and len(profiles) > 1:
                continue  # what the slowest of the others takes
            source = f"the profile for workers of kind {kind!r}"
            row = OneRow(profile.expected_ns(1) / 1e6, profile.planned_ns(1) / 1e6, source, profile.shape)
            if profile.shape not in quickest or row.expected_ms < quickest[profile.shape].expected_ms:
                quickest[profile.shape] = row
    return sorted(quickest.values(), key=lambda row: row.expected_ms)
