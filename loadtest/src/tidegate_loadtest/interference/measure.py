"""Measurement of models on shares of one GPU, alone and together, through the Tritons that have those shares.

A Triton keeps its share for its lifetime (MPS), so there is one Triton for each share, all with the same models and
idle unless measured. A model's latency is the time between two responses while a request is always queued.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, count
from random import Random

from tidegate.schemas import Tenant
from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.interference.runs import CoRun, SoloRun
from tidegate_loadtest.model_inputs import RandomRequests
from tidegate_loadtest.shapes import Shapes

IN_FLIGHT = 2
"""Requests in flight per model: one runs while the next one waits in its Triton, so that the GPU never idles."""
MIN_ANSWERS = 5
"""Smallest number of responses in the window; the mean of fewer is unreliable."""

Progress = Callable[[str], None]
"""Progress callback, called with the name of the current measurement."""

Placed = tuple[Tenant, int]
"""Tenant, and the index of the Triton that runs it: two of them may have equal shares."""


async def check_alone(connection: Connection, model: str) -> int:
    """Return the largest batch of a model.

    Raises LoadTestError if its Triton has several instances or batches dynamically.
    """
    config = await connection.model_config(model)
    if (instances := sum(group.count for group in config.instance_group)) > 1:
        raise LoadTestError(
            f"{connection.target}: model {model!r} has {instances} instances, which disturb each other: measure one"
        )
    if config.HasField("dynamic_batching") or config.HasField("sequence_batching"):
        raise LoadTestError(
            f"{connection.target}: Triton merges requests of model {model!r}: measure without its batcher"
        )
    return max(1, int(config.max_batch_size))


def groups(
    models: Mapping[str, Sequence[int]], percents: Sequence[float], *, number: int, size: int, seed: int
) -> list[tuple[Placed, ...]]:
    """Choose `number` groups of models to run together for each model, the other members drawn by `seed`.

    `models`: batch sizes of each; `percents`: shares of the Tritons, by index. Shares of a group exceed 100 % together
    only if all groups do. Raises LoadTestError if there are fewer Tritons than members of a group.
    """
    if len(percents) < size:
        raise LoadTestError(f"{size} models beside each other need {size} Tritons, each with a share: give more")
    every = [*combinations(range(len(percents)), size)]
    fit = [tritons for tritons in every if sum(percents[triton] for triton in tritons) <= 100] or every
    rng = Random(seed)
    planned = []
    for _ in range(number):
        for first in models:
            names = [first, *(rng.choice([*models]) for _ in range(size - 1))]
            tritons = rng.sample(rng.choice(fit), size)
            planned.append(
                tuple(
                    (Tenant(name, rng.choice(models[name]), percents[triton]), triton)
                    for name, triton in zip(names, tritons, strict=True)
                )
            )
    return planned


class SharedGpu:
    """Tritons of one GPU, each with a share of it."""

    def __init__(self, tritons: Sequence[Connection], shapes: Shapes, *, warmup_s: float, window_s: float) -> None:
        """Prepare the measurement. `shapes`: sizes of dynamic input dimensions, by input name."""
        self._tritons, self._shapes = tritons, shapes
        self._warmup_ns, self._window_ns = round(warmup_s * 1e9), round(window_s * 1e9)

    async def alone(self, planned: Sequence[Placed], progress: Progress) -> list[SoloRun]:
        """Measure each model alone. Raises LoadTestError."""
        runs = []
        for placed in planned:
            tenant, _ = placed
            progress(f"{tenant.partition}, {tenant.rows} rows on {tenant.percent:g} %")
            (taken_ms,) = await self._together([placed])
            runs.append(SoloRun(tenant.partition, tenant.rows, tenant.percent, taken_ms))
        return runs

    async def beside(self, planned: Sequence[tuple[Placed, ...]], progress: Progress) -> list[CoRun]:
        """Measure each group of models together. Raises LoadTestError."""
        runs = []
        for group in planned:
            tenants = tuple(tenant for tenant, _ in group)
            progress(" beside ".join(f"{tenant.partition} on {tenant.percent:g} %" for tenant in tenants))
            runs.append(CoRun(tenants, tuple(await self._together(group))))
        return runs

    async def _together(self, group: Sequence[Placed]) -> list[float]:
        """Milliseconds of a batch of each while all of them are busy."""
        requests = [await self._requests(*placed) for placed in group]
        begin_ns = time.perf_counter_ns() + self._warmup_ns
        end_ns = begin_ns + self._window_ns
        answers = await asyncio.gather(
            *(self._keep_busy(triton, mine, end_ns) for (_, triton), mine in zip(group, requests, strict=True))
        )
        taken_ms = []
        for (tenant, _), instants in zip(group, answers, strict=True):
            seen = [instant for instant in instants if begin_ns <= instant <= end_ns]
            if len(seen) < MIN_ANSWERS:
                raise LoadTestError(
                    f"{tenant.partition}, {tenant.rows} rows on {tenant.percent:g} %: {len(seen)} answers in "
                    f"{self._window_ns / 1e9:g} s are too few to measure by: give a longer --window-s"
                )
            taken_ms.append((seen[-1] - seen[0]) / (len(seen) - 1) / 1e6)
        return taken_ms

    async def _requests(self, tenant: Tenant, triton: int) -> RandomRequests:
        connection = self._tritons[triton]
        declared = {tensor.name for tensor in (await connection.model_metadata(tenant.partition)).inputs}
        shapes = {name: shape for name, shape in self._shapes.items() if name in declared}
        return await RandomRequests.for_model(connection, tenant.partition, rows=tenant.rows, shapes=shapes, seed=0)

    async def _keep_busy(self, triton: int, requests: RandomRequests, end_ns: int) -> list[int]:
        """The instants of a model's answers until then."""
        connection, numbers, instants = self._tritons[triton], count(), list[int]()

        async def call() -> None:
            while time.perf_counter_ns() < end_ns:
                await connection.ask(connection.stubs[0].ModelInfer(requests(next(numbers))))
                instants.append(time.perf_counter_ns())

        await asyncio.gather(*(call() for _ in range(IN_FLIGHT)))
        return instants
