"""Latency of batches in a recording, used as the true latency when the recording is simulated.

Initial profiles may be guesses and contain no unmeasured shapes.
"""

from collections import defaultdict
from math import prod
from statistics import fmean, linear_regression, median
from typing import Any

from tidegate.api import NS_PER_MS, Profile, Setup
from tidegate.observation import OutcomeListener, StartStage
from tidegate.schemas import read_shape

MIN_STAGES = 20
"""Minimum number of observed stages for which the observed latency replaces the initial one."""
ENOUGH_OF_A_SIZE = 3
"""Minimum number of stages of one batch size for a usable median."""
MAX_GUESS_RATIO = 2.0
"""Ratio between observed and initial latency above which the initial one was a guess."""

STALL_RATIO = 3.0
"""Ratio between the duration of a stage and the median of its size above which it stalled."""


class ObservedLatencies(OutcomeListener):
    """Durations of recorded stages by model, device class, shape and rows."""

    def __init__(self, setup: Setup) -> None:
        self._known = {profile.key: profile for profile in setup.profiles}
        self._kinds = {worker.id: worker.device_class for worker in setup.workers}
        self._took_ms: defaultdict[tuple[str, str, str], defaultdict[int, list[float]]]
        self._took_ms = defaultdict(lambda: defaultdict(list))

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Add the duration of a stage from `started_ns` to `ended_ns`; a few failed stages do not change a median."""
        stage = effect.batch.stages[effect.stage]
        device_class = self._kinds.get(stage.worker_id)
        if device_class is not None and ended_ns > started_ns:
            took_ms = (ended_ns - started_ns) / NS_PER_MS
            self._took_ms[stage.partition, device_class, effect.shape][effect.rows].append(took_ms)

    def points_ms(self, model: str, device_class: str, shape: str, max_rows: int) -> dict[int, float] | None:
        """Return the latency in ms by rows, up to `max_rows`: observed, otherwise initial; None if unknown.

        `device_class`: device class; `shape`: shape of the requests.
        """
        known = self._known.get((model, device_class, shape))
        medians = self._medians(model, device_class, shape)
        if not medians:
            return None if known is None else _points(known, 1.0)
        if len(medians) == 1:
            ((rows, took_ms),) = medians.items()
            like = self._similar(model, device_class, shape, max_rows)
            if (
                known is not None
                and 1 / MAX_GUESS_RATIO < took_ms * NS_PER_MS / known.expected_ns(rows) < MAX_GUESS_RATIO
            ):
                like = known  # it was measured, not guessed
            if like is None:  # at most, latency grows in proportion to rows
                return {rows: took_ms} | ({max_rows: took_ms * max_rows / rows} if rows < max_rows else {})
            return _points(like, took_ms * NS_PER_MS / like.expected_ns(rows))
        largest = max(medians)
        slope_ms = max(0.0, linear_regression(list(medians), list(medians.values())).slope)
        if largest < max_rows:
            medians[max_rows] = medians[largest] + slope_ms * (max_rows - largest)
        return medians

    def _medians(self, model: str, device_class: str, shape: str) -> dict[int, float]:
        """Medians by rows; empty where too little ran."""
        table: dict[int, list[float]] = self._took_ms.get((model, device_class, shape), {})
        if sum(map(len, table.values())) < MIN_STAGES:
            return {}
        return {rows: median(took) for rows, took in sorted(table.items()) if len(took) >= ENOUGH_OF_A_SIZE}

    def _similar(self, model: str, device_class: str, shape: str, max_rows: int) -> Profile | None:
        """Return the latency of the most similar shape that ran at several batch sizes; None if there is none."""
        others = {
            other: medians
            for name, its, other in self._took_ms
            if (name, its) == (model, device_class) and len(medians := self._medians(model, device_class, other)) > 1
        }
        if not others:
            return None
        points_ms = others[_most_similar(shape, others)]
        return Profile.from_points(model, points_ms, max_rows=max_rows, device_class=device_class, shape=shape)

    def stalls(self) -> dict[str, float] | None:
        """Return how often stages stall, and for how many times their median, for a scenario; None: never."""
        ratios = [
            took_ms / medians[rows]
            for (model, device_class, shape), table in self._took_ms.items()
            if (medians := self._medians(model, device_class, shape))
            for rows, durations in table.items()
            if rows in medians
            for took_ms in durations
        ]
        stalled = [ratio for ratio in ratios if ratio >= STALL_RATIO]
        if not stalled:
            return None
        return {"probability": round(len(stalled) / len(ratios), 5), "factor": round(fmean(stalled), 2)}

    def of_model(self, model: str, counts: dict[str, int], max_rows: int) -> dict[str, Any]:
        """Return the `profiles` and `shapes` of a model for a scenario.

        `counts`: number of its requests by shape; `max_rows`: largest batch. Empty if nothing is known. An unknown
        shape gets the latency of the most similar one.
        """
        kinds = sorted(
            {device_class for partition, device_class, _ in (*self._known, *self._took_ms) if partition == model}
        )
        tables = {
            shape: {
                device_class: {"points_ms": points}
                for device_class in kinds
                if (points := self.points_ms(model, device_class, shape, max_rows)) is not None
            }
            for shape in {"", *counts}
        }
        shaped = {shape: table for shape, table in tables.items() if shape and len(table) == len(kinds)}
        base = tables[""]
        if shaped and "" not in counts:  # of no shape nothing runs: it only has to be there
            base = shaped[max(shaped, key=lambda shape: counts[shape])]
        if not base or not any(counts):
            return {"profiles": base} if base else {}
        return {
            "profiles": base,
            "shapes": [
                {
                    "shape": shape,
                    "weight": count,
                    "profiles": shaped.get(shape, base if not shaped else shaped[_most_similar(shape, shaped)]),
                }
                for shape, count in sorted(counts.items())
                if shape
            ],
        }


def _points(known: Profile, factor: float) -> dict[int, float]:
    rows = {2**power for power in range(known.max_rows.bit_length())} | {known.max_rows}
    return {each: factor * known.expected_ns(each) / NS_PER_MS for each in sorted(rows)}


def _most_similar(shape: str, known: dict[str, Any]) -> str:
    """The one of these whose rows have the most similar number of elements."""
    size = _elements(shape)
    return min(known, key=lambda each: (abs(_elements(each) - size), each))


def _elements(shape: str) -> int:
    """The elements of a row; 0 where a label says only how a shape begins."""
    try:
        return sum(map(prod, read_shape(shape).values()))
    except ValueError:
        return 0
