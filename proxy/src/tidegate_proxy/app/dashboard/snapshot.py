"""Messages to the page at each tick, as JSON. Times are milliseconds from the source's beginning."""

from typing import Final, NamedTuple

import msgspec

MAX_NAME: Final = 160
"""Names of models and reasons are cut there: clients and policies choose them."""


class ModelRow(msgspec.Struct, frozen=True):
    """One model over the window; None: nothing happened from which it could be told."""

    name: str
    slo_ms: float | None
    rate_rps: float
    """Requests that ended, each second."""
    on_time: float | None
    """The share that was answered on time, of those that were not cancelled."""
    late: int
    dropped: int
    failed: int
    waiting: int
    p50_ms: float | None
    p99_ms: float | None
    mean_rows: float | None
    sizes: dict[int, int]
    """How many batches of how many rows ran."""


class WorkerRow(msgspec.Struct, frozen=True):
    """One worker over the window."""

    id: int
    """The id of its lane: a worker keeps it though a plan gives it another number."""
    name: str
    device_class: str
    state: str
    """`up`, `away`, or `ejected`: it is given nothing for a while, as it failed."""
    busy: float
    """The share of the time in which it ran stages, the one that runs included."""
    running: int
    """Stages that run there, or are on their way."""


class ShapeRow(msgspec.Struct, frozen=True):
    """Batches of one shape and size, planned against actual, over the last minute."""

    model: str
    partition: str
    shape: str
    device_class: str
    """The kind of the workers that they ran on."""
    rows: int
    stages: int
    upper_ms: float
    """Upper latency that the policy used, averaged, in ms."""
    took_ms: float
    """The mean."""
    over: float
    """The share that took longer than planned."""


class StageBar(NamedTuple):
    """A stage that is over, for the Gantt. There are many of these: they are integers, times in microseconds."""

    worker: int
    """Its id."""
    model: int
    """The place of its model's name among the names of the snapshot."""
    start_us: int
    took_us: int
    upper_us: int
    rows: int
    requests: int
    batch: int
    first_request: int
    """The id of one of its requests."""


class DecisionRow(msgspec.Struct, frozen=True):
    """Something that was decided, or that happened to workers."""

    at_ms: float
    what: str
    """`dispatch`, `drop`, `preempt`, `reroute`, `advise`, `policy replaced`, `joined`, `lost`, `plan`, ..."""
    why: str
    """Event that caused the decision."""
    model: str = ""
    worker: str = ""
    text: str = ""
    requests: int = 0
    request: int | None = None
    """The id of one that it concerns."""


class BadRequestRow(msgspec.Struct, frozen=True):
    """A request that ended badly, or came close to it."""

    id: int
    model: str
    outcome: str
    ended_ms: float
    latency_ms: float
    late_ms: float | None
    """How much too late it was answered; below zero: in time; None: it has no deadline, or no answer."""
    reason: str


class TrialSide(msgspec.Struct, frozen=True):
    """Outcomes of a model's requests, real or simulated, scheduled or bypassed."""

    name: str
    requests: int | None
    """None: it is simulated, of the same ones."""
    on_time: float | None
    """Their share that was on time; None: that is not known."""
    p50_ms: float | None = None
    p99_ms: float | None = None


class TrialRow(msgspec.Struct, frozen=True):
    """One model in shadow mode or with a canary."""

    model: str
    """Empty: all that have an SLO."""
    sides: list[TrialSide]
    gain: tuple[float, float] | None
    """The bounds of what scheduling adds to the share in time, 0.01 for a point; None: nothing is said."""
    why: str
    """Why nothing is said; else empty."""


class TrialSection(msgspec.Struct, frozen=True):
    """Results of shadow mode (simulated) or a canary (a fraction of the time)."""

    mode: str
    policy: str
    share: float
    """The share of the time in which all is scheduled, 0 to 1."""
    window_s: float | None
    """Window of the figures in seconds; None: the last ten minutes, or since the fraction changed."""
    rows: list[TrialRow]
    more_rows: int
    note: str
    """Note for readers of the section."""


class DashboardSnapshot(msgspec.Struct, frozen=True):
    """State of the dashboard at one tick."""

    at_ms: float
    window_s: float
    """Window of models' and workers' figures, in seconds."""
    models: list[ModelRow]
    more_models: int
    """So many more are not shown."""
    workers: list[WorkerRow]
    more_workers: int
    shapes: list[ShapeRow]
    names: list[str]
    """The names of the models of the stages."""
    stages: list[StageBar]
    """The stages that ended since the snapshot before; in a recording all within the window."""
    more_stages: int
    decisions: list[DecisionRow]
    more_decisions: int
    worst: list[BadRequestRow]
    """The worst of the last minute, worst first."""
    viewers: int = 0
    cost_ms_per_s: float = 0.0
    """CPU time that snapshots cost, in milliseconds per second."""
    trial: TrialSection | None = None
    """None: all is scheduled that can be."""
    policy: str = ""
    """The one that decides now, in words; empty in a recording, of which it is told first."""
    restrictions: list[str] = []
    """APIs that Tritons restrict, and what Tidegate cannot see of them, as sentences."""


def cut(name: str) -> str:
    """A name that is not too long to be shown."""
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"
