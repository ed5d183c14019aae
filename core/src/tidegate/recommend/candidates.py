"""Candidates: a policy with options, on whole GPUs or on a planner's layout; and those rejected, with the reason."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.api import PlannerSpec, PlanningError
from tidegate.host import Plugins
from tidegate.recommend.hardware import GpuBundle, format_gpus, gpus_of_scenario, on_gpus
from tidegate.recommend.planner_layout import planned_on
from tidegate.recommend.query import RecommendQuery
from tidegate.recommend.triton_tuning import TRITON_POLICY
from tidegate.report.number_format import plural
from tidegate.schemas import DEFAULT_DEVICE_CLASS
from tidegate.workload import PolicyChoice, Scenario, ScenarioError

NO_PLANNER = ""
"""Planner name of candidates without a planner: every GPU hosts every model."""


@dataclass(frozen=True)
class Candidate:
    """A policy with its options, on a layout."""

    choice: PolicyChoice
    planner: str = NO_PLANNER
    """Name of the planner that made the layout."""

    @property
    def title(self) -> str:
        """Label of the candidate in reports."""
        return self.choice.title + (f", laid out by planner {self.planner}" if self.planner else "")


@dataclass(frozen=True)
class UnfitCandidate:
    """A candidate that was not simulated or failed, with the reason."""

    names: tuple[str, ...]
    why: str
    """Reason and remedy."""


@dataclass
class HardwareSite:
    """Hardware to assess, in steps: GPUs that exist, or bundles of GPUs to buy; with the scenarios on it."""

    question: RecommendQuery
    plugins: Plugins
    bundle: GpuBundle | None
    """GPUs of a step or of the site; None: the scenario's own workers, all of them."""
    _scenarios: dict[tuple[str, int], Scenario | str] = field(default_factory=dict)

    @property
    def divisible(self) -> bool:
        """Whether fewer than all steps can be used."""
        return self.bundle is not None

    @property
    def most(self) -> int:
        """Number of steps: the GPUs of the bundle; 1 for the scenario's own workers."""
        return len(self.bundle.gpus) if self.bundle is not None else 1

    def gpus(self, count: int) -> tuple[str, ...]:
        """Return the GPUs of `count` steps of the hardware search: the first GPUs, or that many bundles."""
        if self.bundle is None:
            return ()
        return self.bundle.gpus * count if self.question.buy else self.bundle.gpus[:count]

    def cost(self, count: int) -> float:
        """Return the price of `count` steps; without prices, their number."""
        if self.bundle is None:
            return 1.0
        return self.bundle.cost * count if self.question.buy else float(count)

    def words(self, count: int) -> str:
        """Return the GPUs of `count` steps as text."""
        if self.bundle is None:
            return "the scenario's workers"
        gpus = self.gpus(count)
        if {*gpus} <= {DEFAULT_DEVICE_CLASS}:
            return f"{plural(len(gpus), 'worker')} (model instance{'s' * (len(gpus) != 1)})"
        return format_gpus(gpus)

    def scenario(self, planner: str, count: int) -> Scenario:
        """Return the scenario on `count` steps under a planner's layout. Raises ScenarioError, PlanningError."""
        known = self._scenarios.get((planner, count))
        if known is None:
            known = self._scenarios[planner, count] = self._made(planner, count)
        if isinstance(known, str):
            raise PlanningError(known)
        return known

    def _made(self, planner: str, count: int) -> Scenario | str:
        if self.bundle is None:
            return self.question.scenario
        try:
            if planner:
                return planned_on(self.question, self.plugins.planner(planner), self.gpus(count))
            return on_gpus(self.question.scenario, self.gpus(count))
        except (PlanningError, ScenarioError) as error:
            return str(error)


def candidates_on(site: HardwareSite, count: int) -> tuple[list[Candidate], list[UnfitCandidate]]:
    """Return the candidates that can be tried on `count` steps of a site, and those that cannot."""
    choices = policy_choices(site.plugins, site.question.only)
    if not site.question.only:
        choices += [choice for choice in site.question.scenario.policies if choice.name != TRITON_POLICY]
    choices = _preferred(choices, site.question.current)
    if not site.divisible:
        why = "the scenario says itself what is loaded where: name GPUs with --gpus to have them laid out"
        planners = tuple(f"planner {name}" for name in _planners(site.plugins))
        return [Candidate(choice) for choice in choices], [UnfitCandidate(planners, why)]
    found, unfit = [], []
    for planner in (NO_PLANNER, *_planners(site.plugins)):
        try:
            site.scenario(planner, count)
        except (PlanningError, ScenarioError) as error:
            unfit.append(UnfitCandidate((f"planner {planner}" if planner else "whole GPUs",), str(error)))
        else:
            found += [Candidate(choice, planner) for choice in choices]
    others = [f"planner {name}" for name, spec in site.plugins.planners.items() if spec.layout is None]
    if others:
        unfit.append(UnfitCandidate(tuple(others), "their plans say nothing of GPUs: `tidegate plan` runs them"))
    return found, unfit


def policy_choices(plugins: Plugins, only: Sequence[str] = ()) -> list[PolicyChoice]:
    """Return every policy with its option sets, except Triton's own batcher. Raises UnknownPlugin."""
    specs = [plugins.policy(name) for name in only] or [*plugins.policies.values()]
    return [
        PolicyChoice(name=spec.name, options=dict(options))
        for spec in specs
        if spec.name != TRITON_POLICY
        for options in spec.recommend_options
    ]


def _preferred(choices: Sequence[PolicyChoice], current: PolicyChoice | None) -> list[PolicyChoice]:
    """Return the choices once each: the current one, then those with fewest options, which win ties in every run."""
    entered = [*([current] if current is not None else []), *choices]
    unlike = [
        choice
        for number, choice in enumerate(entered)
        if not any((choice.name, choice.options) == (other.name, other.options) for other in entered[:number])
    ]
    return sorted(unlike, key=lambda choice: (choice is not current, len(choice.options), choice.title))


def default_bundle(question: RecommendQuery) -> GpuBundle | None:
    """Return the scenario's own GPUs if they are whole ones; None otherwise."""
    gpus = gpus_of_scenario(question.scenario)
    return None if gpus is None else GpuBundle(gpus)


def _planners(plugins: Plugins) -> dict[str, PlannerSpec]:
    return {name: spec for name, spec in plugins.planners.items() if spec.problem_of is not None}
