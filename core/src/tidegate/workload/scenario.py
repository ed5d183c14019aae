"""The scenario: workers, models, load and policies of an experiment.

The simulator runs it in virtual time, the load test live. Settings of the simulator only are in its section
`simulation`. Names of durations end with `_ms` or `_s`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, ValidationInfo, model_validator

from tidegate.api import Profile
from tidegate.api.model import DeadlineMissAction
from tidegate.api.planner import DocumentSection
from tidegate.control import ControllerChoice
from tidegate.schemas import DocumentError, Layout, did_you_mean, field_errors, read_document
from tidegate.schemas.document import Name, Positive, folder_of
from tidegate.schemas.validation_errors import check_each_once
from tidegate.workload.arrivals import Arrivals, Gamma, Poisson, Uniform, VaryingRate
from tidegate.workload.distributions import AnyDistribution, Constant
from tidegate.workload.from_profiles import models_as_measured
from tidegate.workload.graphs import GraphSpec
from tidegate.workload.partitions import (
    PartitionSpec,
    PipelineSpec,
    ProfileSpec,
    blocks_of,
    of_kind,
    read_table,
)
from tidegate.workload.simulated import SimulationSpec
from tidegate.workload.tenants import TenantSpec, floors_checked
from tidegate.workload.traces import TraceFormat
from tidegate.workload.workers import WorkerSpec, devices_of

if TYPE_CHECKING:
    from tidegate.schemas import Device, Slice


def sections_of(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the sections `layout`, read, and `models`, with the layout's data of each model.

    A model's fraction of the arrivals is the rate that the plan can sustain, unless the file sets it. Raises ValueError
    for a file that cannot be used, and for sections that contradict the layout.
    """
    if doubled := [name for name in ("workers", "network") if given.get(name)]:
        raise ValueError(f"{doubled[0]}: comes from the layout; leave it out, or leave layout out")
    layout = _read(given["layout"], folder)
    return {"layout": layout, "models": _models(layout, given.get("models") or [])}


def _read(given: object, folder: Path) -> Layout:
    try:
        return read_document(folder / given, Layout) if isinstance(given, str) else Layout.model_validate(given)
    except DocumentError as error:
        raise ValueError(f"layout: {error}") from error
    except ValidationError as error:
        raise ValueError(f"layout: {field_errors(error, Layout)[0]}") from error


def _models(layout: Layout, listed: Sequence[Any]) -> list[Any]:
    named = {model["name"]: model for model in listed if isinstance(model, dict) and "name" in model}
    if len(named) < len(listed):
        return [*listed]  # which is wrong: let that be said
    if unknown := sorted(named.keys() - {model.name for model in layout.models}):
        models = did_you_mean(unknown[0], [model.name for model in layout.models], "it has")
        raise ValueError(f"models: {unknown[0]!r} is no model of the layout{models}")
    for name, model in named.items():
        if doubled := [field for field in ("profile", "profiles", "pipelines") if model.get(field)]:
            raise ValueError(f"models: {doubled[0]} of {name!r} comes from the layout: leave it out")
    return [
        {
            "slo_ms": model.slo_ms,
            "weight": model.rate_rps or 1.0,
            **named.get(model.name, {}),
            "name": model.name,
            "max_batch": max(pipeline.batch for pipeline in model.pipelines),
        }
        for model in layout.models
    ]


class ShapeSpec(DocumentSection):
    """One shape: its batches take `latency_factor` times as long as the model's profile says, or have their own
    profile.
    """

    shape: Name = Field(
        description="Shape as the proxy reads it: variable inputs, dimensions without the batch, e.g. x:3,48,320"
    )
    weight: float = Field(
        default=1.0, ge=0, description="Weight among the model's requests, relative to its other shapes"
    )
    latency_factor: float | None = Field(
        default=None, gt=0, lt=1e6, description="Factor on the latency of the model's profile"
    )
    profile: ProfileSpec | None = Field(default=None, description="... or a latency of its own, on every device class")
    profiles: dict[str, ProfileSpec] = Field(default_factory=dict, description="... or by device class")
    known_to_policy: bool = Field(default=True, description="false: policies do not get its latency and learn it")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.latency_factor is not None) + (self.profile is not None) + bool(self.profiles) > 1:
            raise ValueError("give times, profile (for every device class) or profiles (by device class): one of them")
        return self

    def lacks(self, device_class: str) -> bool:
        """Whether the shape has profiles by device class, and none for `device_class`."""
        return bool(self.profiles) and of_kind(self.profiles, device_class) is None

    def profile_from(self, base: Profile) -> Profile:
        """Return the profile of this shape, derived from the model's profile `base` on the same device class."""
        own = self.profile or of_kind(self.profiles, base.device_class)
        if own is not None:
            return own.build(base.partition, base.device_class, base.max_rows).of_shape(self.shape)
        return base.scaled(1.0 if self.latency_factor is None else self.latency_factor).of_shape(self.shape)


class StreamingSpec(DocumentSection):
    """Responses of a model's requests. Its profile is the time to the first one, and `slo_ms` its deadline."""

    responses: AnyDistribution = Field(default=Constant(value=1), description="Responses to a request, at least 1")
    gap_ms: AnyDistribution = Field(
        description="Mean time between the responses to a request alone on its worker (inter-token latency), in ms"
    )
    slo_gap_ms: Positive | None = Field(
        default=None, description="Longest mean gap of a stream, in ms, that counts as on time in `gap_attainment`"
    )


SCENARIO_VERSION: Literal[1] = 1
ONE_PROFILE = "give profile (for every GPU) or profiles (by device class), or pipelines: one of them"


class LinkSpec(DocumentSection):
    """Network between nodes: transfers between partitions cross it, unless both are in one node."""

    gbps: Positive = Field(description="Bandwidth of each node's uplink and of its downlink, in Gbit/s")
    latency_ms: float = Field(default=0.0, ge=0, lt=1e6)


class AppSpec(DocumentSection):
    """An application of a model: requests with their own sizes and latency."""

    name: Name
    weight: float = Field(default=1.0, ge=0)
    rows: AnyDistribution | None = Field(default=None, description="Rows per request; default: the model's")
    time_ms: AnyDistribution | None = Field(
        default=None, description="Additional latency of a request in ms; default: the model's"
    )
    known_to_policy: bool = Field(
        default=False, description="Whether policies know the distribution of its stand-alone latency"
    )


class FeatureSpec(DocumentSection):
    """A number that each request of a model declares, such as tokens, and that explains its additional latency."""

    values: AnyDistribution = Field(description="Distribution of the feature; 0 declares none")
    correlation: float = Field(
        default=1.0,
        ge=-1,
        le=1,
        description="Correlation with the additional latency, by rank: 1 or -1 decides it, 0 is noise",
    )


class ModelSpec(DocumentSection):
    """A model of a scenario: its profile, SLO and requests."""

    name: Name
    slo_ms: Positive | None = Field(
        default=None, description="Time from arrival within which a request should be answered"
    )
    on_deadline_miss: DeadlineMissAction = Field(
        default="reject", description="Action on requests that will miss their deadline"
    )
    profile: ProfileSpec | None = Field(default=None, description="Latency that policies expect, on every device class")
    profiles: dict[Name, ProfileSpec] = Field(default_factory=dict, description="... or by device class")
    max_batch: int | None = Field(
        default=None, ge=1, description="Maximum batch size in rows; may be in the profile instead"
    )
    scheduling: Literal["batched", "unbatched"] = Field(
        default="batched", description="unbatched: each request runs alone, with its own rows"
    )
    pipelines: list[PipelineSpec] = Field(
        default_factory=list, description="Pipelines of a split model, instead of profile(s) and max_batch"
    )
    weight: float = Field(
        default=1.0, ge=0, description="Weight of the model among the arrivals, relative to the other models"
    )
    rows: AnyDistribution = Field(default=Constant(value=1), description="Rows per request, 1 to max_batch")
    time_ms: AnyDistribution = Field(
        default=Constant(value=0),
        description="Additional latency of a request in ms, unknown to policies",
    )
    apps: list[AppSpec] = Field(
        default_factory=list, description="Applications that send its requests; default: one, unnamed"
    )
    feature: FeatureSpec | None = Field(
        default=None, description="Number that each request declares and that explains `time_ms`; default: none"
    )
    streaming: StreamingSpec | None = Field(
        default=None, description="Many responses to a request, as with token streaming; default: one"
    )
    shapes: list[ShapeSpec] = Field(default_factory=list, description="Shapes of its requests; default: one, unnamed")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.pipelines:
            if self.profile or self.profiles or self.max_batch:
                raise ValueError("pipelines stand in place of profile, profiles and max_batch: leave those out")
            blocks_of([[part.name for part in pipeline.partitions] for pipeline in self.pipelines])
        elif (self.profile is not None and self.profiles) or not (self._specs() or self.max_batch):
            raise ValueError(ONE_PROFILE)
        sizes = {spec.max_batch for spec in self._specs() if spec.max_batch} | {self.max_batch} - {None}
        if len(sizes) != 1 and not self.pipelines:
            raise ValueError(f"needs one max_batch for all its profiles, has {sorted(filter(None, sizes)) or 'none'}")
        if self.streaming and (self.pipelines or self.max_rows != 1):
            raise ValueError(
                f"streaming: each request has a slot, so max_batch must be 1, not {self.max_rows}; set max_batch: 1"
            )
        for where, rows in [("rows", self.rows), *((f"apps.{app.name}.rows", app.rows) for app in self.apps)]:
            least, most = rows.bounds if rows else (1.0, inf)
            if most < inf and (least < 1 or most > self.max_rows):
                raise ValueError(f"{where}: a request has 1 to max_batch = {self.max_rows} rows")
        for what, weights, names in (
            ("apps", [app.weight for app in self.apps], [app.name for app in self.apps]),
            ("shapes", [shape.weight for shape in self.shapes], [shape.shape for shape in self.shapes]),
        ):
            if weights and not sum(weights) > 0:
                raise ValueError(f"{what}: all of them have the weight 0")
            if len(set(names)) < len(names):
                raise ValueError(f"{what}: two have one name")
        if self.pipelines and any(shape.profile or shape.profiles for shape in self.shapes):
            raise ValueError("shapes: of a split model, say with `times` how long each takes: its partitions differ")
        return self

    def _specs(self) -> list[ProfileSpec]:
        return [self.profile] if self.profile else list(self.profiles.values())

    @property
    def max_rows(self) -> int:
        """Maximum batch size in rows."""
        if self.pipelines:
            return max(pipeline.batch for pipeline in self.pipelines)
        return self.max_batch or next(spec.max_batch for spec in self._specs() if spec.max_batch)

    @property
    def partitions(self) -> dict[str, tuple[PartitionSpec, int]]:
        """Partitions of the model by name, each with its largest batch in rows; the model itself if it is not split."""
        if not self.pipelines:
            whole = PartitionSpec.model_construct(
                name=self.name, profile=self.profile, profiles=self.profiles, output_bytes=0
            )
            return {self.name: (whole, self.max_rows)}
        parts: dict[str, tuple[PartitionSpec, int]] = {}
        for pipeline in self.pipelines:
            for part in pipeline.partitions:
                parts[part.name] = part, max(pipeline.batch, parts[part.name][1] if part.name in parts else 0)
        return parts


class ModelsFrom(DocumentSection):
    """Models from a CSV table: name,alpha_ms,beta_ms,slo_ms."""

    csv: str = Field(min_length=1)
    max_batch: int = Field(ge=1)

    def read(self, folder: Path) -> list[dict[str, Any]]:
        """Return the models of the table as sections of a scenario. Raises ValueError."""
        columns = ("name", "alpha_ms", "beta_ms", "slo_ms")
        return [
            {
                "name": row["name"],
                "slo_ms": row["slo_ms"] or None,
                "profile": {"alpha_ms": row["alpha_ms"], "beta_ms": row["beta_ms"], "max_batch": self.max_batch},
            }
            for row in read_table(folder / self.csv, columns)
        ]


class RateStepSpec(DocumentSection):
    """Change of the rate at a given time."""

    from_s: float = Field(ge=0, description="Seconds from the start of the measured window")
    rate_rps: float = Field(ge=0, lt=1e12)


class ProcessSpec(DocumentSection):
    """An arrival process, independent for every model."""

    process: Literal["poisson", "gamma", "uniform"] = "poisson"
    rate_rps: Positive | list[RateStepSpec] = Field(
        description="Requests per second of all models together; or steps {from_s, rate_rps}"
    )
    shape: Positive | None = Field(default=None, description="gamma only: below 1 bursts, 1 Poisson, above steadier")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.shape is None) == (self.process == "gamma"):
            raise ValueError("shape: a gamma process needs one, the others have none")
        if isinstance(self.rate_rps, list):
            starts = [step.from_s for step in self.rate_rps]
            if not starts or starts[0] != 0 or any(later <= earlier for earlier, later in pairwise(starts)):
                raise ValueError(f"rate_rps: the steps must begin with from_s 0 and rise; they are at {starts}")
            if not any(step.rate_rps for step in self.rate_rps):
                raise ValueError("rate_rps: at least one step needs a positive rate")
        return self

    def build(self, share: float, warmup_s: float) -> Arrivals:
        """Return the arrivals of a model with this positive fraction of the rate.

        The warm-up of `warmup_s` seconds has the first rate.
        """
        if not isinstance(self.rate_rps, list):
            return self._of_rate(self.rate_rps * share)
        steps = [(step.from_s + warmup_s * (index > 0), step.rate_rps) for index, step in enumerate(self.rate_rps)]
        return VaryingRate(share, self._of_rate(1.0), tuple(steps))

    def mean_rps(self, duration_s: float) -> float:
        """Return the mean rate of all models over a window of `duration_s` seconds, in requests per second."""
        if not isinstance(self.rate_rps, list):
            return self.rate_rps
        ends = [min(step.from_s, duration_s) for step in self.rate_rps[1:]] + [duration_s]
        expected = (
            (end - min(step.from_s, duration_s)) * step.rate_rps for step, end in zip(self.rate_rps, ends, strict=True)
        )
        return sum(expected) / duration_s

    def _of_rate(self, rate_rps: float) -> Poisson | Gamma | Uniform:
        if self.shape is not None:
            return Gamma(rate_rps, self.shape)
        return Poisson(rate_rps) if self.process == "poisson" else Uniform(rate_rps)


class TraceSpec(DocumentSection):
    """Recorded arrivals; a trace shorter than the experiment repeats."""

    process: Literal["trace"]
    file: str = Field(min_length=1, description="Path of the trace, relative to the scenario")
    format: TraceFormat = TraceFormat.lines
    scale: Positive = Field(default=1.0, description="Factor on arrivals per second: time is compressed by it")
    start_s: float = Field(default=0.0, ge=0, description="Start of the experiment in the trace, in seconds")


class Popularity(DocumentSection):
    """Distribution of arrivals among models, multiplied with their weights."""

    law: Literal["equal", "zipf"] = "equal"
    exponent: float = Field(default=1.0, ge=0, description="zipf: the k-th model listed gets 1 / k**exponent")


class PolicyChoice(DocumentSection):
    """Name and options of one policy."""

    name: Name
    options: dict[str, Any] = Field(default_factory=dict)
    label: str | None = Field(default=None, description="Name in results; default: its name and options")

    @property
    def title(self) -> str:
        """Label in results."""
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return self.label or (f"{self.name}({options})" if options else self.name)


def _models_from(given: object) -> ModelsFrom:
    try:
        return ModelsFrom.model_validate(given)
    except ValidationError as error:
        wrong = field_errors(error, ModelsFrom, whole="")[0]
        raise ValueError(f"models_from{'.' * bool(wrong.where)}{wrong.where}: {wrong.what}") from error


class Scenario(DocumentSection):
    """Contents of a scenario file: models, workers, arrivals, policies."""

    version: Literal[1] = SCENARIO_VERSION
    name: str = Field(default="", description="Name in titles; default: name of the file")
    seed: int = Field(default=0, ge=0)
    warmup_s: float = Field(default=2.0, ge=0, lt=1e7, description="Seconds of load before the measured window")
    duration_s: float = Field(gt=0, lt=1e7, description="Seconds of the measured window, after the warm-up")
    layout: Layout | None = Field(
        default=None, description="Layout of a planner, or its path: replaces workers, network and models' profiles"
    )
    workers: list[WorkerSpec] = Field(default_factory=list, description="Groups of workers, a short form of a layout")
    network: LinkSpec | None = Field(default=None, description="Network between nodes; default: transfers take no time")
    models: list[ModelSpec] = Field(default_factory=list)
    models_from: ModelsFrom | None = Field(default=None, description="CSV table of models; becomes `models`")
    graphs: list[GraphSpec] = Field(
        default_factory=list, description="Graphs of models (ensembles), whose requests have one SLO for all stages"
    )
    profiles: str | None = Field(
        default=None,
        min_length=1,
        description="Profile file of `tidegate profile`, for every model without a profile of its own",
    )
    arrivals: Annotated[ProcessSpec | TraceSpec, Field(discriminator="process")]
    popularity: Popularity = Field(default_factory=Popularity)
    policies: list[PolicyChoice] = Field(default_factory=list)
    tenants: list[TenantSpec] = Field(
        default_factory=list, description="Tenants that send the requests; default: one, unnamed"
    )
    priority_floors: Annotated[dict[int, float], AfterValidator(floors_checked)] = Field(
        default_factory=dict, description="Fraction of worker time that a priority class keeps, by priority"
    )
    controller: ControllerChoice | None = Field(
        default=None, description="Controller that changes the layout while serving; default: none"
    )
    simulation: SimulationSpec = Field(default_factory=SimulationSpec)
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="before")
    @classmethod
    def _shorthands(cls, given: object, info: ValidationInfo) -> object:
        if not isinstance(given, dict):
            return given
        changed = dict(given)
        if isinstance(given.get("popularity"), str):
            changed["popularity"] = {"law": given["popularity"]}
        if isinstance(arrivals := given.get("arrivals"), dict):
            changed["arrivals"] = {"process": "poisson", **arrivals}
        if given.get("models_from") is not None:
            listed = _models_from(given["models_from"]).read(folder_of(info))
            changed["models"] = [*(given.get("models") or []), *listed]
            changed["models_from"] = None
        if given.get("profiles") is not None:
            changed |= {"models": models_as_measured(changed, folder_of(info)), "profiles": None}
        if given.get("layout") is not None:
            changed |= sections_of(changed, folder_of(info))
        return changed

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Self:
        self._folder = folder_of(info)
        names = [model.name for model in self.models]
        if not names:
            raise ValueError("models: none is listed; list some, or name a table with models_from")
        check_each_once("models", names, "give each its own name")
        if not sum(self.all_weights()) > 0:
            raise ValueError("models: every weight is zero")
        self._check_graphs(names)
        placed: list[tuple[Device, Slice, Sequence[str]]]
        if self.layout is None:
            self._check_workers()
            parts = [*self.partitions]
            placed = [(device, pool.slice, pool.hosts or parts) for pool, device in devices_of(self.workers)]
        else:
            parts = [part.name for part in self.layout.partitions]
            placed = [(worker.device, worker.slice, worker.hosts) for worker in self.layout.workers]
        self._check_tenants()
        check_each_once("policies", (policy.title for policy in self.policies), "give one of them a label")
        self.simulation.check_names(parts, [device.node for device, _, _ in placed])
        self.simulation.check_sharing(placed)
        for model in self.models:
            service = self.simulation.service.get(model.name)
            if any(app.known_to_policy for app in model.apps) and (service is None or service.combine != "padded"):
                raise ValueError(
                    f"models: apps: known_to_policy: batches of {model.name!r} are not padded to their longest: "
                    "say so with combine: padded in simulation.service"
                )
        return self

    def _check_graphs(self, models: "Sequence[str]") -> None:
        taken = set(models)
        for graph in self.graphs:
            if graph.name in taken:
                raise ValueError(f"graphs: {graph.name!r} is already the name of a model or of another graph")
            taken.add(graph.name)
            if unknown := [stage.model for stage in graph.stages if stage.model not in models]:
                if unknown[0] in [other.name for other in self.graphs]:
                    raise ValueError(
                        f"graphs: {graph.name!r} has a stage of the graph {unknown[0]!r}: write the stages of that "
                        "graph in its place"
                    )
                known = did_you_mean(unknown[0], models, "it has")
                raise ValueError(
                    f"graphs: {graph.name!r} has a stage of {unknown[0]!r}, no model of the scenario{known}"
                )
        for model in self.models if self.graphs else ():
            if model.apps or model.shapes or model.streaming or model.time_ms != Constant(value=0):
                raise ValueError(f"graphs: {model.name!r} has apps, shapes, streaming or time_ms: leave these out")

    def _check_tenants(self) -> None:
        check_each_once("tenants", (tenant.name for tenant in self.tenants), "give each tenant its own name")
        for index, tenant in enumerate(self.tenants):
            for name in tenant.models:
                if name not in self.request_names:
                    known = did_you_mean(name, self.request_names, "it has")
                    raise ValueError(f"tenants.{index}.models: {name!r} is no model of this scenario{known}")

    def _check_workers(self) -> None:
        if not self.workers:
            raise ValueError("workers: none is listed; list some, or name a planner's layout")
        for index, model in enumerate(self.models):
            if not (model.profile or model.profiles or model.pipelines):
                raise ValueError(f"models.{index}: {ONE_PROFILE}")
        parts = self._named_partitions()
        for index, pool in enumerate(self.workers):
            for hosted in pool.hosts or parts:
                if hosted not in parts:
                    known = did_you_mean(hosted, parts, "it has")
                    raise ValueError(
                        f"workers.{index}.hosts: {hosted!r} is no model and no partition of one in this scenario{known}"
                    )
                if parts[hosted][0].profile_on(pool.device_class) is None:
                    raise ValueError(
                        f"models: profiles: {hosted!r} has none for {pool.device_class!r} "
                        f"(workers.{index}): add it, or leave it out of that entry's hosts"
                    )
            streaming = {model.name for model in self.models if model.streaming}
            if pool.slots != 1 and (batched := sorted(set(pool.hosts or parts) - streaming)):
                raise ValueError(
                    f"workers.{index}.slots: {batched[0]!r} has no `streaming`, and a worker runs one batch of it at a "
                    "time; leave slots out, or name other hosts"
                )
            if pool.slots == "auto":
                self._check_auto_slots(index, pool.hosts or list(parts))
        self._check_shapes()
        everywhere = any(pool.hosts is None for pool in self.workers)
        homeless = set() if everywhere else set(parts) - {name for pool in self.workers for name in pool.hosts or ()}
        if homeless:
            raise ValueError(f"workers: none hosts {min(homeless)!r}: add it to some entry's hosts")
        products: dict[tuple[str, int | str], str] = {}
        for pool, device in devices_of(self.workers):
            if products.setdefault((device.node, device.id), device.product) != device.product:
                raise ValueError(
                    f"workers: device {device.id} of {device.node!r} is {products[device.node, device.id]!r} in one "
                    f"entry and {pool.gpu!r} in another: name one gpu in both"
                )

    def _check_auto_slots(self, index: int, hosts: "Sequence[str]") -> None:
        where = f"workers.{index}.slots: auto"
        if len(hosts) > 1:
            raise ValueError(
                f"{where} is the limit of one model, and these workers host {', '.join(sorted(hosts))}: write an entry "
                "with its own hosts for each, or say a number"
            )
        for name, section in (
            ("controller", self.controller),
            ("simulation.events", self.simulation.events),
            ("network", self.network),
        ):
            if section:
                raise ValueError(
                    f"{where} and {name} both change or connect the workers: leave one out, or say a number"
                )

    def _check_shapes(self) -> None:
        """Refuse a shape whose profiles by kind lack that of a worker which its model runs on."""
        for index, pool in enumerate(self.workers):
            for model in self.models:
                here = pool.hosts is None or model.name in pool.hosts
                if here and (lacking := [shape.shape for shape in model.shapes if shape.lacks(pool.device_class)]):
                    raise ValueError(
                        f"models: shapes: profiles: {lacking[0]!r} of {model.name!r} has none for "
                        f"{pool.device_class!r} (workers.{index}): add it, or say with times how long it takes"
                    )

    def _named_partitions(self) -> dict[str, tuple[PartitionSpec, int]]:
        parts: dict[str, tuple[PartitionSpec, int]] = {}
        for model in self.models:
            for name, part in model.partitions.items():
                if name in parts:
                    raise ValueError(f"models: two of them have a partition named {name!r}")
                parts[name] = part
        return parts

    @property
    def folder(self) -> Path:
        """Folder that relative paths refer to."""
        return self._folder

    @property
    def partitions(self) -> dict[str, tuple[PartitionSpec, int]]:
        """Partitions of all models by name, each with its largest batch in rows; without those of a layout."""
        return {name: part for model in self.models for name, part in model.partitions.items()}

    def model(self, name: str) -> ModelSpec:
        """Return the model with this name. Raises StopIteration if there is none."""
        return next(model for model in self.models if model.name == name)

    @property
    def request_names(self) -> list[str]:
        """Names that requests may have: of models, then of graphs."""
        return [*(model.name for model in self.models), *(graph.name for graph in self.graphs)]

    @property
    def slos_ms(self) -> dict[str, float | None]:
        """SLO of each model, and then of each graph, in ms, by name; None: none."""
        return {model.name: model.slo_ms for model in self.models} | {each.name: each.slo_ms for each in self.graphs}

    def all_weights(self) -> list[float]:
        """Return the relative arrival rate of each model, and then of each graph."""
        return [*self.weights(), *(graph.weight for graph in self.graphs)]

    def weights(self) -> list[float]:
        """Return the relative arrival rate of each model, in any unit: its weight times its popularity."""
        exponent = self.popularity.exponent if self.popularity.law == "zipf" else 0.0
        return [model.weight / rank**exponent for rank, model in enumerate(self.models, 1)]
