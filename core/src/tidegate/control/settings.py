"""How a scenario or a configuration names a controller: the section `controller`."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator


class ControllerChoice(BaseModel):
    """Name and options of a controller, and the limits that the governor enforces."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: str = Field(min_length=1, max_length=200, description="`tidegate plugins` lists them")
    options: dict[str, Any] = Field(default_factory=dict, description="Options of that controller")
    interval_s: float = Field(default=10.0, gt=0, lt=1e6, description="How often it is asked")
    enabled: bool = Field(
        default=True, description="false: it is not asked, and a change that has not switched yet is undone"
    )
    dry_run: bool = Field(default=False, description="Its changes are told and not carried out")
    cooldown_s: float = Field(
        default=60.0,
        ge=0,
        lt=1e6,
        description="From the end of a change to the next; twice as long after one that was undone, then 4 times, ...",
    )
    stabilization_window_s: float = Field(
        default=0.0, ge=0, lt=1e6, description="So long it must have wanted a change, every time"
    )
    min_improvement: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="A change must bear so much more, or take so much less of the GPUs, unless requests are lost",
    )
    max_miss_rate: float = Field(
        default=0.01, ge=0, lt=1, description="Requests are lost when more than this share of a model's is not on time"
    )
    startup_timeout_s: float = Field(
        default=120.0, gt=0, lt=1e6, description="New workers that are not up by then: the change is undone"
    )
    drain_timeout_s: float = Field(
        default=60.0, gt=0, lt=1e6, description="Old workers that run something still are stopped then all the same"
    )
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _remember_folder(self, info: ValidationInfo) -> Self:
        self._folder = Path((info.context or {}).get("folder", "."))
        return self

    @property
    def folder(self) -> Path:
        """Folder that relative paths among the options refer to: that of the file that names the controller."""
        return self._folder
