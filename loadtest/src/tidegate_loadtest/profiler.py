"""Profiler: measures a model's latency by shape and rows, through its server, for schedulers.

It sends one request at a time, so that nothing queues. The latency includes the network latency to the server, which a
proxy in front of it sees too.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import grpc
import numpy as np

from tidegate.schemas import DEFAULT_DEVICE_CLASS, ModelProfile, ProfilePoint, format_shape
from tidegate_loadtest.connection import AsksForModels, Connection, LoadTestError
from tidegate_loadtest.input_files import FileRequests, Tensors, inputs_of_model
from tidegate_loadtest.model_inputs import DISTINCT_REQUESTS, LIMITS_PARAMETER, RandomRequests, RandomValues
from tidegate_loadtest.requested_shapes import Dimensions, RequestedShape

Progress = Callable[[int, str], None]
"""Progress callback, called with (requests measured so far, name of the current measurement)."""

ANSWER_WITHIN_S = 600.0
"""Request timeout in seconds, after which a measurement fails."""
OF_VALUES = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
"""Statuses with which a model may reject values that it cannot take."""
MEASUREMENT_ROUNDS = 5
"""Number of rounds over all shapes and batch sizes."""
WARM_UP_SHARE = 0.2
"""Fraction of the samples sent first and discarded: first executions allocate, compile and fill caches."""


def default_sizes(max_rows: int) -> list[int]:
    """Return the powers of two up to the largest batch, and that batch."""
    powers = [2**exponent for exponent in range(max_rows.bit_length()) if 2**exponent < max_rows]
    return [*powers, max_rows]


async def sizes_to_measure(connection: Connection, model: str, asked: Sequence[int] | None) -> list[int]:
    """Return the batch sizes to measure. Raises LoadTestError if the model does not batch, or not that many rows.

    `asked`: requested batch sizes in rows, empty: a standard set.
    """
    max_rows = (await connection.model_config(model)).max_batch_size
    if max_rows < 1:
        raise LoadTestError(f"model {model!r} has max_batch_size 0: it has no rows to measure latency against")
    if asked and max(asked) > max_rows:
        raise LoadTestError(f"model {model!r} takes at most {max_rows} rows, not {max(asked)}")
    return sorted(set(asked)) if asked else default_sizes(max_rows)


async def shapes_to_measure(
    connection: AsksForModels, model: str, asked: Sequence[RequestedShape]
) -> dict[str, RequestedShape]:
    """Return the shapes to measure, each once, by their text; without any, the model must have no dynamic dimensions.

    Raises LoadTestError, with the source of the shape, for one that does not fit the model.
    """
    shapes: dict[str, RequestedShape] = {}
    for each in asked or (RequestedShape("", {}, ""),):
        try:
            shapes.setdefault(await shape_to_measure(connection, model, each.dimensions), each)
        except LoadTestError as error:
            if asked:
                raise LoadTestError(f"{each.source}: {error}") from error
            raise LoadTestError(f"{error}, or take it from recorded traffic: --shapes-from EVENT_LOG") from error
    return shapes


async def shape_to_measure(connection: AsksForModels, model: str, dimensions: Dimensions) -> str:
    """Return the shape text of requests whose inputs have these dimensions, as Tidegate derives it.

    It names the inputs with dynamic dimensions, and no others; "" if there are none. Raises LoadTestError for an
    unknown model or input, and for dimensions that are still dynamic or contradict the model's.
    """
    requests = await RandomRequests.for_model(connection, model, rows=1, shapes=dimensions, seed=0, distinct=1)
    varies = await _open_inputs(connection, model)
    return format_shape({sent.name: sent.shape[1:] for sent in requests(0).inputs if sent.name in varies})


async def files_by_shape(connection: AsksForModels, model: str, folder: Path) -> dict[str, list[Tensors]]:
    """Read a folder of inputs by shape, as Tidegate derives it from requests; the most frequent shape is first.

    Raises LoadTestError as `FileRequests.for_model` does.
    """
    varies = await _open_inputs(connection, model)
    files: dict[str, list[Tensors]] = {}
    for application in (await inputs_of_model(connection, model, folder)).values():
        for tensors in application:
            text = format_shape({name: array.shape for name, array in tensors.items() if name in varies})
            files.setdefault(text, []).append(tensors)
    return dict(sorted(files.items(), key=lambda item: -len(item[1])))


async def _open_inputs(connection: AsksForModels, model: str) -> set[str]:
    """Give the inputs that have open dimensions beside the rows."""
    declared = (await connection.model_metadata(model)).inputs
    return {tensor.name for tensor in declared if any(size < 0 for size in tensor.shape[1:])}


async def accepted_values(connection: Connection, model: str, dimensions: Dimensions) -> RandomValues:
    """Find random values that a model accepts: an index into a small table, say, must be small.

    Raises LoadTestError with the first error if it accepts none.
    """
    refusal: LoadTestError | None = None
    for values in RandomValues:
        requests = await RandomRequests.for_model(
            connection, model, rows=1, shapes=dimensions, seed=0, distinct=1, values=values
        )
        try:
            await connection.ask(connection.stubs[0].ModelInfer(requests(0), timeout=ANSWER_WITHIN_S))
        except LoadTestError as error:
            if not isinstance(error.__cause__, grpc.aio.AioRpcError) or error.__cause__.code() not in OF_VALUES:
                raise
            refusal = refusal or error
        else:
            return values
    raise LoadTestError(
        f"{refusal}; it refuses the values 0 and 1, ones and zeros, too: bound its integers by {LIMITS_PARAMETER} in "
        f"its config.pbtxt, or measure with real inputs: --inputs {model}=FOLDER"
    )


async def measure_profiles(
    connection: Connection,
    model: str,
    sizes: Sequence[int],
    shapes: Sequence[Dimensions],
    *,
    samples: int,
    files: Mapping[str, Sequence[Tensors]] | None = None,
    device_class: str = DEFAULT_DEVICE_CLASS,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[ModelProfile]:
    """Measure `samples` requests of every shape and batch size, after a warm-up; fit a straight line to the medians.

    The measurements are interleaved, so that a temporary disturbance affects all of them alike.

    `sizes`: batch sizes in rows; `shapes`: for each, the dimensions of the inputs with open dimensions. `files`: real
    inputs for each shape, by its text; without them tensors are random. `device_class`: that of the workers. `seed`:
    seed of random tensors; `progress`: progress callback. Raises LoadTestError for an unknown model or dimensions that
    do not fit, and for a request that fails.
    """
    texts = [await shape_to_measure(connection, model, dimensions) for dimensions in shapes]
    values = RandomValues.DRAWN if files else await accepted_values(connection, model, shapes[0])
    latencies_ms: dict[tuple[int, int], list[float]] = {(at, rows): [] for at in range(len(shapes)) for rows in sizes}
    turns, done = min(MEASUREMENT_ROUNDS, samples), 0
    for turn in range(turns):
        warm_up = max(2, round(samples * WARM_UP_SHARE)) if turn == 0 else 1
        wanted = samples * (turn + 1) // turns - samples * turn // turns
        for (at, rows), taken_ms in latencies_ms.items():
            requests: FileRequests | RandomRequests
            distinct = min(wanted, DISTINCT_REQUESTS)
            if files:
                requests = FileRequests(model, {"": files[texts[at]]}, rows=rows, seed=seed + turn, distinct=distinct)
            else:
                requests = await RandomRequests.for_model(
                    connection,
                    model,
                    rows=rows,
                    shapes=shapes[at],
                    seed=seed + turn,
                    distinct=distinct,
                    values=values,
                )
            for index in range(-warm_up, wanted):
                start_ns = time.perf_counter_ns()
                await connection.ask(connection.stubs[0].ModelInfer(requests(index), timeout=ANSWER_WITHIN_S))
                if index >= 0:
                    taken_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
                    done += 1
                if progress:
                    progress(done, f"{texts[at]} {rows} rows".strip())
    profiles = []
    for at, text in enumerate(texts):
        points = [_point(rows, latencies_ms[at, rows]) for rows in sizes]
        alpha_ms, beta_ms = (round(value, 4) for value in fit_line(points))
        profiles.append(
            ModelProfile(
                model=model, device_class=device_class, shape=text, alpha_ms=alpha_ms, beta_ms=beta_ms, points=points
            )
        )
    return profiles


def _point(rows: int, taken_ms: Sequence[float]) -> ProfilePoint:
    median_ms, p95_ms = (round(float(value), 4) for value in np.percentile(taken_ms, [50, 95]))
    return ProfilePoint(rows=rows, median_ms=median_ms, p95_ms=p95_ms, samples=len(taken_ms))


def fit_line(points: Sequence[ProfilePoint]) -> tuple[float, float]:
    """Fit `l(b) = alpha*b + beta` to the medians, in ms, by least squares on the relative error, both non-negative."""
    sizes, medians = np.array([point.rows for point in points], float), np.array([point.median_ms for point in points])
    if len(set(sizes)) > 1:
        slope, offset = (float(value) for value in np.polyfit(sizes, medians, 1, w=1 / medians))
        if slope >= 0 and offset >= 0:
            return slope, offset
        if slope > 0:
            return float(np.mean(medians / sizes)), 0.0
    return 0.0, float(np.mean(medians))
