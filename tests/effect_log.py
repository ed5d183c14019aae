"""A listener that keeps what the engine of a simulation asked for."""

from collections.abc import Sequence

from tidegate.engine import AnyEffect, AnyStimulus


class EffectLog(list[tuple[int, AnyEffect]]):
    """Every effect with its instant."""

    def handled(self, event: AnyStimulus, effects: Sequence[AnyEffect]) -> None:
        self += ((event.now_ns, effect) for effect in effects)
