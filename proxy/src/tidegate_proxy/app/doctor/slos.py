"""SLOs that cannot be kept, and those that nobody reads."""

from collections.abc import Iterator
from math import ceil

from tidegate.engine.estimates.lateness import LARGEST_SHARE
from tidegate_proxy.app.doctor.facts import Facts, Service
from tidegate_proxy.app.doctor.finding import Finding
from tidegate_proxy.app.doctor.one_row import OneRow, one_row
from tidegate_proxy.tritons.catalog import LATE_PARAMETER, SLO_PARAMETER


def slos_too_short(facts: Facts) -> Iterator[Finding]:
    """SLOs below what a request of one row takes, by which every request, or every slow one, is refused."""
    for service in facts.services.values():
        rows = one_row(facts, service)
        if service.slo_ms is not None and rows:
            yield from _too_short(facts, service, service.slo_ms, rows)


def _too_short(facts: Facts, service: Service, slo_ms: float, rows: list[OneRow]) -> Iterator[Finding]:
    where = f"models.{service.name}.slo_ms"
    serves_late = service.model is not None and service.model.late == "serve"
    usable_ms = slo_ms * (1 - LARGEST_SHARE)
    hopeless = [row for row in rows if row.expected_ms >= slo_ms]
    quickest = rows[0]
    remedy = f"set it to {_enough_ms(rows)} ms or more, twice that for batches to form"
    fate = "answered late" if serves_late else "refused"
    if len(hopeless) == len(rows):
        yield Finding(
            "warning" if serves_late else "error",
            "slo-too-short",
            where,
            f"{slo_ms:g} ms are less than the {quickest.expected_ms:.3g} ms that one row takes ({quickest.source}), so "
            f"that nearly every request is {fate}",
            remedy,
        )
    elif hopeless:
        shapes = ", ".join(f"{row.shape} ({row.expected_ms:.3g} ms)" for row in hopeless)
        yield Finding(
            "warning",
            "slo-too-short",
            where,
            f"{slo_ms:g} ms are less than one row of some shapes takes, so that such requests are {fate}: {shapes}",
            remedy,
        )
    elif slow := [row for row in rows if row.planned_ms > usable_ms]:
        worst = max(slow, key=lambda row: row.planned_ms)
        of_shape = f" of shape {worst.shape}" if worst.shape else ""
        yield Finding(
            "warning",
            "slo-tight",
            where,
            f"{slo_ms:g} ms leave no room: one row{of_shape} takes up to {worst.planned_ms:.3g} ms ({worst.source}), "
            f"and a part is kept free for the way back, so that requests are {fate} as soon as anything waits",
            remedy,
        )


def _enough_ms(rows: list[OneRow]) -> int:
    """Enough for one row of any shape, with what is kept free for the way back, in ms."""
    return ceil(max(row.planned_ms for row in rows) / (1 - LARGEST_SHARE))


def requests_not_timed(facts: Facts) -> Iterator[Finding]:
    """Models that do not answer the request that was to be timed: their SLO is held against nothing."""
    for name, timed in facts.timed.items():
        if timed.took_ms is None:
            sizes = ", with every open dimension 1," if timed.open_dimensions else ""
            yield Finding(
                "advice" if timed.open_dimensions else "warning",
                "not-timed",
                f"model {name}",
                f"it does not answer one row of zeros{sizes} so that nobody knows how long it takes: {timed.why_not}",
                "have `tidegate profile` measure it with a shape that it takes"
                if timed.open_dimensions
                else "see why in the log of its Triton",
            )


def slos_in_vain(facts: Facts) -> Iterator[Finding]:
    """SLOs, and words on late requests, of models whose requests are not scheduled: nobody reads them."""
    for service in facts.services.values():
        if service.model is not None:
            continue
        said = facts.told(service.name)
        for field, given in (("slo_ms", said.slo_ms), ("late", said.late)):
            if given:
                yield Finding(
                    "error",
                    "slo-of-unscheduled",
                    f"models.{service.name}.{field}",
                    f"its requests are not scheduled ({service.consent.why}), so that `serve` does not start",
                    "take it out, or see to it that they can be scheduled",
                )
        for parameter in (SLO_PARAMETER, LATE_PARAMETER):
            if parameter in service.config.parameters:
                yield Finding(
                    "warning",
                    "slo-of-unscheduled",
                    f"model {service.name}",
                    f"{parameter} of its config.pbtxt is not read, as its requests are not scheduled "
                    f"({service.consent.why})",
                    "take it out, or see to it that they can be scheduled",
                )
