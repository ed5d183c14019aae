"""Inputs of an engine: the events that policies handle, and those between a driver and its engine."""

from typing import Any, Literal

from tidegate.api import AnyEvent, Model, Network, Profile, Worker
from tidegate.api.events import Event


class ClockAdvanced(Event, frozen=True, tag=True):
    """Time passed: the engine fires the due timers, each as a TimerFired."""


class TopologyChanged(Event, frozen=True, tag=True):
    """The models and workers are others from now on: the engine lets the policy's successor decide over them.

    What runs is finished; what is queued is told to the new policy as arrivals; workers that are busy join it when they
    are done, and those that the plan does without are given nothing more. A worker that hosts something else from now
    on needs a new id.
    """

    models: tuple[Model, ...]
    workers: tuple[Worker, ...]
    profiles: tuple[Profile, ...]
    """The profiles of partitions that are new on a kind of worker; what was learned about others stands."""
    network: Network | None = None


class PolicyChanged(Event, frozen=True, tag=True):
    """The operator wants another policy, or other options: it decides from now on, over what is queued.

    What runs is finished; what is queued is told to the new policy as arrivals; workers that are busy join it when they
    are done. Profiles, and what was learned of them, stand.
    """

    policy: str
    """The name by which policies are installed."""
    options: dict[str, Any]


class PolicyOverran(Event, frozen=True, tag=True):
    """The driver measured that the policy takes too long to decide: it is replaced as if it had broken.

    Engines hold no clock. In the log of events this makes a replay go as the run went.
    """

    took_ns: int
    """How long decisions of more than the budget took together."""
    within_ns: int
    """In how long a time."""
    budget_ns: int
    """How long one may take."""


class RetryLimitChanged(Event, frozen=True, tag=True):
    """The operator changed the number of tries of a request whose workers fail."""

    max_tries: int


ChangeState = Literal["starting", "switched", "done", "undone", "proposed", "refused"]
"""How far a change of layout is: new workers start beside those that serve; the new ones serve, and the old ones drain;
nothing is left to do; the new ones are stopped, and the old ones serve on. Or a dry run proposed it, or it was refused.
"""


class ChangeProgressed(Event, frozen=True, tag=True):
    """A change of layout that a controller wants reached a state.

    What the engine does about it TopologyChanged tells.
    """

    change: int
    """The number of the change, from 1; 0: one that was refused before it began."""
    state: ChangeState
    starts: tuple[str, ...] = ()
    """The names of the workers that are new with it."""
    stops: tuple[str, ...] = ()
    """The names of the workers that it does without."""
    gpus: float = 0.0
    """How many GPUs the layout takes that serves then; shares of GPUs count as such."""
    reason: str = ""
    """Why it was undone, or refused; empty where all went well."""


AnyStimulus = (
    AnyEvent | ClockAdvanced | TopologyChanged | PolicyChanged | PolicyOverran | RetryLimitChanged | ChangeProgressed
)
"""The closed union, for decoding and for exhaustive matches."""
