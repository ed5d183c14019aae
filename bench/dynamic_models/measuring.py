"""Single-caller latency, one request at a time: latency of the inputs alone, and latency that Tidegate adds."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np

from bench.dynamic_models.case import Case
from tidegate.schemas import format_shape
from tidegate_loadtest.comparison.intervals import ConfidenceInterval, difference_of, mean_of
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.input_files import FileRequests, Tensors, inputs_of_model
from tidegate_loadtest.open_loop import RequestFactory

Shown = Callable[[float, str], None]
"""Callback for progress: amount done, and a description of the current step."""

SIZES = (1, 2, 4, 8)
"""Batch sizes in requests."""
SAMPLES, BUDGET_S = 12, 20.0
"""Executions per shape and batch size, and a time limit in seconds, after which there are fewer, at least three."""
ALONE_S = 5.0


@dataclass(frozen=True)
class Alone:
    """Latency of a model's inputs in ms, through an otherwise idle Triton."""

    mean_ms: float
    """Mean of requests drawn at random, one after the other."""
    p99_ms: float
    by_shape: Mapping[str, tuple[int, Mapping[int, float]]]
    """By shape: the number of files, and the median by batch size in requests.

    A shape has only dimensions that vary.
    """


@dataclass(frozen=True)
class SingleCaller:
    """Latencies of a single caller at two alternating servers in ms, with a value of each for every round."""

    base: str
    target: str
    p50_ms: Mapping[str, ConfidenceInterval]
    p99_ms: Mapping[str, ConfidenceInterval]
    difference_ms: ConfidenceInterval
    """Median of the target minus median of the base."""


async def measure_alone(address: str, case: Case, folder: Path, *, progress: Shown | None = None) -> Alone:
    """Measure the latencies of a model on an otherwise idle Triton.

    Args:
        address: HOST:PORT of its gRPC.
        case: the model.
        folder: its inputs.
        progress: called with the share done, 0 to 1.
    """
    async with Connection(address) as connection:
        request_of = await FileRequests.for_model(connection, case.model, folder, rows=case.rows, seed=0)
        await _ask(connection, request_of, 0)
        began, taken_ms = time.perf_counter(), list[float]()
        while time.perf_counter() - began < ALONE_S or len(taken_ms) < SAMPLES:
            taken_ms.append(await _ask(connection, request_of, len(taken_ms)))
        shapes = _by_shape(await inputs_of_model(connection, case.model, folder))
        points = [(shape, size) for shape in shapes for size in SIZES if size * case.rows <= case.max_batch]
        medians: dict[str, dict[int, float]] = {shape: {} for shape in shapes}
        for number, (shape, size) in enumerate(points):
            of_shape = FileRequests(case.model, {"": shapes[shape]}, rows=size * case.rows, seed=0)
            medians[shape][size] = await _median_ms(connection, of_shape, BUDGET_S / len(points))
            if progress:
                progress((number + 1) / len(points), f"{shape} {size} at a time".strip())
    by_shape = {shape: (len(files), medians[shape]) for shape, files in shapes.items()}
    return Alone(fmean(taken_ms), float(np.percentile(taken_ms, 99)), by_shape)


async def ask_in_turn(
    base: Target,
    target: Target,
    case: Case,
    folder: Path,
    *,
    rounds: int,
    requests: int,
    progress: Shown | None = None,
) -> SingleCaller:
    """Send every request to both servers, alternating which comes first; return the single caller's latencies.

    Args:
        base: the reference.
        target: the server compared with it.
        case: the model.
        folder: its inputs.
        rounds: number of repetitions.
        requests: number of requests per round.
        progress: called with the number of requests done, of rounds * requests.
    """
    p50s: dict[str, list[float]] = {base.name: [], target.name: []}
    p99s: dict[str, list[float]] = {base.name: [], target.name: []}
    async with Connection(base.address) as first, Connection(target.address) as second:
        for number in range(rounds):
            request_of = await FileRequests.for_model(first, case.model, folder, rows=case.rows, seed=number)
            taken_ms: dict[str, list[float]] = {base.name: [], target.name: []}
            order = [(base.name, first), (target.name, second)]
            for index in range(-2, requests):
                for name, connection in order:
                    ms = await _ask(connection, request_of, index)
                    if index >= 0:
                        taken_ms[name].append(ms)
                order.reverse()
                if progress:
                    progress(number * requests + max(0, index + 1), f"round {number + 1}")
            for name, values in taken_ms.items():
                p50s[name].append(median(values))
                p99s[name].append(float(np.percentile(values, 99)))
    difference = difference_of(list(zip(p50s[target.name], p50s[base.name], strict=True)))
    assert difference is not None, "a round at least"
    return SingleCaller(base.name, target.name, _intervals(p50s), _intervals(p99s), difference)


def _by_shape(files: Mapping[str, Sequence[Tensors]]) -> dict[str, list[Tensors]]:
    """The files of all applications by shape: of the inputs that have several."""
    every = [tensors for own in files.values() for tensors in own]
    varies = {name for name in every[0] if len({tensors[name].shape for tensors in every}) > 1}
    shapes: dict[str, list[Tensors]] = {}
    for tensors in every:
        shapes.setdefault(format_shape({name: tensors[name].shape for name in varies}), []).append(tensors)
    return dict(sorted(shapes.items(), key=lambda item: sum(array.size for array in item[1][0].values())))


async def _median_ms(connection: Connection, request_of: RequestFactory, budget_s: float) -> float:
    await _ask(connection, request_of, 0)
    began, taken_ms = time.perf_counter(), list[float]()
    while len(taken_ms) < SAMPLES and (len(taken_ms) < 3 or time.perf_counter() - began < budget_s):
        taken_ms.append(await _ask(connection, request_of, len(taken_ms)))
    return median(taken_ms)


async def _ask(connection: Connection, request_of: RequestFactory, index: int) -> float:
    """Milliseconds until the answer is there."""
    began = time.perf_counter()
    await connection.ask(connection.stubs[0].ModelInfer(request_of(index)))
    return (time.perf_counter() - began) * 1e3


def _intervals(values: Mapping[str, Sequence[float]]) -> dict[str, ConfidenceInterval]:
    return {name: interval for name, each in values.items() if (interval := mean_of(each))}
