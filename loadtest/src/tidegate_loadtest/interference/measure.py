"""Runs models on shares of one GPU, alone and beside each other, through the Tritons that have those shares.

A share is a Triton's for as long as it lives (MPS), so there is one Triton for each share, all with the same models and
idle unless they are measured. A model's time is that between two of its answers while it always has a request to run.
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
"""Requests of a model: while one runs the next one waits in its Triton, so that the GPU waits for nobody."""
MIN_ANSWERS = 5
"""An answer in the window besides the first tells of one batch: the mean of fewer says little."""

Progress = Callable[[str], None]
"""Called with what is measured now."""

Placed = tuple[Tenant, int]
"""A tenant, and the number of the Triton that runs it: two of them may have equal shares."""


async def check_alone(connection: Connection, model: str) -> int:
    """The largest batch of a model. Raises LoadTestError where its Triton runs several at once, or merges any."""
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
    """What to run together: `number` groups for each model, who else is in them drawn by the seed.

    `models`: the batches of each; `percents`: the shares of the Tritons, by their numbers. Shares of a group exceed
    100 % together only where all do. Raises LoadTestError for fewer Tritons than a group has members.
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
    """The Tritons of one GPU, each with a share of it."""

    def __init__(self, tritons: Sequence[Connection], shapes: Shapes, *, warmup_s: float, window_s: float) -> None:
        """`shapes`: of the inputs that models leave open, by name."""
        self._tritons, self._shapes = tritons, shapes
        self._warmup_ns, self._window_ns = round(warmup_s * 1e9), round(window_s * 1e9)

    async def alone(self, planned: Sequence[Placed], progress: Progress) -> list[SoloRun]:
        """Run each of them by itself. Raises LoadTestError."""
        runs = []
        for placed in planned:
            tenant, _ = placed
            progress(f"{tenant.partition}, {tenant.rows} rows on {tenant.percent:g} %")
            (taken_ms,) = await self._together([placed])
            runs.append(SoloRun(tenant.partition, tenant.rows, tenant.percent, taken_ms))
        return runs

    async def beside(self, planned: Sequence[tuple[Placed, ...]], progress: Progress) -> list[CoRun]:
        """Run each of these groups. Raises LoadTestError."""
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
