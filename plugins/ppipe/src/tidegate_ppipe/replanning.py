"""Controller that plans again when the rates have drifted from those of the plan (section 5.4), or GPUs are lost.

New partitions are loaded beside the serving ones; then running batches finish, and everything switches at once: the
paper's flush without its pause.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field

from tidegate.api import PlanningError
from tidegate.api.late_import import imported_late
from tidegate.control import Controller, ControllerOptions, Observation
from tidegate.control.rates import check_models, have_drifted
from tidegate.schemas import Device, DocumentError, Layout, PathField
from tidegate_ppipe.layout import layout_of
from tidegate_ppipe.problem import PpipeProblem

if TYPE_CHECKING:
    from tidegate_ppipe.plan import PpipePlan

MIN_SHARE = 0.01
"""Minimum fraction of the load that a plan assumes for a model."""


class ReplanningOptions(ControllerOptions):
    """Options of the controller `ppipe-replanning`."""

    problem: Annotated[PpipeProblem, PathField()] = Field(
        description="Problem of the initial plan, or its path: GPUs, models, profiles, objective"
    )
    drift: float = Field(
        default=0.2,
        gt=0,
        description="Relative change of a model's rate, or of its fraction of the load, from which to plan again",
    )
    spare: float = Field(
        default=0.2, ge=0, description="Objectives cost and power: spare capacity as a fraction of the arrival rate"
    )
    time_limit_s: float = Field(default=10.0, gt=0, description="Seconds that the planner may search")
    lost_gpu_retry_s: float = Field(
        default=300.0, ge=0, description="Seconds for which a GPU whose worker was lost is not planned with"
    )


class _Planned(NamedTuple):
    """A plan's input, and its layout: it may have been refused, or undone."""

    rates_rps: Mapping[str, float]
    lost: frozenset[Device]
    layout: Layout | None


class Replanning(Controller):
    """Controller that plans again when the rates drift from the plan's, and at once without GPUs that were lost."""

    Options = ReplanningOptions

    def __init__(self, layout: Layout, options: ReplanningOptions, *, seed: int = 0) -> None:
        super().__init__(layout, options, seed=seed)
        self._problem = options.problem
        check_models((model.name for model in self._problem.models), layout)
        try:
            for model in self._problem.models:
                model.blocks  # noqa: B018 - a file that cannot be read is named before anything starts
        except DocumentError as error:
            raise ValueError(f"problem: {error}") from error
        self._drift, self._spare, self._time_limit_s = options.drift, options.spare, options.time_limit_s
        self._retry_ns = round(options.lost_gpu_retry_s * 1e9)
        self._is_of_parts = self._problem.objective == "throughput"
        rates_rps = {
            model.name: model.weight if self._is_of_parts else (model.rate_rps or 0.0) / (1 + self._spare)
            for model in self._problem.models
        }
        self._serving = _Planned(rates_rps, frozenset(), None)
        """The plan that serves: for which rates, or parts of the load, and without which GPUs."""
        self._proposed: _Planned | None = None
        """The plan that was made last."""
        self._lost: dict[Device, int] = {}
        """When GPUs were seen without their workers, in ns."""

    def step(self, observation: Observation) -> Layout | None:
        """Return a new layout if rates have drifted or GPUs are lost. Raises PlanningError if there is none."""
        rates_rps = {name: load.rate_rps for name, load in observation.models.items()}
        total_rps, period_s = sum(rates_rps.values()), observation.period_ns / 1e9
        proposed = self._proposed
        if proposed and proposed.layout and _contents(proposed.layout) == _contents(observation.layout):
            self._serving, self._proposed = proposed, None
        lost = self._lost_gpus(observation)
        if not total_rps or self._is_for(self._serving, rates_rps, lost, period_s):
            return None
        if self._proposed is None or not self._is_for(self._proposed, rates_rps, lost, period_s):
            least_rps = MIN_SHARE * total_rps
            rates_rps = {name: max(rate, least_rps) for name, rate in rates_rps.items()}
            self._proposed = _Planned(rates_rps, lost, self._planned(rates_rps, lost))
        return self._proposed.layout

    def _lost_gpus(self, observation: Observation) -> frozenset[Device]:
        """The GPUs that are not planned with: their workers are away, or were when they were last used."""
        now_ns, workers = observation.now_ns, observation.layout.workers
        away = {worker.device: now_ns for worker in workers if worker.name in observation.away}
        for worker in workers:
            self._lost.pop(worker.device, None)
        self._lost |= away
        self._lost = {device: at_ns for device, at_ns in self._lost.items() if now_ns - at_ns <= self._retry_ns}
        return frozenset(self._lost)

    def _planned(self, rates_rps: Mapping[str, float], lost: frozenset[Device]) -> Layout:
        """The plan for these rates; where these GPUs cannot sustain them, the one for the most load."""
        changes = {
            name: {"weight": rate} if self._is_of_parts else {"rate_rps": rate * (1 + self._spare), "weight": rate}
            for name, rate in rates_rps.items()
        }
        models = tuple(model.model_copy(update=changes[model.name]) for model in self._problem.models)
        whole = self._problem.model_copy(update={"models": models})
        gone = Counter(device.product for device in lost)
        classes = tuple(
            gpu.model_copy(update={"count": gpu.count - gone[gpu.name]})
            for gpu in whole.classes
            if gpu.count > gone[gpu.name]
        )
        if not classes:
            raise PlanningError(f"the workers of all {whole.gpus} GPUs are away: bring some back")
        problem = whole.model_copy(update={"classes": classes})
        try:
            plan = self._plan(problem)
        except PlanningError as error:
            if self._is_of_parts:
                raise
            try:
                plan = self._plan(problem.model_copy(update={"objective": "throughput"}))
            except PlanningError:
                raise error from None
        return layout_of(whole, plan, lost)

    def _plan(self, problem: PpipeProblem) -> "PpipePlan":
        plan_ppipe = imported_late("tidegate_ppipe.planners:plan_ppipe", "tidegate-ppipe[planner]")
        plan: PpipePlan = plan_ppipe(problem, time_limit_s=self._time_limit_s, progress=_no_clock)
        return plan

    def _is_for(
        self, planned: _Planned, rates_rps: Mapping[str, float], lost: frozenset[Device], period_s: float
    ) -> bool:
        """Whether a plan is without the same GPUs, and no model's rate is off by more than chance explains."""
        total_rps, planned_for = sum(rates_rps.values()), sum(planned.rates_rps.values())
        scale = total_rps / planned_for if self._is_of_parts else 1.0
        expected_rps = {name: rate * scale for name, rate in planned.rates_rps.items()}
        return lost == planned.lost and not have_drifted(rates_rps, expected_rps, period_s, drift=self._drift)


def _no_clock(*, objective: float | None = None, bound: float | None = None) -> float:
    """A controller has no clock: of the time limit only the solver keeps its part."""
    del objective, bound
    return 0.0


def _contents(layout: Layout) -> tuple[object, ...]:
    """Return the key that distinguishes plans: served rates, pipelines, and what each GPU hosts."""
    models = {model.name: (model.rate_rps, model.pipelines) for model in layout.models}
    return models, Counter((worker.device, worker.slice, worker.hosts) for worker in layout.workers)
