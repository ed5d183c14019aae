"""The `simulation` section of a scenario: how simulated workers differ from what policies expect of them."""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, PlainValidator, ValidationError, ValidationInfo, model_validator

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
from tidegate.workload.distributions import AnyDistribution, Constant
from tidegate.workload.partitions import of_kind
from tidegate.workload.profiles import ProfileSpec, folder_of
from tidegate.workload.section import ScenarioSection


class ServiceSpec(ScenarioSection):
    """The truth about one model; without it workers take exactly as long as the model's profile says."""

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

    def profile_on(self, kind: str) -> ProfileSpec | None:
        """The truth on a kind of worker; None: as the model's own profile says."""
        return self.profile or of_kind(self.profiles, kind)


class JitterSpec(ScenarioSection):
    """Every stage takes a random factor of mean 1 longer, drawn by each worker for itself."""

    cv: float = Field(gt=0, lt=10, description="Coefficient of variation: standard deviation over mean")
    distribution: Literal["lognormal", "gamma"] = "lognormal"


class StallSpec(ScenarioSection):
    """Some stages take many times as long, as when the host does something else: compiles, swaps, collects garbage."""

    probability: float = Field(ge=0, le=1, description="Of each stage")
    factor: AnyDistribution = Field(default=Constant(value=10), description="So many times as long")


class NetworkSpec(ScenarioSection):
    """Delays of a stage beside execution: its call and rows travel to the worker, its response back (Symphony, figure
    18).

    The worker is busy meanwhile, as one is that waits for Triton, except for a stage that was in flight when the
    previous one ended.
    """

    control_ms: float = Field(default=0, ge=0, lt=1e6, description="Of every stage")
    data_ms_per_row: float = Field(default=0, ge=0, lt=1e6, description="Of every row besides")
    jitter_ms: float = Field(
        default=0, ge=0, lt=1e6, description="Mean of what every stage takes besides: exponential, drawn by each worker"
    )


class FailureSpec(ScenarioSection):
    """Stages that end in a failure instead of an answer."""

    probability: float = Field(ge=0, le=1, description="Of each stage")
    retry: bool = Field(default=True, description="The worker is to blame: elsewhere the requests may succeed")


class StartupSpec(ScenarioSection):
    """How the workers come up that a controller has started: they load what they host, and run it once."""

    time_s: AnyDistribution = Field(default=Constant(value=3), description="Until a worker is warm; drawn for each")
    fails: float = Field(default=0, ge=0, le=1, description="The share of workers that never are")


class WorkerEvent(ScenarioSection):
    """A worker, or a whole node, goes or comes back."""

    at_s: float = Field(ge=0, description="Seconds from the start of the measured window")
    lost: str | int | None = Field(default=None, description="A node by name, or a worker by number, from 0")
    joined: str | int | None = Field(default=None, description="One that was lost before")

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


class SimulationSpec(ScenarioSection):
    """Settings of the simulator only; ignored in a live run."""

    service: dict[str, ServiceSpec] = Field(default_factory=dict, description="By model, or partition of a split one")
    jitter: JitterSpec | None = None
    stalls: StallSpec | None = None
    interference: Annotated[float | InterferenceModel, PlainValidator(_read_interference)] = Field(
        default=1.0,
        description="A worker is so many times slower while another one of its GPU, or MIG instance, is busy; or as "
        "the file says that `tidegate fit-interference` wrote",
    )
    failures: FailureSpec | None = None
    events: list[WorkerEvent] = Field(default_factory=list)
    startup: StartupSpec = Field(default_factory=StartupSpec)
    learn: bool = Field(default=True, description="The engine corrects profiles by what it observes, as it does live")

    def check_names(self, partitions: list[str], nodes: list[str]) -> None:
        """Raise ValueError if a partition, node or worker is not in the scenario. `nodes`: node by worker."""
        workers = len(nodes)
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
