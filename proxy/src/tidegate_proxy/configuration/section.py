"""Base class of the configuration's sections, and types of values that several sections use."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

Seconds = Annotated[float, Field(gt=0, le=1e6)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
SchedulingMode = Literal["batched", "unbatched", "bypass", "expanded", "auto"]
GraphMode = Literal["expanded", "auto"]
"""Scheduling modes of ensembles: their steps are scheduled always, or while they are contended."""
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=100), AfterValidator(str.lower)]


def _in_folder(path: Path, info: ValidationInfo) -> Path:
    """Relative to the folder of the file that names it."""
    return info.context["folder"] / path if info.context else path


def _is_file(path: Path, info: ValidationInfo) -> Path:
    if info.context and not path.is_file():
        raise ValueError(f"{path} is a directory; name a file in it" if path.is_dir() else f"there is no file {path}")
    return path


def _is_no_folder(path: Path) -> Path:
    if path.is_dir():
        raise ValueError(f"{path} is a directory; name a file in it")
    return path


OutputFile = Annotated[Path, AfterValidator(_in_folder), AfterValidator(_is_no_folder)]
InputFile = Annotated[Path, AfterValidator(_in_folder), AfterValidator(_is_file)]
"""File that must exist when a configuration is read."""


class ConfigSection(BaseModel):
    """Section of the file: an unknown field, or a value of another type, is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
