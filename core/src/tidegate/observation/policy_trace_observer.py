"""An observer that also sees the events that the policy gets."""

from abc import abstractmethod
from collections.abc import Sequence

from tidegate.api import AnyCommand, AnyEvent
from tidegate.observation.observer import Observer


class PolicyTraceObserver(Observer):
    """Observer that also sees the events that the policy gets, such as WorkerReady and TimerFired.

    An engine has at most one, from its start (`Engine(timelines=...)`) or for a while (`Engine.attach`).
    """

    @abstractmethod
    def on_policy_event(self, event: AnyEvent, commands: Sequence[AnyCommand]) -> None:
        """Handle an event that the policy got because of the current stimulus, with its applied commands."""
