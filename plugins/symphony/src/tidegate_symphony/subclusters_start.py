"""Start of the search for sub-clusters: a heuristic assignment for the solver to improve.

Without it a solver finds no even assignment of hundreds of models within seconds, often none at all.
"""

from tidegate.api import Progress
from tidegate_symphony.subclusters_plan import (
    PlannedModel,
    SubclusterProblem,
    limit_broken,
    loads_of,
    move_cost,
    objective,
)


def start_from(problem: SubclusterProblem, *, time_limit_s: float, progress: Progress) -> list[int] | None:
    """Return an assignment that keeps every limit; None if the heuristic finds none.

    Models keep their sub-cluster; new ones, the largest first, go where loads stay most even. Then single models move,
    each time the one that improves evenness most, while `C_max` allows it. `time_limit_s`: seconds to search.
    """
    fill = _Fill(problem)
    places = {model.name: home for model in problem.models if (home := problem.home(model)) is not None}
    for model in problem.models:
        if model.name in places:
            fill.change(model, places[model.name], +1)
    for model in sorted(problem.models, key=fill.size, reverse=True):
        if model.name not in places:
            best = min(range(problem.subclusters), key=lambda j, m=model: (not fill.fits(m, j), fill.rise(m, j)))  # type: ignore[misc]
            places[model.name] = best
            fill.change(model, best, +1)
    assignment = [places[model.name] for model in problem.models]
    found: tuple[float, list[int]] | None = None
    while True:
        loads = loads_of(problem, assignment)
        value = objective(problem, loads)
        if limit_broken(problem, assignment, loads) is None and (found is None or value < found[0]):
            found = value, list(assignment)
        moved = _best_move(problem, assignment, fill) if progress() < time_limit_s else None
        if moved is None:
            return found[1] if found else None
        index, place = moved
        fill.change(problem.models[index], assignment[index], -1)
        fill.change(problem.models[index], place, +1)
        assignment[index] = place


def _best_move(problem: SubclusterProblem, assignment: list[int], fill: "_Fill") -> tuple[int, int] | None:
    """(model's index, its new sub-cluster) of the move that evens the loads out most; None where none does."""
    best, best_gain = None, 1e-9
    left = None if problem.max_move_cost is None else problem.max_move_cost - move_cost(problem, assignment)
    for index, model in enumerate(problem.models):
        here, home = assignment[index], problem.home(model)
        fill.change(model, here, -1)
        without = fill.rise(model, here)
        for place in range(problem.subclusters):
            gain = without - fill.rise(model, place)
            if gain <= best_gain or not fill.fits(model, place):
                continue
            if left is not None and _cost(model, home, place) - _cost(model, home, here) > left:
                continue
            best, best_gain = (index, place), gain
        fill.change(model, here, +1)
    return best


def _cost(model: PlannedModel, home: int | None, place: int) -> float:
    if place == home:
        return 0.0
    return model.cost_at(place) + (0.0 if home is None else model.cost_at(home))


class _Fill:
    """Loads of sub-clusters as shares of the average, while models come and go."""

    def __init__(self, problem: SubclusterProblem) -> None:
        self._problem = problem
        self._rate_unit = problem.mean_rate_rps or 1.0
        self._static_unit = problem.mean_static_mib or 1.0
        self._rate = [0.0] * problem.subclusters
        self._static = [0.0] * problem.subclusters

    def size(self, model: PlannedModel) -> float:
        return max(model.rate_rps / self._rate_unit, model.static_mib / self._static_unit)

    def change(self, model: PlannedModel, place: int, sign: int) -> None:
        self._rate[place] += sign * model.rate_rps
        self._static[place] += sign * model.static_mib

    def fits(self, model: PlannedModel, place: int) -> bool:
        """Whether a sub-cluster has room for one more model, as far as that model tells."""
        memory = self._static[place] + model.static_mib + model.dynamic_mib
        return (
            self._rate[place] + model.rate_rps <= self._problem.max_rate_rps and memory <= self._problem.max_memory_mib
        )

    def rise(self, model: PlannedModel, place: int) -> float:
        """Return by how much one more model raises the sum of squared loads; less is more even."""
        rate, static = model.rate_rps / self._rate_unit, model.static_mib / self._static_unit
        return rate * (rate + 2 * self._rate[place] / self._rate_unit) + static * (
            static + 2 * self._static[place] / self._static_unit
        )
