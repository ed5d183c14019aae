"""The problem of the planner `reconfigure`: the current layout, the target layout, and the durations of changes."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tidegate.api import VersionedDocument
from tidegate.schemas import Layout, read_document
from tidegate_paris_elsa.problem import MigProblem

Seconds = Annotated[float, Field(ge=0, lt=1e9)]


class ReconfigurationProblem(VersionedDocument):
    """Problem of `reconfigure`: the current and the target layout."""

    kind: Literal["mig_reconfiguration_problem"] = "mig_reconfiguration_problem"
    present: Layout | str = Field(description="Current layout, or its path")
    planned: Layout | str = Field(description="Target layout, or its path; its GPUs may be renumbered")
    keep: float = Field(
        default=0.5, ge=0, le=1, description="Fraction of each model's capacity that must serve throughout the change"
    )
    cut_s: Seconds = Field(default=5.0, description="Seconds to destroy instances and to create others in their place")
    load_s: Seconds | dict[str, Seconds] = Field(
        default=30.0, description="Seconds to load a model, one value or by model"
    )
    horizon_s: Seconds = Field(default=3600.0, description="Seconds for which the target layout is expected to serve")
    rates_rps: dict[str, Annotated[float, Field(ge=0)]] | None = Field(
        default=None, description="Request rate of each model; default: more than either layout sustains"
    )

    problem: MigProblem | str | None = Field(
        default=None,
        description="Problem with the expected requests, or its path: each layout's sustained rates are computed for "
        "it; default: the rates in the layouts, which are comparable if they were planned for the same "
        "requests",
    )

    @cached_property
    def requests(self) -> MigProblem | None:
        """Planning problem that `problem` names; None without one. Raises DocumentError."""
        return read_document(Path(self.problem), MigProblem) if isinstance(self.problem, str) else self.problem

    @cached_property
    def layouts(self) -> tuple[Layout, Layout]:
        """Current and target layout. Raises DocumentError."""
        return _read(self.present), _read(self.planned)

    def load_time_s(self, model: str) -> float:
        """Return the load time of a model in seconds; the longest known one if it is not listed."""
        if isinstance(self.load_s, dict):
            return self.load_s.get(model, max(self.load_s.values(), default=0.0))
        return self.load_s


def _read(layout: Layout | str) -> Layout:
    return read_document(Path(layout), Layout) if isinstance(layout, str) else layout
