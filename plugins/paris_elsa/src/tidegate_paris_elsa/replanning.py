"""Controller that plans MIG slices again when the sizes of requests have drifted from those of the plan.

The new slices are carried out in the waves of `reconfigure`, as steps of the governor: a wave's workers drain and stop,
their instances give way to others, and new workers start there, while each model keeps its share of the capacity.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from tidegate.api.late_import import imported_late
from tidegate.control import Controller, ControllerOptions, LayoutSteps, Observation
from tidegate.control.rates import check_models, have_drifted
from tidegate.schemas import Layout, LayoutWorker, PathField
from tidegate_paris_elsa.change_plan import Reconfiguration, ReconfigurationProblem, Seconds
from tidegate_paris_elsa.layout import layout_of
from tidegate_paris_elsa.problem import MigModel, MigProblem

if TYPE_CHECKING:
    from tidegate_paris_elsa.plan import MigPlan

CHANCE_DISTANCE: Final = 1.63
"""Kolmogorov distance of a sample of n from its distribution, times the root of n, that one in a hundred exceeds."""
LARGEST_SHARE: Final = 1e-3
"""Minimum fraction of a model's requests that a plan assumes for the largest size, which may come at any time."""
MIN_LOAD_SHARE: Final = 0.01
"""Minimum fraction of the load that a plan assumes for a model."""


class ReplanningOptions(ControllerOptions):
    """Options of the controller `paris-replanning`."""

    problem: Annotated[MigProblem, PathField()] = Field(
        description="Problem of the initial plan, or its path: GPUs, models, profiles"
    )
    drift: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Largest difference between the cumulative distributions of planned and seen sizes from which to "
        "plan again",
    )
    rate_drift: float = Field(
        default=0.3, gt=0, description="Relative change of a model's fraction of the load from which to plan again"
    )
    min_requests: int = Field(default=300, ge=1, description="Requests of a model from which its sizes count")
    window_s: float = Field(default=60.0, gt=0, description="Time constant in seconds of what is remembered")
    keep: float = Field(
        default=0.5, gt=0, le=1, description="Fraction of each model's capacity that must serve throughout the change"
    )
    cut_s: Seconds = Field(default=5.0, description="Seconds to destroy instances and to create others in their place")
    load_s: Seconds = Field(default=30.0, description="Seconds to load a model")
    time_limit_s: float = Field(default=20.0, gt=0, description="Seconds that the planner may search")


@dataclass(frozen=True)
class Demand:
    """Requests that a plan is made for, or that were seen."""

    shares: Mapping[str, Mapping[int, float]]
    """Fraction of the requests by rows, for each model."""
    rates_rps: Mapping[str, float]


class RecentSizes:
    """Sizes of a model's latest requests; a sudden change of them forgets older ones."""

    def __init__(self, window_s: float) -> None:
        """Create an empty record. `window_s`: time constant in seconds; older requests count less."""
        self._window_s = window_s
        self._weights: dict[int, float] = {}

    @property
    def requests(self) -> float:
        """Number of requests that are remembered."""
        return sum(self._weights.values())

    @property
    def shares(self) -> dict[int, float]:
        """Fraction of the requests by rows."""
        total = self.requests
        return {rows: weight / total for rows, weight in sorted(self._weights.items())}

    def add(self, sizes: Mapping[int, int], period_s: float) -> None:
        """Add the requests by rows of a period."""
        came = sum(sizes.values())
        if not came:
            return
        if self._weights and distance(shares_of(sizes), self.shares) > CHANCE_DISTANCE * sqrt(
            1 / came + 1 / self.requests
        ):
            self._weights.clear()
        kept = max(0.0, 1 - period_s / self._window_s)
        for rows in self._weights:
            self._weights[rows] *= kept
        for rows, count in sizes.items():
            self._weights[rows] = self._weights.get(rows, 0.0) + count


class Replanning(Controller):
    """Controller that plans slices for the sizes that were seen, and changes them wave by wave."""

    Options = ReplanningOptions
    options: ReplanningOptions

    def __init__(self, layout: Layout, options: ReplanningOptions, *, seed: int = 0) -> None:
        super().__init__(layout, options, seed=seed)
        check_models((model.name for model in options.problem.models), layout)
        self._sizes = {model.name: RecentSizes(options.window_s) for model in options.problem.models}
        self._serving = Demand(
            {model.name: model.shares for model in options.problem.models},
            {model.name: model.weight for model in options.problem.models},
        )
        """The demand for which the current slices, or better ones that were not found, were planned."""
        self._proposed: tuple[Demand, Layout] | None = None
        """The last planned slices, until they serve, and the demand."""

    def step(self, observation: Observation) -> LayoutSteps | None:
        """Return the steps to slices for the sizes that were seen, if these have drifted. Raises PlanningError."""
        period_s = observation.period_ns / 1e9
        for name, load in observation.models.items():
            self._sizes[name].add(load.sizes, period_s)
        rates_rps = {name: load.rate_rps for name, load in observation.models.items()}
        if self._proposed and _slices(self._proposed[1]) == _slices(observation.layout):
            self._serving, self._proposed = self._proposed[0], None
        if observation.away or not sum(rates_rps.values()) or self._is_for(self._serving, rates_rps, period_s):
            return None
        if self._proposed is None or not self._is_for(self._proposed[0], rates_rps, period_s):
            self._proposed = self._planned(rates_rps)
        return self._steps(observation.layout, *self._proposed)

    def _is_for(self, planned: Demand, rates_rps: Mapping[str, float], period_s: float) -> bool:
        """Whether slices were planned for what was seen, as far as chance allows to tell."""
        for name, sizes in self._sizes.items():
            if sizes.requests >= self.options.min_requests:
                chance = CHANCE_DISTANCE / sqrt(sizes.requests)
                if distance(sizes.shares, planned.shares[name]) > max(self.options.drift, chance):
                    return False
        scale = sum(rates_rps.values()) / sum(planned.rates_rps.values())
        expected_rps = {name: rate * scale for name, rate in planned.rates_rps.items()}
        return not have_drifted(rates_rps, expected_rps, period_s, drift=self.options.rate_drift)

    def _planned(self, rates_rps: Mapping[str, float]) -> tuple[Demand, Layout]:
        """The slices for the sizes and rates that were seen; sizes of rare models are those of the former plan."""
        shares = {
            name: sizes.shares if sizes.requests >= self.options.min_requests else self._serving.shares[name]
            for name, sizes in self._sizes.items()
        }
        least_rps = MIN_LOAD_SHARE * sum(rates_rps.values())
        demand = Demand(shares, {name: max(rate, least_rps) for name, rate in rates_rps.items()})
        problem = self._problem_of(demand)
        plan_paris = imported_late("tidegate_paris_elsa.planners:plan_paris", "tidegate-paris-elsa[planner]")
        plan: MigPlan = plan_paris(problem, time_limit_s=self.options.time_limit_s, progress=_no_clock)
        return demand, layout_of(problem, plan)

    def _problem_of(self, demand: Demand) -> MigProblem:
        models = []
        for model in self.options.problem.models:
            sizes = {rows: share for rows, share in demand.shares[model.name].items() if share > 0}
            largest = model.most_rows
            sizes[largest] = max(sizes.get(largest, 0.0), LARGEST_SHARE)
            # Made of its fields: what was computed from the former sizes is none of these.
            fields: dict[str, Any] = {name: getattr(model, name) for name in MigModel.model_fields}
            models.append(MigModel(**{**fields, "sizes": sizes, "weight": demand.rates_rps[model.name]}))
        return self.options.problem.model_copy(update={"models": tuple(models)})

    def _steps(self, present: Layout, demand: Demand, planned: Layout) -> LayoutSteps | None:
        problem = self._problem_of(demand)
        layout_load = imported_late("tidegate_paris_elsa.portfolio:layout_load", "tidegate-paris-elsa[planner]")
        before, after = (layout_load(problem, layout) for layout in (present, planned))
        if after <= before:
            self._serving, self._proposed = demand, None
            return None
        change = ReconfigurationProblem(
            present=present,
            planned=planned,
            keep=self.options.keep,
            cut_s=self.options.cut_s,
            load_s=self.options.load_s,
        )
        plan_change = imported_late(
            "tidegate_paris_elsa.reconfigure:plan_reconfiguration", "tidegate-paris-elsa[planner]"
        )
        plan: Reconfiguration = plan_change(change, time_limit_s=self.options.time_limit_s, progress=_no_clock)
        layouts = layouts_of(present, planned, plan)
        if not layouts:
            self._serving, self._proposed = demand, None
            return None
        self._proposed = demand, layouts[-1]
        return LayoutSteps(layouts, self.options.keep, after / before - 1 if before else 1.0)


def layouts_of(present: Layout, planned: Layout, plan: Reconfiguration) -> tuple[Layout, ...]:
    """Return the layouts that serve one after another: the workers of a wave stop, then those that replace them start.

    The workers of the next wave stop when those of a wave have started. Empty if nothing changes. `plan`: of the change
    from `present` to `planned`.
    """
    waves = sorted({step.wave for step in plan.steps})
    if not waves:
        return ()
    tables = {part.name: part.latency_ms for part in present.partitions}
    partitions = tuple(
        part.model_copy(update={"latency_ms": {**tables.get(part.name, {}), **part.latency_ms}})
        for part in planned.partitions
    )
    taken = {worker.name for worker in present.workers}
    new = {worker.name: worker for worker in plan.workers}
    workers = list(present.workers)
    layouts = []
    for before, wave in zip([None, *waves], [*waves, None], strict=True):
        starts = [name for step in plan.steps if step.wave == before for name in step.starts]
        stops = {name for step in plan.steps if step.wave == wave for name in step.stops}
        workers = [worker for worker in workers if worker.name not in stops]
        workers += [_with_free_name(new[name], taken) for name in starts]
        layouts.append(planned.model_copy(update={"partitions": partitions, "workers": tuple(workers)}))
    if _slices(layouts[0]) == _slices(present):
        del layouts[0]  # only new instances in the first wave
    return tuple(layouts)


def _with_free_name(worker: LayoutWorker, taken: set[str]) -> LayoutWorker:
    """Return the worker under a name that none has during the change."""
    tries = (worker.name if number == 1 else f"{worker.name}~{number}" for number in range(1, len(taken) + 2))
    name = next(each for each in tries if each not in taken)
    taken.add(name)
    return worker.model_copy(update={"name": name})


def shares_of(sizes: Mapping[int, int]) -> dict[int, float]:
    """Return the fraction of the requests by rows."""
    total = sum(sizes.values())
    return {rows: count / total for rows, count in sizes.items()}


def distance(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Return the largest difference of two cumulative distributions of sizes (Kolmogorov)."""
    largest = up_to = 0.0
    for rows in sorted(one.keys() | other.keys()):
        up_to += one.get(rows, 0.0) - other.get(rows, 0.0)
        largest = max(largest, abs(up_to))
    return largest


def _slices(layout: Layout) -> Counter[object]:
    """Return what each slice hosts, whatever the workers are called."""
    return Counter((worker.device, worker.slice, worker.hosts) for worker in layout.workers)


def _no_clock(*, objective: float | None = None, bound: float | None = None) -> float:
    """A controller has no clock: of the time limit only the solver keeps its part."""
    del objective, bound
    return 0.0
