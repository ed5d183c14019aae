"""Findings of a comparison: figures over the rounds, differences between targets, and the verdict."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean

from tidegate.report.number_format import share
from tidegate.sim.result import ResultRow
from tidegate_loadtest.comparison.intervals import (
    MIN_VALUES_FOR_INTERVAL,
    ConfidenceInterval,
    difference_of,
    mean_of,
    ratio_of,
)
from tidegate_loadtest.comparison.runs import Comparison
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.live import LiveObservations
from tidegate_loadtest.result import DROP_STATUSES


@dataclass(frozen=True)
class ComparedFigure:
    """Figure that is compared. `shown` formats a value, `apart` a difference (with its sign)."""

    name: str
    heading: str
    value: Callable[[ResultRow], float | None]
    shown: Callable[[float], str]
    apart: Callable[[float], str]
    most: Callable[[ResultRow], float] = lambda row: inf
    """Function that returns the largest possible value; the smallest is zero."""

    @property
    def widest(self) -> float:
        """Largest possible difference of two values."""
        return 1.0 if self.name in ("attainment", "gap_attainment") else inf


def _share(name: str, heading: str, value: Callable[[ResultRow], float | None]) -> ComparedFigure:
    return ComparedFigure(name, heading, value, lambda x: f"{x:.1%}", lambda x: f"{100 * x:+.1f} points")


def _number(
    name: str, heading: str, value: Callable[[ResultRow], float | None], digits: int, unit: str
) -> ComparedFigure:
    return ComparedFigure(name, heading, value, lambda x: f"{x:,.{digits}f}", lambda x: f"{x:+,.{digits}f}{unit}")


GOODPUT_FIGURE = replace(
    _number("goodput_rps", "goodput /s", lambda row: row.goodput_rps, 1, "/s"), most=lambda row: row.offered_rps
)
ATTAINMENT_FIGURE = replace(_share("attainment", "attainment", lambda row: row.attainment), most=lambda row: 1.0)
COMPARED_FIGURES = (
    GOODPUT_FIGURE,
    ATTAINMENT_FIGURE,
    _number("p50_ms", "p50 ms", lambda row: row.p50_ms, 1, " ms"),
    _number("p95_ms", "p95 ms", lambda row: row.p95_ms, 1, " ms"),
    _number("p99_ms", "p99 ms", lambda row: row.p99_ms, 1, " ms"),
    _number("mean_batch_rows", "mean batch", lambda row: row.mean_batch_rows, 2, " rows"),
    replace(
        _share("busy_share", "busy", lambda row: row.busy_share if row.busy_shares else None), most=lambda row: 1.0
    ),
)
GAP_FIGURES = (
    _number("gap_p50_ms", "gap p50 ms", lambda row: row.gap_p50_ms, 1, " ms"),
    _number("gap_p99_ms", "gap p99 ms", lambda row: row.gap_p99_ms, 1, " ms"),
    replace(_share("gap_attainment", "gap attainment", lambda row: row.gap_attainment), most=lambda row: 1.0),
)
"""Figures of the gaps between the responses of streams, whose other latencies are those of the first response."""


@dataclass(frozen=True)
class TargetContrast:
    """Figure of a target against that of another, round by round; both had the same requests in each round."""

    figure: ComparedFigure
    target: Target
    base: Target
    difference: ConfidenceInterval
    """Interval of target - base."""
    ratio: ConfidenceInterval | None
    """Interval of target / base; None if one of them was zero in a round."""

    @property
    def shown_by(self) -> tuple[ConfidenceInterval, Callable[[float], str], float]:
        """Interval to show, its formatter, and the value that means no difference.

        This is the ratio for the goodput if there is one; otherwise the difference.
        """
        if self.figure is GOODPUT_FIGURE and self.ratio:
            return self.ratio, _percent, 1.0
        return self.difference, self.figure.apart, 0.0

    def __str__(self) -> str:
        interval, written, _ = self.shown_by
        if interval.low is None or interval.high is None:
            return written(interval.mean)
        low, high = (written(end).partition(" ")[0].removesuffix("/s") for end in (interval.low, interval.high))
        return f"{written(interval.mean)} ({low} .. {high})"


def figures_of(comparison: Comparison) -> tuple[ComparedFigure, ...]:
    """Return the figures of a comparison; those of gaps only if a model has streams."""
    streams = any(model.streaming for model in comparison.scenario.models)
    return COMPARED_FIGURES + (GAP_FIGURES if streams else ())


def interval_of(comparison: Comparison, target: Target, figure: ComparedFigure) -> ConfidenceInterval | None:
    """Return the interval of a figure over the complete rounds, or None if no round has the figure."""
    rows = [live.result.total for live in comparison.of(target)]
    found = mean_of([value for row in rows if (value := figure.value(row)) is not None])
    return None if found is None else found.within(0.0, fmean(map(figure.most, rows)))


def contrast_of(comparison: Comparison, target: Target, base: Target, figure: ComparedFigure) -> TargetContrast | None:
    """Return the contrast of two targets over the complete rounds, or None if no round has the figure of both."""
    runs = zip(comparison.of(target), comparison.of(base), strict=True)
    values = [(figure.value(own.result.total), figure.value(other.result.total)) for own, other in runs]
    pairs = [(own, other) for own, other in values if own is not None and other is not None]
    difference = difference_of(pairs)
    if difference is None:
        return None
    ratio = ratio_of(pairs)
    if ratio is not None:
        best = fmean(figure.most(live.result.total) for live in comparison.of(base))
        ratio = ratio.within(0.0, best / fmean(other for _, other in pairs))
    return TargetContrast(figure, target, base, difference.within(-figure.widest, figure.widest), ratio)


def verdict_of(contrast: TargetContrast, of_target: ConfidenceInterval, of_base: ConfidenceInterval) -> str:
    """Return a sentence with the attainment of both targets and whether the rounds show a difference."""
    name, base, interval = contrast.target.name, contrast.base.name, contrast.difference
    both = f"{name} has {share(of_target.mean)} on time, {base} {share(of_base.mean)}"
    if interval.low is None:
        rounds = "one round" if interval.count == 1 else f"{interval.count} rounds"
        return f"{both}: {contrast} in {rounds}; chance is not ruled out, take {MIN_VALUES_FOR_INTERVAL} or more."
    if interval.excludes(0.0):
        return f"{both}: {contrast}."
    return f"{both}: no difference that {interval.count} rounds show, {contrast}."


def verdicts(comparison: Comparison) -> list[str]:
    """Return the verdicts of every other target against the first."""
    base, *others = comparison.targets
    sentences = []
    for target in others:
        if reasons := [
            f"{each.name}: {live.not_measured}"
            for each in (base, target)
            for live in comparison.of(each)
            if live.not_measured
        ]:
            sentences.append(
                f"{target.name} against {base.name}: not measured in {len(reasons)} of {2 * len(comparison.complete)} "
                f"runs, first {reasons[0]}."
            )
            continue
        contrast = contrast_of(comparison, target, base, ATTAINMENT_FIGURE)
        own, of_base = (interval_of(comparison, each, ATTAINMENT_FIGURE) for each in (target, base))
        if contrast and own and of_base:
            sentences.append(verdict_of(contrast, own, of_base))
    return sentences


def warnings(comparison: Comparison) -> list[str]:
    """Return warnings: why the comparison ended early, runs limited by the generator, failed requests."""
    sentences = [f"ended early: {comparison.stopped}"] if comparison.stopped else []
    if comparison.stopped and (complete := len(comparison.complete)) < len(comparison.seeds):
        sentences.append(f"only {complete} of {len(comparison.seeds)} rounds are complete: the figures are of these")
    failures = []
    for target in comparison.targets:
        lives = [live for live in comparison.lives if live.run.policy.title == target.name]
        if failed := sum(live.result.total.failed + live.result.total.stranded for live in lives):
            sent = sum(live.result.total.accepted for live in lives)
            messages = _first_messages([live.seen for live in lives])
            failures.append(f"{target.name}: {failed:,} of {sent:,} requests failed{messages}")
    return sentences + failures


def late_p99_ms(comparison: Comparison, target: Target) -> float | None:
    """Return the p99 of the generator's lateness in ms, in the worst of the target's rounds; None if unknown."""
    lates = [live.result.total.lateness_p99_ms for live in comparison.of(target)]
    return max((late for late in lates if late is not None), default=None)


def _first_messages(seen: list[LiveObservations]) -> str:
    messages: dict[str, str] = {}
    for one in seen:
        for status, message in one.run.messages.items():
            if status not in DROP_STATUSES.values():  # a request that is given up on purpose is no failure
                messages.setdefault(status, message)
    return "".join(f"; first {status}: {message}" for status, message in messages.items())


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"
