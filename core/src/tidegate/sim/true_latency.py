"""True latency and failures of stages, which simulated workers know and policies do not."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tidegate.api import NS_PER_MS, ProfileKey
from tidegate.engine import StartStage
from tidegate.schemas import Tenant
from tidegate.workload import stream
from tidegate.workload.distributions import lognormal_parameters
from tidegate.workload.simulated import FailureSpec, JitterSpec, NetworkSpec, StallSpec

Combine = Literal["max", "sum", "padded"]


@dataclass(frozen=True)
class SimulatedWorker:
    """A simulated worker: shared resources and random factors."""

    id: int
    device_class: str = "default"
    gpu: Hashable = None
    """Key of the GPU: busy workers with equal keys slow each other down; None: not shared."""
    percent: float = 100
    """Percentage of the GPU's compute units."""
    jitter: Callable[[], float] | None = None
    """Draws the latency factor of the next stage; None: always 1."""
    delay_ns: Callable[[int], int] | None = None
    """Draws the delay in ns of the next stage of given rows, besides execution; None: none."""
    fails: Callable[[], bool] | None = None
    """Draws whether the next stage fails; None: it never does."""


@dataclass(frozen=True)
class ConstantSlowdown:
    """Interference by a constant factor for workers with a busy neighbor, whatever the models."""

    factor: float

    def slowdown(self, tenant: Tenant, neighbors: Iterable[Tenant]) -> float:
        """Return the constant factor if there are neighbors, otherwise 1."""
        del tenant
        return self.factor if any(True for _ in neighbors) else 1.0


@dataclass(frozen=True)
class SlotSlowdown:
    """Interference of the busy slots of one worker: each slows the others by the same fraction."""

    fraction: float

    def slowdown(self, tenant: Tenant, neighbors: Iterable[Tenant]) -> float:
        """Return the factor beside these neighbors."""
        del tenant
        return 1 + self.fraction * sum(1 for _ in neighbors)


@dataclass(frozen=True)
class TrueLatency:
    """True latency of stages, which policies do not see."""

    tables_ns: Mapping[ProfileKey, Sequence[int]]
    """Latency of batches in ns by (partition, device class, shape), by rows - 1, without the times of requests."""
    times_ms: Sequence[float] | None = None
    """Additional latency of each request in ms, by id; None: none."""
    combine: Mapping[str, Combine] = field(default_factory=dict)
    """How additional latencies of a batch combine, by partition; `max` by default. Every stage adds them."""
    shapes: Sequence[str] | None = None
    """Shape of each request, by id; None: no shapes. Policies may know only shape classes."""
    streams_ns: Sequence[int] | None = None
    """Time from the first to the last response to each request, by id, in ns; None: each has one response."""

    def rest_ns(self, effect: StartStage) -> int:
        """Return the time from the first to the last response of a stage on an undisturbed worker, in ns."""
        return self.streams_ns[effect.batch.request_ids[0]] if self.streams_ns is not None else 0

    def stage_ns(self, effect: StartStage, worker: SimulatedWorker) -> int:
        """Return the duration of a stage on an undisturbed worker, in ns; at least 1."""
        batch, rows = effect.batch, effect.rows
        partition = batch.stages[effect.stage].partition
        shape = self.shapes[batch.request_ids[0]] if self.shapes is not None else ""
        took_ns: float = self.tables_ns[partition, worker.device_class, shape][rows - 1]
        times = self.times_ms
        if times is not None:
            carried = [times[request_id] for request_id in batch.request_ids]
            how = self.combine.get(partition, "max")
            carried_ms = sum(carried) if how == "sum" else max(carried) * (rows if how == "padded" else 1)
            took_ns += carried_ms * NS_PER_MS
        if worker.jitter is not None:
            took_ns *= worker.jitter()
        return max(1, round(took_ns))


def drawing_factors(
    jitter: JitterSpec | None, stalls: StallSpec | None, seed: int, worker: int
) -> Callable[[], float] | None:
    """Return a function that draws the ratio of a worker's latency to its expected latency; None: always 1.

    `seed`, `worker`: identify its random stream.
    """
    jittered, stalled = _drawing_jitter(jitter, seed, worker), _drawing_stalls(stalls, seed, worker)
    if jittered is None or stalled is None:
        return jittered or stalled
    return lambda: jittered() * stalled()


def _drawing_stalls(spec: StallSpec | None, seed: int, worker: int) -> Callable[[], float] | None:
    """Return a generator of the factors of stages during stalls of the host; 1 for other stages."""
    if spec is None or not spec.probability:
        return None
    rng, probability = stream(seed, "stalls", worker), spec.probability
    factor = spec.factor.drawing_from(stream(seed, "lengths of stalls", worker))
    return lambda: factor() if rng.random() < probability else 1.0


def _drawing_jitter(spec: JitterSpec | None, seed: int, worker: int) -> Callable[[], float] | None:
    """Return a generator of jitter factors of a worker's stages: mean 1, with its own random stream."""
    if spec is None:
        return None
    rng = stream(seed, "jitter", worker)
    if spec.distribution == "gamma":
        shape = 1 / spec.cv**2
        return lambda: rng.gammavariate(shape, 1 / shape)
    mu, sigma = lognormal_parameters(1.0, spec.cv)
    return lambda: rng.lognormvariate(mu, sigma)


def drawing_delays(spec: NetworkSpec | None, seed: int, worker: int) -> Callable[[int], int] | None:
    """Return a function that draws delays of a worker's stages in ns, by rows; None: no delays.

    `seed`, `worker`: identify its random stream.
    """
    if spec is None:
        return None
    control_ns, per_row_ns = spec.control_ms * NS_PER_MS, spec.data_ms_per_row * NS_PER_MS
    if not spec.jitter_ms:
        return lambda rows: round(control_ns + per_row_ns * rows)
    rng, per_ns = stream(seed, "network", worker), 1 / (spec.jitter_ms * NS_PER_MS)
    return lambda rows: round(control_ns + per_row_ns * rows + rng.expovariate(per_ns))


def drawing_failures(spec: FailureSpec | None, seed: int, worker: int) -> Callable[[], bool] | None:
    """Return a function that draws whether a worker's next stage fails; None: never.

    `seed`, `worker`: identify its random stream.
    """
    if spec is None or not spec.probability:
        return None
    rng, probability = stream(seed, "failures", worker), spec.probability
    return lambda: rng.random() < probability
