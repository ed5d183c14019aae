"""An observer that is told, besides, what the policy of the engine is told."""

from abc import abstractmethod
from collections.abc import Sequence

from tidegate.api import AnyCommand, AnyEvent
from tidegate.observation.observer import Observer


class PolicyTraceObserver(Observer):
    """Sees what an observer sees, and what the policy was told because of it.

    That a request's turn has come, that a worker is free, that a timer fired: only policies are told. An engine has at
    most one witness, from its beginning on (`Engine(timelines=...)`) or for a while (`Engine.attach`).
    """

    @abstractmethod
    def on_policy_event(self, event: AnyEvent, commands: Sequence[AnyCommand]) -> None:
        """Handle an event that the policy got because of the current stimulus, with its applied commands."""
