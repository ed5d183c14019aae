"""A clock that tests hold, for planners."""


class Ticks:
    """A clock that advances with each report, and what was reported."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.tick_s = tick_s
        self.now_s = 0.0
        self.objectives: list[float] = []
        self.bounds: list[float] = []

    def __call__(self, *, objective: float | None = None, bound: float | None = None) -> float:
        self.now_s += self.tick_s
        if objective is not None:
            self.objectives.append(objective)
        if bound is not None:
            self.bounds.append(bound)
        return self.now_s
