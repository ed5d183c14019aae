"""Trial of a model with rows alone and in batches: compares the outputs of each row."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tidegate_repo_generator.onnx_sessions import Arrays, RunError
from tidegate_repo_generator.rows.comparison import OutputComparison, excess, is_float
from tidegate_repo_generator.rows.samples import Sampler, picked

Run = Callable[[Arrays], Arrays]
_COUNT: Final = 4
_COMPANIES: Final = ((0, 1, 2, 3), (3, 2, 1, 0), (1, 0), (2, 3, 1), (2, 0, 3, 1, 1, 3, 0, 2))
"""Rows that share a batch: each at several places, in batches of several sizes."""
_LOUDNESS: Final = (1.0, 100.0, 0.01, 1000.0)


@dataclass(frozen=True)
class BatchingVerdict:
    """Verdict on whether requests may share a batch."""

    batches: bool | None
    """Whether requests may share a batch; None if unknown."""
    reason: str
    """Clause that gives the reason, without a full stop."""


def try_rows(alone: Run, together: Run, sampler: Sampler, outputs: Iterable[str]) -> BatchingVerdict:
    """Compare the outputs of every row alone and in a batch, at several batch sizes and positions.

    Rows are random, or given; then each is louder or quieter than the others, up to a thousand times; then one of them
    is all NaN, which shows in every output that it reaches. `outputs`: those that depend on the contents of the inputs:
    each must react to them, or there is no evidence. `alone` and `together`: functions that run the model.
    """
    trial = _Trial(alone, together, {name: OutputComparison() for name in outputs})
    plain = sampler.rows(_COUNT)
    if sampler.given and len(next(iter(sampler.given.values()))) < _COUNT:
        plain = _scaled(plain, (1.0, 0.5, 2.0, 1.5)) or plain
    sets = (plain, _scaled(plain, _LOUDNESS), _poisoned(plain))
    for number, feed in enumerate(sets):
        if feed is None:
            continue
        verdict = trial.compare(feed, required=number == 0, evidence=number < 2)
        if verdict is not None:
            return verdict
    return trial.verdict()


@dataclass
class _Trial:
    alone: Run
    together: Run
    seen: dict[str, OutputComparison]
    copies: dict[tuple[int, int, int], Arrays] = field(default_factory=dict)
    """Answers to batches of nothing but one row: by set, row and size."""

    def compare(self, feed: Arrays, *, required: bool, evidence: bool) -> BatchingVerdict | None:
        """One set of rows; a verdict where it ends the trial."""
        try:
            rows = [self.alone(picked(feed, [row])) for row in range(_COUNT)]
            again = self.alone(picked(feed, [0]))
        except RunError as error:
            return BatchingVerdict(None, f"it does not run on all rows that were tried ({error})") if required else None
        for name in self.seen:
            if not _equal(rows[0][name], again[name]):
                return BatchingVerdict(
                    None, f"output '{name}' differs from run to run, so that rows cannot be compared"
                )
            if any(row[name].shape[:1] != (1,) for row in rows):
                return BatchingVerdict(
                    False, f"output '{name}' has the shape {list(rows[0][name].shape)} for a batch of 1"
                )
            if evidence:
                self.seen[name].take_alone([row[name] for row in rows])
        for company in _COMPANIES:
            try:
                answers = self.together(picked(feed, company))
            except RunError as error:
                return (
                    BatchingVerdict(False, f"it runs with one row but not with several ({error})") if required else None
                )
            for name in self.seen:
                if reason := self._compare(name, feed, rows, company, answers[name]):
                    return BatchingVerdict(False, reason)
        return None

    def _compare(
        self, name: str, feed: Arrays, rows: list[Arrays], company: tuple[int, ...], answer: NDArray[Any]
    ) -> str:
        if answer.shape[:1] != (len(company),):
            return f"output '{name}' has the shape {list(answer.shape)} for a batch of {len(company)}"
        for place, row in enumerate(company):
            expected, actual = rows[row][name], answer[place : place + 1]
            if expected.shape != actual.shape:
                return f"the shape of output '{name}' depends on what else is in the batch"
            copies = partial(self._beside_itself, name, feed, row, len(company), place)
            if self.seen[name].differs(expected, actual, copies):
                return f"a row's output '{name}' depends on what else is in the batch"
        return ""

    def _beside_itself(self, name: str, feed: Arrays, row: int, size: int, place: int) -> NDArray[Any]:
        """Return the response for a row in a batch of copies of itself."""
        key = (id(feed), row, size)
        if key not in self.copies:
            self.copies[key] = self.together(picked(feed, [row] * size))
        return self.copies[key][name][place : place + 1]

    def verdict(self) -> BatchingVerdict:
        """Return the verdict of all sets together, none of which showed a difference."""
        for name, seen in self.seen.items():
            if seen.is_unequal:
                return BatchingVerdict(False, f"a row's output '{name}' depends on what else is in the batch")
            if not seen.reacts:
                return BatchingVerdict(
                    None,
                    f"output '{name}' was the same for all inputs that were tried, which is no evidence; try real ones "
                    "with --inputs FILE",
                )
        sizes = sorted({len(company) for company in _COMPANIES})
        return BatchingVerdict(True, f"rows were answered in batches of {', '.join(map(str, sizes))} as alone")


def _scaled(feed: Arrays, factors: tuple[float, ...]) -> Arrays | None:
    """Rows of unlike loudness; None where there is nothing to scale."""
    if not any(is_float(array) for array in feed.values()):
        return None
    scaled = {}
    with np.errstate(over="ignore"):
        for name, array in feed.items():
            shape = (-1,) + (1,) * (array.ndim - 1)
            factor = np.array(factors).reshape(shape)
            scaled[name] = (array * factor).astype(array.dtype) if is_float(array) else array
    return scaled


def _poisoned(feed: Arrays) -> Arrays | None:
    """One row with nothing but NaN."""
    if not any(is_float(array) for array in feed.values()):
        return None
    poisoned = {name: array.copy() for name, array in feed.items()}
    for array in poisoned.values():
        if is_float(array):
            array[1] = np.nan
    return poisoned


def _equal(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return left.shape == right.shape and (excess(left, right) <= 1 if is_float(left) else np.array_equal(left, right))
