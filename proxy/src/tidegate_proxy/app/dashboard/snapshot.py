"""Messages to the page at each tick, as JSON. Times are milliseconds from the source's beginning."""

from typing import Final, Literal, NamedTuple

import msgspec

from tidegate.report.number_format import shortened

MAX_NAME: Final = 160
"""Length limit of the names of models and reasons, which clients and policies choose."""


class ModelRow(msgspec.Struct, frozen=True):
    """Figures of one model over the window; None: nothing happened that would determine the figure."""

    name: str
    slo_ms: float | None
    rate_rps: float
    """Requests that ended per second."""
    on_time: float | None
    """Fraction that was answered on time, of those that were not cancelled."""
    late: int
    dropped: int
    failed: int
    waiting: int
    p50_ms: float | None
    p99_ms: float | None
    mean_rows: float | None
    sizes: dict[int, int]
    """Number of batches by rows."""
    gaps_on_time: float | None = None
    """Fraction of the streams since the start whose mean time between responses met its SLO."""


class WorkerRow(msgspec.Struct, frozen=True):
    """Figures of one worker over the window."""

    id: int
    """Id of its lane, which stays the same when a layout renumbers the worker."""
    name: str
    device_class: str
    state: str
    """State: `up`, `away`, or `ejected` (it failed and gets nothing for a while)."""
    busy: float
    """Fraction of the time in which it ran stages, the current one included."""
    running: int
    """Stages that run there or were sent."""


class ShapeRow(msgspec.Struct, frozen=True):
    """Batches of one shape and size, predicted against actual, over the last minute."""

    model: str
    partition: str
    shape: str
    device_class: str
    """Device class of the workers."""
    rows: int
    stages: int
    upper_ms: float
    """Upper latency that the policy used, averaged, in ms."""
    took_ms: float
    """Mean of the actual latency."""
    over: float
    """Fraction that took longer than predicted."""


class StageBar(NamedTuple):
    """Stage that has ended, for the Gantt chart. As there are many, all fields are integers; times in microseconds."""

    worker: int
    """Worker id."""
    model: int
    """Index of its model's name in the snapshot's names."""
    start_us: int
    took_us: int
    upper_us: int
    rows: int
    requests: int
    batch: int
    first_request: int
    """Id of one of its requests."""


class DecisionRow(msgspec.Struct, frozen=True):
    """Decision, or change of workers."""

    at_ms: float
    what: str
    """Type: `dispatch`, `drop`, `preempt`, `reroute`, `advise`, `policy replaced`, `joined`, `lost`, `plan`, ..."""
    why: str
    """Event that caused the decision."""
    model: str = ""
    worker: str = ""
    text: str = ""
    requests: int = 0
    request: int | None = None
    """Id of one request that it concerns."""


class BadRequestRow(msgspec.Struct, frozen=True):
    """Request that ended badly or nearly did, for the dashboard's list."""

    id: int
    model: str
    outcome: str
    ended_ms: float
    latency_ms: float
    late_ms: float | None
    """Lateness; negative: on time; None: it has no deadline, or no response."""
    reason: str


class RolloutSide(msgspec.Struct, frozen=True):
    """Outcomes of a model's requests, real or simulated, scheduled or bypassed."""

    name: str
    requests: int | None
    """Number of requests; None: simulated for the same ones."""
    on_time: float | None
    """Fraction that was on time; None if unknown."""
    p50_ms: float | None = None
    p99_ms: float | None = None


class RolloutRow(msgspec.Struct, frozen=True):
    """Model in shadow mode or with a canary."""

    model: str
    """Name; "" stands for all models with an SLO."""
    sides: list[RolloutSide]
    gain: tuple[float, float] | None
    """Bounds of the attainment gained by scheduling (0.01 is one percentage point); None: no statement."""
    why: str
    """Reason for no statement; else ""."""


class RolloutSection(msgspec.Struct, frozen=True):
    """Results of shadow mode (simulated) or a canary (a fraction of the time)."""

    mode: str
    policy: str
    fraction: float
    """Fraction of the time in which requests are scheduled, 0 to 1."""
    window_s: float | None
    """Window of the figures in seconds; None: the last ten minutes, or since the fraction changed."""
    rows: list[RolloutRow]
    more_rows: int
    note: str
    """Note for readers of the section."""


class TenantRow(msgspec.Struct, frozen=True):
    """Account of one tenant since Tidegate started."""

    name: str
    gpu_s: float
    """Worker time in seconds."""
    fraction: float
    """Fraction of the worker time of all tenants."""
    cost: float | None
    """Cost by the configured prices; None without prices."""
    rejections: int
    """Number of requests that its rate limit rejected."""


class DashboardSnapshot(msgspec.Struct, frozen=True):
    """State of the dashboard at one tick."""

    at_ms: float
    window_s: float
    """Window of models' and workers' figures, in seconds."""
    models: list[ModelRow]
    more_models: int
    """Number of models that are not shown."""
    workers: list[WorkerRow]
    more_workers: int
    shapes: list[ShapeRow]
    names: list[str]
    """Model names of the stages."""
    stages: list[StageBar]
    """Stages that ended since the last snapshot; in a recorded run all within the window."""
    more_stages: int
    decisions: list[DecisionRow]
    more_decisions: int
    worst: list[BadRequestRow]
    """Requests of the last minute with the worst outcome, worst first."""
    viewers: int = 0
    cost_ms_per_s: float = 0.0
    """CPU time that snapshots cost, in milliseconds per second."""
    rollout: RolloutSection | None = None
    """Shadow mode or canary; None: all requests that can be scheduled are."""
    policy: str = ""
    """Description of the current policy; "" in a recorded run, which reports it first."""
    restrictions: list[str] = []
    """Sentences about bypassed requests, APIs that Tritons restrict, what Tidegate cannot see of them, and rollouts."""
    tuning: str = ""
    """Latest verdict of the policy's tuner, as a sentence; "" if the policy is not tuned."""
    tenants: list[TenantRow] = []
    """Accounts of the tenants, the most worker time first; empty without tenants, and in a recorded run."""


def cut(name: str) -> str:
    """Shorten a name to the length limit, in its middle."""
    return shortened(name, MAX_NAME)


class PageHello(msgspec.Struct, frozen=True):
    """First message to the page."""

    kind: Literal["live", "recording"]
    policy: str
    version: str
    """Tidegate's version."""
    name: str = ""
    """File name of the event log."""
    length_ms: float = 0.0
    """Duration of the recorded run."""
