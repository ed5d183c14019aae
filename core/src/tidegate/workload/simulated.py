"""The `simulation` section of a scenario: how simulated workers differ from what policies expect of them."""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, PlainValidator, ValidationError, ValidationInfo, model_validator

from tidegate.api.planner import DocumentSection
from tidegate.schemas import (
    Device,
    DocumentError,
    InterferenceModel,
    Slice,
    WholeDevice,
    did_you_mean,
    field_errors,
    mig_instance,
    read_document,
)
from tidegate.schemas.document import folder_of
from tidegate.workload.distributions import AnyDistribution, Constant
from tidegate.workload.partitions import ProfileSpec, of_kind


class ServiceSpec(DocumentSection):
    """True latency of one model; without it workers take exactly as long as the model's profile."""

    profile: ProfileSpec | None = Field(default=None, description="True latency, on every device class")
    profiles: dict[str, ProfileSpec] = Field(default_factory=dict, description="... or by device class")
    combine: Literal["max", "sum", "padded"] = Field(
        default="max",
        description="How the milliseconds that requests carry (time_ms) add to a batch: the longest one's; all of "
        "them; or, when every row is padded to the longest request, the longest one's for each row",
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.profile and self.profiles:
            raise ValueError("give profile (for every GPU) or profiles (by device class), not both")
        return self

    def profile_on(self, device_class: str) -> ProfileSpec | None:
        """Return the true profile on a device class `device_class`; None: the model's own profile."""
        return self.profile or of_kind(self.profiles, device_class)


class JitterSpec(DocumentSection):
    """Random factor of mean 1 on the duration of every stage, drawn by each worker separately."""

    cv: float = Field(gt=0, lt=10, description="Coefficient of variation: standard deviation over mean")
    distribution: Literal["lognormal", "gamma"] = "lognormal"


class StallSpec(DocumentSection):
    """Stalls: some stages take many times as long, e.g. during compilation, swapping or garbage collection."""

    probability: float = Field(ge=0, le=1, description="Probability for each stage")
    factor: AnyDistribution = Field(default=Constant(value=10), description="Factor on the duration of a stalled stage")


class NetworkSpec(DocumentSection):
    """Delays of a stage besides execution: transfer of call and rows, and of the response (Symphony, figure 18).

    The worker is busy meanwhile, like one that waits for Triton, except for a stage that was in flight when the
    previous one ended.
    """

    control_ms: float = Field(default=0, ge=0, lt=1e6, description="Delay of every stage in ms")
    data_ms_per_row: float = Field(default=0, ge=0, lt=1e6, description="Additional delay of each row in ms")
    jitter_ms: float = Field(
        default=0, ge=0, lt=1e6, description="Mean additional delay of a stage in ms, exponential, drawn by each worker"
    )


class FailureSpec(DocumentSection):
    """Random failures of stages, with their probability."""

    probability: float = Field(ge=0, le=1, description="Probability for each stage")
    retry: bool = Field(
        default=True, description="Whether the worker is to blame, so that requests are retried elsewhere"
    )


class StartupSpec(DocumentSection):
    """Start-up of workers that a controller starts: they load their partitions and run each once."""

    time_s: AnyDistribution = Field(
        default=Constant(value=3), description="Seconds until a worker is warm, drawn for each"
    )
    fails: float = Field(default=0, ge=0, le=1, description="Fraction of workers that never start")


class WorkerEvent(DocumentSection):
    """Loss or return of a worker or of a whole node."""

    at_s: float = Field(ge=0, description="Seconds from the start of the measured window")
    lost: str | int | None = Field(default=None, description="Node by name, or worker by number from 0, that is lost")
    joined: str | int | None = Field(default=None, description="Lost node or worker that returns")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.lost is None) == (self.joined is None):
            raise ValueError("give lost or joined: one of the two")
        return self


def _read_interference(given: object, info: ValidationInfo) -> float | InterferenceModel:
    """A factor, or what a file says, or the document itself. Raises ValueError."""
    try:
        match given:
            case InterferenceModel():
                return given
            case str():
                return read_document(folder_of(info) / given, InterferenceModel)
            case dict():
                return InterferenceModel.model_validate(given)
            case (int() | float()) as factor if not isinstance(given, bool) and 1 <= factor <= 1000:
                return float(factor)
    except DocumentError as error:
        raise ValueError(str(error)) from error
    except ValidationError as error:
        raise ValueError(str(field_errors(error, InterferenceModel)[0])) from error
    raise ValueError("must be a factor, 1 to 1000, or the path of a file that `tidegate fit-interference` wrote")


class SimulationSpec(DocumentSection):
    """Settings of the simulator only; ignored in a live run."""

    service: dict[str, ServiceSpec] = Field(
        default_factory=dict, description="True latency by model, or by partition of a split model"
    )
    jitter: JitterSpec | None = None
    stalls: StallSpec | None = None
    interference: Annotated[float | InterferenceModel, PlainValidator(_read_interference)] = Field(
        default=1.0,
        description="Slowdown of a worker while another one of its GPU or MIG instance is busy: a factor, or the file "
        "of `tidegate fit-interference`",
    )
    slot_slowdown: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="Slowdown of streams by concurrency: each further busy slot of a worker adds this fraction",
    )
    failures: FailureSpec | None = None
    events: list[WorkerEvent] = Field(default_factory=list)
    startup: StartupSpec = Field(default_factory=StartupSpec)
    learn: bool = Field(default=True, description="Whether the engine corrects profiles by observations, as live")

    def check_names(self, partitions: list[str], nodes: list[str]) -> None:
        """Raise ValueError if a partition, node or worker is not in the scenario. `nodes`: node by worker."""
        workers = len(nodes)
        if self.slot_slowdown and self.interference != 1.0:
            raise ValueError("simulation.slot_slowdown: interference slows workers down as well: leave one of them out")
        for name in self.service:
            if name not in partitions:
                known = did_you_mean(name, partitions, "it has")
                raise ValueError(
                    f"simulation.service: {name!r} is no model of this scenario, nor a partition of one{known}"
                )
        for index, event in enumerate(self.events):
            who = event.lost if event.lost is not None else event.joined
            if (isinstance(who, str) and who not in nodes) or (isinstance(who, int) and not 0 <= who < workers):
                there = f"nodes: {', '.join(sorted(set(nodes)))}; workers: 0 to {workers - 1}"
                raise ValueError(f"simulation.events.{index}: there is no {who!r} ({there})")

    def check_sharing(self, workers: Iterable[tuple[Device, Slice, Iterable[str]]]) -> None:
        """Raise ValueError if workers share a GPU that the interference file does not cover.

        `workers`: the device, slice and partitions of each.
        """
        model = self.interference
        if isinstance(model, float):
            return
        sharing: dict[tuple[Device, Slice], list[Iterable[str]]] = {}
        for device, part, hosts in workers:
            sharing.setdefault((device, mig_instance(part) or WholeDevice()), []).append(hosts)
        for (device, whole), hosted in sharing.items():
            if len(hosted) < 2:
                continue
            if (gpu := device.device_class(whole)) != model.gpu:
                raise ValueError(
                    f"simulation.interference: it was measured on {model.gpu!r}, and workers share a {gpu!r}: name "
                    "their gpu, or fit one for it"
                )
            if lacking := model.lacks(name for hosts in hosted for name in hosts):
                raise ValueError(
                    f"simulation.interference: it knows nothing of {lacking[0]!r}, which shares a GPU: it has "
                    f"{', '.join(sorted(model.models))}"
                )
