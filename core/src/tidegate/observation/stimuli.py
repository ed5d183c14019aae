"""What happens to an engine: the events of the contract, and those that stay between a driver and its engine."""

from tidegate.api import AnyEvent, Model, Network, Profile, Worker
from tidegate.api.events import Event


class ClockAdvanced(Event, frozen=True, tag=True):
    """Time passed: the engine fires the timers that are due, each as a `TimerFired`."""


class PlanChanged(Event, frozen=True, tag=True):
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


class TriesChanged(Event, frozen=True, tag=True):
    """The operator wants it otherwise: how often a request is tried, from now on, whose workers fail."""

    max_tries: int


AnyStimulus = AnyEvent | ClockAdvanced | PlanChanged | TriesChanged
"""The closed union, for decoding and for exhaustive matches."""
