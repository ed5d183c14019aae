"""The profile file: latency measured by `tidegate profile`, from which schedulers start.

Its keys are shapes of requests as text, `x:3,48,320;y:7`: the inputs with variable dimensions beyond the batch, sorted
by name, each with its dimensions without the batch.
"""

import os
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import Field, ValidationError, field_validator, model_validator

from tidegate.api import Profile, ProfileKey
from tidegate.api.device import DEFAULT_DEVICE_CLASS
from tidegate.api.model import read_sizes
from tidegate.api.planner import DocumentSection
from tidegate.schemas.validation_errors import field_errors


class Hardware(DocumentSection):
    """Hardware of one machine, as far as it affects latency."""

    cpu: str
    """Name of the processor."""
    cores: int = Field(ge=1)
    """Number of cores that a process may use."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs, in NVML's order."""
    driver: str = ""
    """Version of the GPU driver; empty without GPUs."""

    def __str__(self) -> str:
        on_cpu = f"{self.cores} cores of {self.cpu}"
        return f"{', '.join(self.gpus)} (driver {self.driver}), {on_cpu}" if self.gpus else on_cpu


_CPU_NAME = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


def hardware_here(cpuinfo: Path = Path("/proc/cpuinfo"), nvml: Any = None) -> Hardware:  # noqa: ANN401 - pynvml says no types
    """Return the hardware of this machine. `nvml`: the module `pynvml`, or a substitute for tests."""
    gpus, driver = _gpus(nvml)
    return Hardware(cpu=_cpu(cpuinfo), cores=len(os.sched_getaffinity(0)), gpus=gpus, driver=driver)


def _cpu(cpuinfo: Path) -> str:
    try:
        found = _CPU_NAME.search(cpuinfo.read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _gpus(nvml: Any) -> tuple[tuple[str, ...], str]:  # noqa: ANN401
    """The names of the GPUs and the version of their driver; none where nothing tells."""
    if nvml is None:
        try:
            nvml = import_module("pynvml")
        except ModuleNotFoundError:
            return (), ""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return (), ""
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        names = tuple(_text(nvml.nvmlDeviceGetName(handle)) for handle in handles)
        return names, _text(nvml.nvmlSystemGetDriverVersion()) if names else ""
    except nvml.NVMLError:
        return (), ""
    finally:
        nvml.nvmlShutdown()


def _text(given: str | bytes) -> str:
    """Return text from NVML's bindings, which return bytes before version 11.510."""
    return given.decode() if isinstance(given, bytes) else given


def format_shape(dimensions: Mapping[str, Sequence[int]]) -> str:
    """Return the shape of requests as text from the dimensions of their inputs, without rows; empty for no inputs."""
    return ";".join(f"{name}:{','.join(map(str, sizes))}" for name, sizes in sorted(dimensions.items()))


def read_shape(text: str) -> dict[str, tuple[int, ...]]:
    """Return the dimensions of each input by name; names may contain colons. Raises ValueError with the remedy."""
    dimensions: dict[str, tuple[int, ...]] = {}
    for part in text.split(";") if text else ():
        name, _, listed = part.rpartition(":")
        sizes = read_sizes(listed)
        if not name or sizes is None:
            raise ValueError(f"{text!r} is no shape: write NAME:3,48,320, several inputs as NAME:3,48,320;NAME:7")
        if name in dimensions:
            raise ValueError(f"{text!r} names the input {name!r} twice: leave one of them out")
        dimensions[name] = sizes
    return dimensions


class ProfileFileError(Exception):
    """Error: a profile file cannot be used; the message names file, field and remedy."""


Milliseconds = Annotated[float, Field(ge=1e-6, le=1e9)]
"""A latency in ms: at least a nanosecond, the unit of the plugin API."""


class ProfilePoint(DocumentSection):
    """Measured latency of one batch size, in milliseconds."""

    rows: int = Field(ge=1)
    median_ms: Milliseconds
    p95_ms: Milliseconds
    samples: int = Field(ge=1)


class ModelProfile(DocumentSection):
    """Measured latency of one model on one device class, for requests of one shape."""

    model: str
    device_class: str = Field(default=DEFAULT_DEVICE_CLASS, min_length=1)
    """Device class; `default` applies to every class that the file does not list for this model."""
    shape: str = ""
    """Shape of the requests beyond the batch, e.g. `x:3,48,320`; empty: nothing varies."""
    alpha_ms: float
    """Slope of the straight line through the medians, in ms per row."""
    beta_ms: float
    """Intercept of that line, in ms per batch."""
    points: list[ProfilePoint] = Field(min_length=1)
    hardware: Hardware | None = None
    """Hardware that was measured; None: unknown, because a remote server does not report it."""

    @field_validator("shape")
    @classmethod
    def _as_requests_have_it(cls, shape: str) -> str:
        """Refuse what no request's shape is equal to."""
        if (canonical := format_shape(read_shape(shape))) != shape:
            raise ValueError(f"write {canonical!r}, as requests have it, not {shape!r}")
        return shape

    @field_validator("points")
    @classmethod
    def _each_size_once(cls, points: list[ProfilePoint]) -> list[ProfilePoint]:
        for rows, count in Counter(point.rows for point in points).items():
            if count > 1:
                raise ValueError(f"a batch of {rows} rows stands there {count} times: keep one")
        return points

    @property
    def key(self) -> ProfileKey:
        """Key of the profile: model, device class and shape."""
        return self.model, self.device_class, self.shape

    def to_profile(self, max_rows: int) -> Profile:
        """Return the profile: medians as expected latency, 95th percentiles as upper latency."""
        expected_ms = {point.rows: point.median_ms for point in self.points}
        upper_ms = {point.rows: point.p95_ms for point in self.points}
        return Profile.from_points(
            self.model, expected_ms, upper_ms, max_rows=max_rows, device_class=self.device_class, shape=self.shape
        )


class ProfileFile(DocumentSection):
    """Contents of a profile file: versioned, for people to read and diff."""

    version: Literal[1] = 1
    profiles: list[ModelProfile]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for (model, device_class, shape), count in Counter(profile.key for profile in self.profiles).items():
            if count > 1:
                raise ValueError(
                    f"profiles: {model!r}, device class {device_class!r}, shape {shape!r} is listed twice: keep one"
                )
        return self

    def measured_for(self, model: str, device_class: str) -> list[ModelProfile]:
        """Return the measurements of a model that apply to a device class, one for each shape; empty if none do.

        If the class was not measured, those of the whole device apply (`A100` for `A100/mps-50`), otherwise those
        without a class.
        """
        measured = [profile for profile in self.profiles if profile.model == model]
        likes = (device_class, device_class.rpartition("/")[0], DEFAULT_DEVICE_CLASS)
        return next(filter(None, ([each for each in measured if each.device_class == like] for like in likes)), [])

    def profiles_of(self, model: str, device_class: str, max_rows: int) -> tuple[Profile, ...]:
        """Return the profiles of a model on a device class, for batches of up to `max_rows` rows; empty if unknown.

        There is one for each measured shape (`measured_for`), preceded by one of the empty shape: if that was not
        measured, the slowest of the others.
        """
        mine = self.measured_for(model, device_class)
        found = [profile.model_copy(update={"device_class": device_class}).to_profile(max_rows) for profile in mine]
        if found and not any(profile.shape == "" for profile in found):
            found.append(msgspec.structs.replace(Profile.slowest(found), device_class=device_class, shape=""))
        return tuple(sorted(found, key=lambda profile: profile.shape))


def read_profiles(path: Path) -> ProfileFile:
    """Read a profile file. Raises ProfileFileError."""
    try:
        return ProfileFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ProfileFileError(f"{path}: {error.strerror}; `tidegate profile` writes such a file") from error
    except ValidationError as error:
        wrong = "; ".join(map(str, field_errors(error, ProfileFile)[:3]))
        raise ProfileFileError(f"{path}: {wrong}; `tidegate profile` writes such a file") from error


def write_profile(path: Path, profile: ModelProfile) -> None:
    """Write a profile to a file, replacing one of the same model, class and shape.

    Raises ProfileFileError if the file is no profile file, OSError if it cannot be written.
    """
    others = read_profiles(path).profiles if path.exists() else []
    kept = [other for other in others if other.key != profile.key]
    document = ProfileFile(profiles=sorted([*kept, profile], key=lambda entry: entry.key))
    new = path.with_name(f".{path.name}.new")
    new.write_text(document.model_dump_json(indent=2) + "\n")
    new.replace(path)  # whole or not at all, even if interrupted
