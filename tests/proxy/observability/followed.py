"""Metrics of a stream that a test makes up, without an engine."""

from collections.abc import Sequence

from tidegate.api import Setup
from tidegate.observation import AnyEffect, AnyStimulus, Reducer
from tidegate_proxy.observability.metrics import Metrics


class Followed(Metrics):
    """Has a reducer of its own, which `handled` tells first, as an engine does."""

    def __init__(self, setup: Setup) -> None:
        self._of_the_stream = Reducer()
        super().__init__(setup, self._of_the_stream)

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect], decision_ns: int) -> None:
        """A stimulus, and the effects that it had."""
        self._of_the_stream.handled(event, effects)
        super().handled(event, effects, decision_ns)
