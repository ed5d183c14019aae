"""The control plane's contract at run time: a controller turns what was observed into a layout."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from tidegate.control.observation import Observation
from tidegate.schemas import Layout


class ControllerOptions(BaseModel):
    """Base class of a controller's options, validated; an unknown name is an error that lists the known ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Controller(ABC):
    """Says, now and then, what is to be loaded where.

    A plain deterministic object, as a policy is: no clock (every observation says when it is), no threads, no network,
    randomness only from its seed. It decides where models run, and leaves to others whether and how that comes about:
    the governor may refuse a layout, and a driver starts the new workers beside the old ones, switches, and drains.
    While a change is under way it is not asked.
    """

    Options: ClassVar[type[ControllerOptions]] = ControllerOptions

    def __init__(self, layout: Layout, options: ControllerOptions, *, seed: int = 0) -> None:
        """`layout`: the one that serves at the start. Raises ValueError for options that do not fit it."""
        self.first_layout = layout
        self.options = options
        self.rng = random.Random(seed)

    @abstractmethod
    def step(self, observation: Observation) -> Layout | None:
        """The layout that is to serve from now on; None, or the present one: all is well as it is.

        A worker that a layout has in common with the present one (same device, slice and partitions) goes on, whatever
        its name. SLOs and network are not the controller's: those of the present layout stay. What it raises is noted
        with its message, and nothing changes: to raise PlanningError is how it says that there is no layout to give.
        """


@dataclass(frozen=True)
class ControllerSpec:
    """Name, summary and class of a controller that users select by name."""

    name: str
    summary: str
    """One line, for lists."""
    controller: type[Controller]
