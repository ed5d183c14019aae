"""Inputs of an engine: the events that policies handle, and those between a driver and its engine."""

from typing import Any, Literal

from tidegate.api import AnyEvent, Model, Network, Profile, Worker
from tidegate.api.events import Event


class ClockAdvanced(Event, frozen=True, tag=True):
    """Time passed: the engine fires the due timers, each as a TimerFired."""


class FirstResponse(Event, frozen=True, tag=True):
    """A running stage of a model with `streams` had its first response; StageFinished comes with the last one.

    The time to it corrects the profile, and decides whether the request is on time. Its worker stays busy.
    """

    batch_id: int
    stage: int
    worker_id: int
    started_ns: int
    """Time at which the stage was sent."""


class TopologyChanged(Event, frozen=True, tag=True):
    """Change of the models and workers: the policy's successor (`Policy.migrate`) decides from now on.

    Running batches are finished. Queued requests arrive again at the new policy. Busy workers join it when they are
    idle; workers that the new topology does not have get no more work. A worker with other partitions needs a new id.
    """

    models: tuple[Model, ...]
    workers: tuple[Worker, ...]
    profiles: tuple[Profile, ...]
    """Profiles of partitions that are new on a device class; learned profiles of others stay."""
    network: Network | None = None


class PolicyChanged(Event, frozen=True, tag=True):
    """Change of the policy or its options by the operator.

    Running batches are finished. Queued requests arrive again at the new policy; busy workers join it when they are
    idle. Profiles and their learned corrections stay.
    """

    policy: str
    """Name of the policy."""
    options: dict[str, Any]


class PolicyOverran(Event, frozen=True, tag=True):
    """The driver measured that the policy takes too long to decide; the engine replaces it like a failed policy.

    Engines have no clock. As an event it is in the event log, so a replay gives the same result.
    """

    took_ns: int
    """Total time in ns of the decisions that exceeded the budget."""
    within_ns: int
    """Period in ns over which they were added."""
    budget_ns: int
    """Budget of one decision in ns."""


class RetryLimitChanged(Event, frozen=True, tag=True):
    """The operator changed the number of tries of a request whose workers fail."""

    max_tries: int


ChangeState = Literal["starting", "switched", "done", "undone", "proposed", "refused"]
"""State of a layout change.

starting: new workers start beside the old ones. switched: the new ones serve, and old ones drain. done: nothing is left
to do. undone: the new workers are stopped, and the old ones serve. proposed: a dry run proposed it. refused: it was
rejected.
"""


class ChangeProgressed(Event, frozen=True, tag=True):
    """New state of a layout change that a controller wants; the engine itself acts on TopologyChanged."""

    change: int
    """Number of the change, from 1; 0: it was rejected before it began."""
    state: ChangeState
    starts: tuple[str, ...] = ()
    """Names of the workers that the change starts."""
    stops: tuple[str, ...] = ()
    """Names of the workers that the change stops."""
    gpus: float = 0.0
    """Number of GPUs of the layout that serves in this state, with fractions."""
    reason: str = ""
    """Why the change was undone or rejected; empty otherwise."""


TuningVerdict = Literal["kept", "proposed", "replaced", "reverted"]
"""The policy stays; a dry run would replace it; it is replaced; the former one returns, as its successor was worse."""


class PolicyTuned(Event, frozen=True, tag=True):
    """The tuner of the policy reached a verdict about the latest traffic.

    Where the policy is replaced, PolicyChanged follows.
    """

    verdict: TuningVerdict
    policy: str
    """The policy with its options, as text: the one that decides, or that would be better."""
    reason: str
    """Reason of the verdict, a sentence."""
    gain: tuple[float, float] | None = None
    """95 % interval of the attainment gained (0.01 is one percentage point); None: no statement."""


AnyStimulus = (
    AnyEvent
    | ClockAdvanced
    | FirstResponse
    | TopologyChanged
    | PolicyChanged
    | PolicyOverran
    | RetryLimitChanged
    | ChangeProgressed
    | PolicyTuned
)
"""Union of all stimuli, for decoding and for exhaustive matches."""
