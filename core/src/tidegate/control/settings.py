"""Section `controller` of scenarios and configurations: which controller runs, with which options and limits."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from tidegate.api import PolicyOptions
from tidegate.api.planner import DocumentSection
from tidegate.schemas.document import folder_of


class TuningOptions(PolicyOptions):
    """Options of the tuner: a policy whose options derive from this class is tuned by simulation.

    Its other options are those of the policy that decides first.
    """

    dry_run: bool = Field(default=False, description="Report what would be better, and change nothing")
    interval_s: float = Field(default=5.0, gt=0, lt=1e6, description="Shortest window of traffic to simulate")
    cpu_fraction: float = Field(
        default=0.4, gt=0, le=1, description="Fraction of one CPU core that simulations may take, on average"
    )
    min_improvement: float = Field(
        default=0.01, ge=0, lt=1, description="Smallest gain of attainment for which the policy is replaced"
    )


class ControllerChoice(DocumentSection):
    """Name and options of a controller, and the limits that the governor enforces."""

    name: str = Field(min_length=1, max_length=200, description="Name of the plugin; `tidegate plugins` lists them")
    options: dict[str, Any] = Field(default_factory=dict, description="Options of that controller")
    interval_s: float = Field(default=10.0, gt=0, lt=1e6, description="Seconds between two questions to the controller")
    enabled: bool = Field(
        default=True, description="false: the controller is not asked, and a change before its switch is undone"
    )
    dry_run: bool = Field(default=False, description="Whether changes are reported and not carried out")
    cooldown_s: float = Field(
        default=60.0,
        ge=0,
        lt=1e6,
        description="Minimum seconds between two changes; doubled after each change that was undone",
    )
    stabilization_window_s: float = Field(
        default=0.0,
        ge=0,
        lt=1e6,
        description="Seconds for which the controller must want a change, without interruption",
    )
    min_improvement: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="Minimum gain of a change in sustained rate or in GPUs, as a fraction, unless requests are lost",
    )
    max_miss_rate: float = Field(
        default=0.01,
        ge=0,
        lt=1,
        description="Fraction of a model's requests that may miss their deadlines; beyond it requests count as lost",
    )
    answer_timeout_s: float = Field(
        default=60.0,
        gt=0,
        lt=1e6,
        description="Seconds for an answer while serving; later its process is stopped, and nothing changes",
    )
    startup_timeout_s: float = Field(
        default=120.0, gt=0, lt=1e6, description="Seconds for new workers to start; later the change is undone"
    )
    drain_timeout_s: float = Field(
        default=60.0, gt=0, lt=1e6, description="Seconds for old workers to drain; later they are stopped"
    )
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _remember_folder(self, info: ValidationInfo) -> Self:
        self._folder = folder_of(info)
        return self

    @property
    def folder(self) -> Path:
        """Folder that relative paths among the options refer to: that of the file with this section."""
        return self._folder
