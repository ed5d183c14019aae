"""Measures how long a model runs, by rows, through the server that serves it: what schedulers plan with.

One request at a time, so that nothing waits for anything: the latency includes the way to the server and back, which
is what a proxy in front of it sees too.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from tidegate.documents import ModelProfile, Point
from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.model_inputs import RandomRequests
from tidegate_loadtest.shapes import Shapes

Progress = Callable[[int, int], None]
"""Called with (rows, requests measured so far at this size)."""

WARM_UP_SHARE = 0.2
"""The share of the samples that are sent first and thrown away: first runs allocate, compile and fill caches."""


def default_sizes(max_rows: int) -> list[int]:
    """Powers of two, and the largest batch."""
    powers = [2**exponent for exponent in range(max_rows.bit_length()) if 2**exponent < max_rows]
    return [*powers, max_rows]


async def sizes_to_measure(connection: Connection, model: str, asked: Sequence[int] | None) -> list[int]:
    """The batch sizes to measure. Raises LoadTestError where the model cannot be batched, or not that far."""
    max_rows = (await connection.model_config(model)).max_batch_size
    if max_rows < 1:
        raise LoadTestError(f"model {model!r} has max_batch_size 0: it has no rows to measure latency against")
    if asked and max(asked) > max_rows:
        raise LoadTestError(f"model {model!r} takes at most {max_rows} rows, not {max(asked)}")
    return sorted(set(asked)) if asked else default_sizes(max_rows)


async def measure_profile(
    connection: Connection,
    model: str,
    sizes: Sequence[int],
    *,
    samples: int,
    shapes: Shapes,
    seed: int = 0,
    progress: Progress | None = None,
) -> ModelProfile:
    """Measure `samples` requests of every size, after a warm-up; fit a straight line through the medians.

    Raises LoadTestError for an unknown model or a shape that does not fit, and for a request that fails.
    """
    points = []
    for rows in sizes:
        requests = await RandomRequests.for_model(connection, model, rows=rows, shapes=shapes, seed=seed)
        warm_up = max(2, round(samples * WARM_UP_SHARE))
        latencies_ms = []
        for index in range(-warm_up, samples):
            request = requests(index)
            start_ns = time.perf_counter_ns()
            await connection.ask(connection.stubs[0].ModelInfer(request))
            if index >= 0:
                latencies_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
            if progress:
                progress(rows, max(0, index + 1))
        median_ms, p95_ms = (float(value) for value in np.percentile(latencies_ms, [50, 95]))
        points.append(Point(rows=rows, median_ms=round(median_ms, 4), p95_ms=round(p95_ms, 4), samples=samples))
    alpha_ms, beta_ms = fit_line(points)
    return ModelProfile(model=model, alpha_ms=round(alpha_ms, 4), beta_ms=round(beta_ms, 4), points=points)


def fit_line(points: Sequence[Point]) -> tuple[float, float]:
    """`l(b) = alpha*b + beta` through the medians, in ms, by least squares on the relative error; neither negative."""
    rows = np.array([point.rows for point in points], float)
    medians = np.array([point.median_ms for point in points])
    if len(points) > 1:
        alpha, beta = (float(value) for value in np.polyfit(rows, medians, 1, w=1 / medians))
        if alpha >= 0 and beta >= 0:
            return alpha, beta
        if alpha > 0:
            return float(np.mean(medians / rows)), 0.0
    return 0.0, float(np.mean(medians))
