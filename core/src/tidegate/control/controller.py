"""Base class of controllers, plugins that compute layouts from observations while serving; and these observations."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import ValidationError

from tidegate.api import Advise
from tidegate.api.planner import DocumentSection
from tidegate.schemas import Layout, field_errors


@dataclass(frozen=True)
class ModelLoad:
    """Traffic of a model in a period, and its outcomes. A request counts when it ends, whatever its outcome."""

    rate_rps: float
    """Arrived requests per second."""
    rows_per_s: float
    """Rows of the arrived requests, per second."""
    largest_rows: int
    """Rows of the largest request so far; 0: there was none."""
    ended: int
    """Number of requests that ended, without those that clients cancelled."""
    attainment: float
    """Fraction of the ended requests that were answered on time; 1 if none ended."""
    sizes: Mapping[int, int] = field(default_factory=dict)
    """Number of ended requests by rows."""


@dataclass(frozen=True)
class Observation:
    """Observation of the current layout over the period that ends now."""

    now_ns: int
    period_ns: int
    """Length of the period in ns: since the controller was last asked, or since the last change was done."""
    layout: Layout
    """The current layout."""
    models: Mapping[str, ModelLoad]
    """Load of each model of the layout, by name."""
    busy: Mapping[str, float]
    """Fraction of the period for which each worker of the layout ran stages, by name."""
    advice: Advise | None = None
    """Last recommendation of the policy in the period: the change of the number of its workers."""
    away: frozenset[str] = frozenset()
    """Names of workers of the layout that were lost and are not back yet."""

    @property
    def load(self) -> float:
        """Mean fraction of the period for which workers were busy."""
        return sum(self.busy.values()) / len(self.busy)

    @property
    def attainment(self) -> float:
        """Attainment of the worst model, 0 to 1."""
        return min(model.attainment for model in self.models.values())


class ControllerOptions(DocumentSection):
    """Base class of a controller's options, validated; an unknown name is an error that lists the known ones."""


@dataclass(frozen=True)
class LayoutSteps:
    """A change in several steps, for devices that must be freed before new workers start there, such as MIG slices."""

    layouts: tuple[Layout, ...]
    """The layouts that serve one after another; the last one is the target. At least one."""
    keep: float
    """Fraction of each model's capacity, current or target, whichever is less, that serves throughout."""
    gain: float
    """Relative gain of the target in sustained load, by the controller's own estimate."""


ControllerAnswer = Layout | LayoutSteps | str | None
"""Result of a controller: a layout, steps to one, None (no change), or a string: why it failed."""


class Controller(ABC):
    """Base class of controllers, which decide at intervals which partitions are loaded on which workers.

    A controller is a plain deterministic object, like a policy: no clock (every observation carries the current time),
    no threads, no network, and randomness only from its seed. It only proposes layouts. The governor may reject them; a
    driver starts the new workers beside the old ones, switches, and drains the old ones. During a change the controller
    is not asked.
    """

    Options: ClassVar[type[ControllerOptions]] = ControllerOptions

    def __init__(self, layout: Layout, options: ControllerOptions, *, seed: int = 0) -> None:
        """Create a controller. Raises ValueError if the options do not fit the layout.

        `layout`: the layout that serves at the start. `seed`: seed of the generator `rng`.
        """
        self.first_layout = layout
        self.options = options
        self.rng = random.Random(seed)

    @abstractmethod
    def step(self, observation: Observation) -> Layout | LayoutSteps | None:
        """Return the layout that should serve from now on, or steps to it; None or the current layout: no change.

        A worker that both layouts have (same device, slice and partitions) keeps running, whatever its name. SLOs and
        network of the current layout stay. Raises PlanningError if there is no such layout. Any exception is logged
        with its message and changes nothing.
        """


@dataclass(frozen=True)
class ControllerSpec:
    """Name, summary and class of a controller that users select by name."""

    name: str
    summary: str
    """One line, for lists."""
    controller: type[Controller]


def controller_answer(controller: Controller, observation: Observation) -> ControllerAnswer:
    """Return a controller's answer to an observation: consistent layouts, None, or why it failed. It may take long."""
    try:
        return _validated(controller.step(observation))
    except Exception as fault:  # a controller may raise anything
        return f"{type(fault).__name__}: {fault}"


def _validated(answer: object) -> Layout | LayoutSteps | None:
    """Return an answer as consistent layouts, however they were made. Raises TypeError and ValueError."""
    if answer is None:
        return None
    if isinstance(answer, LayoutSteps):
        if not answer.layouts:
            raise ValueError("its change has no steps: answer None for no change")
        return LayoutSteps(tuple(map(_consistent, answer.layouts)), answer.keep, answer.gain)
    if not isinstance(answer, Layout):
        raise TypeError(f"a controller answers with a Layout, LayoutSteps or None, not with {answer!r}")
    return _consistent(answer)


def _consistent(answer: Layout) -> Layout:
    try:
        return Layout.model_validate_json(answer.model_dump_json())
    except ValidationError as error:
        raise ValueError(f"its layout does not add up: {field_errors(error, Layout)[0]}") from error
