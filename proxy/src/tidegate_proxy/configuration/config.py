"""Configuration of `tidegate serve`, as written in the file (docs/reference/config.md) and as used.

`config_file` reads it and applies the command-line options. Fields in milliseconds and seconds end in `_ms` and `_s`.
"""

import logging
import resource
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from tidegate.api.model import DeadlineMissAction
from tidegate.control import ControllerChoice
from tidegate.workload.tenants import floors_checked
from tidegate_proxy.configuration.access import ApiRestriction, AuthenticationConfig, DashboardConfig
from tidegate_proxy.configuration.addresses import Address, ListenAddress, host_of, listens_on, port_of
from tidegate_proxy.configuration.clients import AppConfig, ClientsConfig, FeatureConfig
from tidegate_proxy.configuration.limits import LimitsConfig
from tidegate_proxy.configuration.padding import MergeConfig
from tidegate_proxy.configuration.section import ConfigSection, InputFile, Name, OutputFile, SchedulingMode, Seconds
from tidegate_proxy.configuration.tenants import TenantsConfig
from tidegate_proxy.configuration.triton_sources import TritonSource
from tidegate_proxy.configuration.tritons import TritonAddress, check_workers


class LinkTls(ConfigSection):
    """Mutual TLS: both ends present a certificate of the same CA, which must serve no other purpose."""

    cert: InputFile = Field(
        description="PEM file with the own certificate, valid for the host in `shards.N.address` of a shard"
    )
    key: InputFile = Field(description="PEM file with its private key, not encrypted")
    ca: InputFile = Field(description="PEM file with the CA of all frontends and shards, used for nothing else")


class LinksConfig(ConfigSection):
    """Links between frontends and shards. Between machines they are encrypted only with `tls`."""

    secret_file: InputFile | None = Field(
        default=None, description="File with a secret that frontends and shards prove to each other, at least 16 bytes"
    )
    tls: LinkTls | None = Field(default=None, description="Mutual TLS; default: none, for trusted networks")
    reconnect_timeout_s: Seconds = Field(
        default=10.0, description="Time for which requests wait for a shard that restarts"
    )


class GraphStepConfig(ConfigSection):
    """Step of a graph, in the words of Triton's ensembles."""

    model: Name = Field(description="Model, ensemble or graph that the step runs")
    version: int | None = Field(default=None, ge=1, description="Version of the model; default: the latest")
    input_map: dict[Name, Name] = Field(min_length=1, description="Tensor of the graph by input of the model")
    output_map: dict[Name, Name] = Field(min_length=1, description="Tensor of the graph by output of the model")


class GraphConfig(ConfigSection):
    """Graph of models that Tidegate serves as one model."""

    inputs: tuple[Name, ...] = Field(min_length=1, description="Tensors that clients send")
    outputs: tuple[Name, ...] = Field(min_length=1, description="Tensors that clients get, in this order")
    steps: tuple[GraphStepConfig, ...] = Field(min_length=1, description="Steps, in any order")
    max_batch_size: int | None = Field(
        default=None, ge=1, description="Most rows of a request; default: the least of the models of its steps"
    )


CONFIG_VERSION: Literal[1] = 1
AGE_JITTER: Final = 1.2
"""Factor on a connection's age at which gRPC has ended it, including notice to the client."""
RECONNECT_NOTICE_S: Final = 1.0
"""Seconds within which clients have been asked to reconnect elsewhere."""


def _share(given: object) -> object:
    """Return a fraction that may be given in percent as a number from 0 to 1; other values are left to be rejected."""
    if isinstance(given, int | float) and given > 1:
        given = str(given)
    if not isinstance(given, str):
        return given
    number, is_percent = given.strip().removesuffix("%"), given.strip().endswith("%")
    try:
        share = float(number) / 100 if is_percent else float(number)
    except ValueError:
        raise ValueError(f"must be a share, such as 5% or 0.05, not {given!r}") from None
    if share > 1:
        remedy = "100% is the most" if is_percent else f"for {number} percent write {number}%"
        raise ValueError(f"must be a share of at most 1, not {given}: {remedy}")
    return share


def _short(section: type[ConfigSection], field: str) -> BeforeValidator:
    """A section that may be written as the value of its one essential field."""
    return BeforeValidator(
        lambda given: {field: given} if isinstance(given, str) else given, json_schema_input_type=section | str
    )


class _OrSource:
    """Lets the JSON schema of `tritons` take a source in the place of the list, as a file may have it."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), handler(TritonSource.__pydantic_core_schema__)]}


class ShardConfig(ConfigSection):
    """Shard: an engine with its own Tritons, in a process of its own."""

    tritons: tuple[Annotated[TritonAddress, _short(TritonAddress, "grpc")], ...] = Field(
        min_length=1, description="Tritons of the shard; a string is a gRPC address"
    )
    address: Address | None = Field(
        default=None,
        description="HOST:PORT where frontends on other machines reach the shard; default: it runs beside its "
        "frontends",
    )
    listen: ListenAddress | None = Field(
        default=None,
        description="HOST:PORT to listen on for frontends; default: the port of `address` on all interfaces",
    )
    layout: InputFile | None = Field(
        default=None, description="Layout of a planner, whose workers are the shard's Tritons. Default: none"
    )


class ListenConfig(ConfigSection):
    """Addresses for clients. A protocol without an address is not served."""

    grpc: ListenAddress = Field(description="HOST:PORT of the gRPC service; port 0 picks a free one")
    http: ListenAddress | None = Field(default=None, description="HOST:PORT of the HTTP service")
    metrics: ListenAddress | None = Field(default=None, description="HOST:PORT of the Prometheus metrics")
    reuse_port: bool = Field(
        default=False,
        description="Allow another Tidegate to listen on the same ports, for a hot restart (SO_REUSEPORT)",
    )


class PolicyChoice(ConfigSection):
    """The scheduling policy and its options."""

    name: Name = Field(default="symphony", description="Name of the policy; `tidegate plugins` lists them")
    options: dict[Name, Any] = Field(default_factory=dict, description="Options of the policy")


class ObserverChoice(ConfigSection):
    """An observer of the engine, and its options."""

    name: Name = Field(description="Name of the observer; `tidegate plugins` lists them")
    options: dict[Name, Any] = Field(default_factory=dict, description="Options of the observer")


class ModelConfig(ConfigSection):
    """Settings of a model beyond its config.pbtxt."""

    slo_ms: float | None = Field(
        default=None,
        gt=0,
        lt=1e12,
        description="SLO of the model in milliseconds. Overrides `slo_ms` of its config.pbtxt",
    )
    scheduling: SchedulingMode | None = Field(
        default=None,
        description="Batch requests (batched), run them one by one (unbatched), or do not schedule them (bypass)."
        " Of an ensemble: schedule its steps always (expanded) or under load (auto)."
        " Overrides `tidegate_scheduling` of its config.pbtxt; default: batched only where Triton "
        "would batch; ensembles are bypassed",
    )
    on_deadline_miss: DeadlineMissAction | None = Field(
        default=None,
        description="Reject requests that cannot meet their deadline (reject), or answer them late with spare "
        "capacity (serve). Overrides `tidegate_on_deadline_miss` of its config.pbtxt; default: reject",
    )
    max_concurrency: int | Literal["instances", "auto"] | None = Field(
        default=None,
        description="Largest number of requests in flight at each Triton, for a model that is not batched; "
        "further ones wait in Tidegate. `instances`: as many as its config has. `auto`: as many as raise its "
        "throughput more than its latency, or as keep slo_gap_ms. Default: unlimited, not scheduled",
    )
    slo_first_ms: float | None = Field(
        default=None,
        gt=0,
        lt=1e12,
        description="SLO of the first response (time to first token) in milliseconds, with max_concurrency",
    )
    slo_gap_ms: float | None = Field(
        default=None,
        gt=0,
        lt=1e12,
        description="SLO of the mean time between responses (inter-token latency) of a stream in milliseconds, with "
        "max_concurrency; streams are counted by it",
    )
    priority_levels: int | None = Field(
        default=None,
        ge=0,
        description="Number of priorities that requests may ask for. Overrides that of its config.pbtxt; 0: none",
    )
    default_priority_level: int | None = Field(
        default=None,
        ge=1,
        description="Priority of requests that ask for none. Overrides that of its config.pbtxt",
    )
    merge: MergeConfig = Field(default=MergeConfig(), description="Batching of the model's requests")
    load: Literal["always", "on-demand"] = Field(
        default="always",
        description="Leave it to the Tritons which of them have the model (always), or load it for its first request "
        "on a Triton with `model_memory`, and unload it for other such models (on-demand)",
    )
    memory: ByteSize | None = Field(
        default=None,
        ge=1,
        description="Memory that the model takes, for `load: on-demand`; a number of bytes or with a unit (`3GiB`). "
        "Default: measured when it is loaded on this machine",
    )
    strip_queue_delay: bool = Field(
        default=False,
        description="Let a Triton under explicit model control load the model without `max_queue_delay_microseconds`. "
        "Tidegate does not restore the delay on exit",
    )

    @model_validator(mode="after")
    def _has_slots(self) -> Self:
        if isinstance(self.max_concurrency, int) and self.max_concurrency < 1:
            raise ValueError(
                f"max_concurrency: must be at least 1, not {self.max_concurrency}; leave it out for no limit"
            )
        if self.slo_first_ms is not None and self.max_concurrency is None:
            raise ValueError("slo_first_ms: only with max_concurrency, for streams; else set slo_ms")
        if self.slo_gap_ms is not None and self.max_concurrency is None:
            raise ValueError("slo_gap_ms: only with max_concurrency, for streams; leave it out")
        if self.slo_first_ms is not None and self.slo_ms is not None:
            raise ValueError("slo_first_ms: with max_concurrency it replaces slo_ms: leave one of the two out")
        if self.max_concurrency is not None and self.scheduling not in (None, "bypass"):
            raise ValueError(
                f"max_concurrency: scheduling is {self.scheduling!r}, which is limited by instances: leave one out"
            )
        return self

    @model_validator(mode="after")
    def _default_is_level(self) -> Self:
        levels, default = self.priority_levels, self.default_priority_level
        if levels and default and default > levels:
            raise ValueError(
                f"default_priority_level: {default} is none of {levels} priority_levels: lower it, or raise the levels"
            )
        return self


SHED_HTTP_STATUS: Final = {"UNAVAILABLE": 503, "RESOURCE_EXHAUSTED": 429, "DEADLINE_EXCEEDED": 504}


class SheddingConfig(ConfigSection):
    """Status and message for requests that miss their deadline or find the queue full."""

    status: Literal["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"] = Field(
        default="UNAVAILABLE",
        description="gRPC status of rejected requests (HTTP: 503, 429, 504). KServe retries the first three times",
    )


class RetriesConfig(ConfigSection):
    """Retries of requests on a lost Triton, and of those whose batch failed because of another request."""

    max: int = Field(
        default=1, ge=0, le=10, description="Largest number of retries of a request, if its deadline allows"
    )
    budget: float = Field(
        default=1.0,
        ge=0,
        le=100,
        description="Largest number of retries because of poison requests, per arriving request",
    )


class OutlierDetection(ConfigSection):
    """Outlier detection: ejects Tritons that fail while others succeed, though they answer probes."""

    consecutive_errors: int = Field(
        default=5, ge=0, description="Number of consecutive failures for an ejection; 0: any number"
    )
    error_rate: float = Field(
        default=0.5, gt=0, le=1, description="Fraction of failed calls within `window_s` for an ejection"
    )
    min_requests: int = Field(
        default=20, ge=1, description="Number of calls within `window_s` from which `error_rate` applies"
    )
    window_s: Seconds = Field(default=10.0, description="Length of the window for `error_rate`")
    base_ejection_time_s: Seconds = Field(
        default=10.0, description="Duration of the first ejection; each further one lasts twice as long"
    )
    max_ejection_time_s: Seconds = Field(
        default=300.0, description="Longest ejection; after this time without one the duration starts again"
    )
    max_ejection_fraction: float = Field(
        default=0.5, ge=0, le=1, description="Largest fraction of all Tritons that are ejected at a time; 0: none"
    )


class VersionRolloutConfig(ConfigSection):
    """Versions of a model for requests that name none: a stable one, and a candidate."""

    stable: int = Field(ge=1, description="Version that serves")
    candidate: int | None = Field(
        default=None, ge=1, description="New version that is compared, then promoted or undone; default: none"
    )
    shadow: Annotated[float | None, BeforeValidator(_share)] = Field(
        default=None,
        gt=0,
        le=1,
        description="First stage: fraction of requests of which both versions answer a copy, `5%` or 0.05; default: no "
        "such stage",
    )
    canary: Annotated[float | None, BeforeValidator(_share)] = Field(
        default=None,
        gt=0,
        lt=1,
        description="Second stage: fraction of requests that the candidate answers; default: no such stage",
    )
    sticky: bool = Field(
        default=False,
        description="Draw the version by tenant, or without `tenants` by client, instead of by request",
    )
    tolerance: Annotated[float, BeforeValidator(_share)] = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Canary: loss of attainment, and of requests without error, that a promotion allows",
    )
    numeric_tolerance: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Shadow: largest difference of floating-point responses that agree, as a fraction of their "
        "output's largest magnitude",
    )
    min_agreement: Annotated[float, BeforeValidator(_share)] = Field(
        default=0.99, ge=0, le=1, description="Shadow: least fraction of copies to which both versions answer alike"
    )
    max_slowdown: float = Field(
        default=1.2, gt=0, le=1e6, description="Shadow: largest latency as a multiple of the stable version's"
    )
    timeout_s: Seconds = Field(
        default=3600.0, description="Time for the verdict of a stage; without one the candidate is undone"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.candidate is None and (self.shadow is not None or self.canary is not None):
            raise ValueError("candidate: name the version that shadow and canary are for, or leave them out")
        if self.candidate is not None and self.shadow is None and self.canary is None:
            raise ValueError("candidate: nothing says how it is compared: set shadow, canary or both")
        if self.candidate == self.stable:
            raise ValueError(f"candidate: version {self.stable} is the stable one: name another version")
        return self


class RolloutsConfig(ConfigSection):
    """Changes of models: loads on one Triton after the other, and new versions beside old ones."""

    max_unavailable: int = Field(
        default=0,
        ge=0,
        description="Largest number of Tritons that get no requests while they load or unload a model for a client; "
        "0: each is used meanwhile",
    )
    versions: dict[Name, VersionRolloutConfig] = Field(
        default_factory=dict, description="Versions by model, for requests that name none; default: Triton's choice"
    )
    verdict_file: OutputFile | None = Field(
        default=None, description="File that keeps the verdicts on new versions over restarts; default: none"
    )


class BatchVerification(ConfigSection):
    """Verification that batching does not change responses: runs one request of some batches again alone."""

    fraction: float = Field(
        default=0.001,
        ge=0,
        le=1,
        description="Fraction of a model's batches to verify; its first ones more often, at most one per second, "
        "while its Triton is idle; 0: none",
    )
    tolerance: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="Largest difference of floating-point responses, as a fraction of their output's largest magnitude",
    )


class ServerTls(ConfigSection):
    """TLS for clients, over gRPC and HTTP. The files are reloaded when they change."""

    cert: InputFile = Field(description="PEM file with the server certificate, followed by the intermediate ones")
    key: InputFile = Field(description="PEM file with its private key, not encrypted")
    client_ca: InputFile | None = Field(
        default=None, description="PEM file with the CAs of client certificates, which are then required (mutual TLS)"
    )


class LogConfig(ConfigSection):
    """Settings of the log on standard error."""

    format: Literal["text", "json"] = Field(default="text", description="Text lines, or one JSON object per line")
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged"
    )


class TracingConfig(ConfigSection):
    """Settings of tracing with OpenTelemetry."""

    endpoint: str = Field(pattern=r"^https?://[^/\s]+", description="URL of an OTLP collector, e.g. http://otel:4317")


class ServeConfig(ConfigSection):
    """Complete configuration of `tidegate serve`."""

    version: Literal[1] = Field(default=CONFIG_VERSION, description="Version of the file format")
    tritons: Annotated[
        tuple[Annotated[TritonAddress, _short(TritonAddress, "grpc")], ...],
        _OrSource(),
    ] = Field(
        description="Tritons behind Tidegate; a string is a gRPC address. A mapping with `dns`, `file` or `kubernetes` "
        "stands for one entry of `discovery`"
    )
    discovery: tuple[TritonSource, ...] = Field(
        default=(), description="Sources of Tritons that come and go while Tidegate serves, beside `tritons`"
    )
    listen: Annotated[ListenConfig, _short(ListenConfig, "grpc")] = Field(
        default=ListenConfig(grpc="0.0.0.0:8101", http="0.0.0.0:8100", metrics="127.0.0.1:8102"),
        description="Addresses for clients; a string is the gRPC address",
    )
    policy: Annotated[PolicyChoice, _short(PolicyChoice, "name")] = Field(
        default=PolicyChoice(), description="Scheduling policy; a string is its name"
    )
    controller: ControllerChoice | None = Field(
        default=None, description="Controller that changes the layout while serving; default: none"
    )
    models: dict[Name, ModelConfig] = Field(default_factory=dict, description="Settings by model")
    graphs: dict[Name, GraphConfig] = Field(
        default_factory=dict, description="Graphs of models, each served as one model whose steps are scheduled"
    )
    layout: InputFile | None = Field(
        default=None, description="Layout of a planner, whose workers are the Tritons. Default: none"
    )
    profiles: InputFile | None = Field(default=None, description="Profile file, written by `tidegate profile`")
    event_log: OutputFile | None = Field(
        default=None,
        description="File for the event log (JSON lines); an existing one is renamed to FILE.1, ...",
    )
    observers: tuple[Annotated[ObserverChoice, _short(ObserverChoice, "name")], ...] = Field(
        default=(), description="Observers of the engine; a string is the name of one"
    )
    shadow: bool = Field(
        default=False,
        description="Bypass all requests, and simulate what the policy would have done; results at /shadow",
    )
    canary: Annotated[float | None, BeforeValidator(_share)] = Field(
        default=None,
        ge=0,
        le=1,
        description="Fraction of the time in which requests are scheduled; otherwise they are bypassed, and "
        "/canary compares both: `5%`, or 0.05; default: always",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the policy's random generator")
    startup_timeout_s: Seconds = Field(
        default=10.0, description="Time to wait at start for the Tritons to become ready"
    )
    clients: ClientsConfig = Field(default=ClientsConfig(), description="Identification of clients")
    tenants: TenantsConfig | None = Field(
        default=None, description="Tenants, with weights, priorities and rate limits; default: none"
    )
    priority_floors: Annotated[dict[int, float], AfterValidator(floors_checked)] = Field(
        default_factory=dict,
        description="Fraction of worker time that a priority class keeps, by priority; default: 0.05 for the least "
        "urgent class that waits",
    )
    prices: dict[Name, Annotated[float, Field(ge=0, le=1e9)]] = Field(
        default_factory=dict,
        description="Price of one hour of a worker by device class, for `tidegate_gpu_cost_total`; default: no costs",
    )
    app: AppConfig = Field(default=AppConfig(), description="Source of a request's application; default: none")
    feature: FeatureConfig = Field(
        default=FeatureConfig(), description="Source of a number that explains a request's latency; default: none"
    )
    limits: LimitsConfig = Field(default=LimitsConfig(), description="Limits on clients")
    shedding: SheddingConfig = Field(default=SheddingConfig(), description="Rejection of requests")
    retries: RetriesConfig = Field(default=RetriesConfig(), description="Retries of requests on a lost Triton")
    outlier_detection: OutlierDetection = Field(
        default=OutlierDetection(), description="Ejection of Tritons that fail though they answer health probes"
    )
    batch_verification: BatchVerification = Field(
        default=BatchVerification(), description="Verification that responses in a batch equal those of a request alone"
    )
    rollouts: RolloutsConfig = Field(
        default=RolloutsConfig(), description="Loads and unloads by clients, and new versions of models"
    )
    drain_timeout_s: float = Field(
        default=20.0, ge=0, le=1e6, description="Time for requests in flight to end when Tidegate is stopped"
    )
    frontends: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Number of processes that hold clients' connections, beside the scheduler process; 0: the "
        "scheduler holds them",
    )
    shards: tuple[ShardConfig, ...] = Field(
        default=(), description="Shards, each with its own Tritons, behind the same frontends; replaces `tritons`"
    )
    plan: InputFile | None = Field(
        default=None, description="Assignment of models to shards, from `tidegate plan subclusters`. Default: none"
    )
    shard_links: LinksConfig = Field(default=LinksConfig(), description="Links between frontends and shards")
    tls: ServerTls | None = Field(default=None, description="TLS for clients; default: none")
    authentication: AuthenticationConfig | None = Field(
        default=None, description="Authentication of clients; default: none"
    )
    restricted: tuple[ApiRestriction, ...] = Field(default=(), description="Restricted APIs")
    dashboard: DashboardConfig = Field(default=DashboardConfig(), description="Dashboard, served beside the metrics")
    shared_memory: Literal["pass-through", "refuse"] = Field(
        default="pass-through",
        description="Requests with tensors in shared memory: pass them through to a Triton, or refuse them",
    )
    log: LogConfig = Field(default=LogConfig(), description="Logs on standard error")
    tracing: TracingConfig | None = Field(default=None, description="Traces by OpenTelemetry; default: none")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.tritons and not self.discovery:
            raise ValueError("tritons: must have at least 1 entry, not 0")
        scaled = any(source.kubernetes and source.kubernetes.scaling for source in self.discovery)
        if scaled and len(self.tritons) + len(self.discovery) > 1:
            raise ValueError(
                "discovery: kubernetes.scaling goes by the load of all Tritons, so they must all come from its "
                "service: leave the other sources out, or scale by an HPA"
            )
        if self.discovery and (self.layout or self.shards):
            section = "layout" if self.layout else "shards"
            raise ValueError(f"discovery: Tritons that come and go cannot serve a {section}: leave one of them out")
        for address, count in Counter(triton.grpc for triton in self.tritons).items():
            if count > 1:
                raise ValueError(f"tritons: {address} stands there {count} times")
        self._check_ports()
        self._check_take_over()
        self._check_workers()
        self._check_shadow()
        self._check_versions()
        self._check_shards()
        self._check_on_demand()
        self._check_graphs()
        if self.controller is not None and self.layout is None:
            raise ValueError(
                "controller: it changes a layout, and there is none: name one, or leave the controller out"
            )
        decided = Counter(
            (api, protocol) for entry in self.restricted for api in entry.apis for protocol in entry.protocols
        )
        for (api, _), count in decided.items():
            if count > 1:
                raise ValueError(f"restricted: {api!r} stands there {count} times; one entry must decide")
        return self

    def _check_on_demand(self) -> None:
        """Models that are loaded on demand need memory, and Tritons that nothing else arranges."""
        on_demand = {name: model for name, model in self.models.items() if model.load == "on-demand"}
        if unused := next(
            (name for name, model in self.models.items() if model.memory and name not in on_demand), None
        ):
            raise ValueError(
                f"models.{unused}.memory: only with load: on-demand it has an effect: leave one of them out"
            )
        if not on_demand:
            return
        first = next(iter(on_demand))
        for section in ("layout", "shards", "shadow"):
            if getattr(self, section):
                raise ValueError(f"models.{first}.load: with {section} nothing is loaded on demand: leave it out")
        for graph, said in self.graphs.items():
            if step := next((step.model for step in said.steps if step.model in on_demand), None):
                raise ValueError(f"graphs.{graph}.steps: model {step!r} is loaded on demand: leave its `load` out")
        budgets = [each.model_memory for each in (*self.tritons, *self.discovery) if each.model_memory]
        files = [source for source in self.discovery if source.file]
        if not budgets and not files:
            raise ValueError(f"models.{first}.load: no Triton has memory for it: set tritons.N.model_memory")
        for name, model in on_demand.items():
            if model.memory and not files and model.memory > max(budgets):
                raise ValueError(
                    f"models.{name}.memory: {model.memory} bytes are more than the model_memory of any Triton "
                    f"({max(budgets)}): it could never be loaded"
                )

    def _check_shards(self) -> None:
        if not self.shards:
            if self.plan is not None:
                raise ValueError("plan: it says which shard has which model, and there are no `shards`: name them")
            return
        if not self.frontends:
            raise ValueError("frontends: clients of several shards are connected to frontends: set it to 1 or more")
        if self.layout is not None:
            raise ValueError("layout: it is for one shard, with `tritons`: give each shard its own, shards.N.layout")
        apart = [index for index, shard in enumerate(self.shards) if shard.address]
        if apart and len(apart) < len(self.shards):
            raise ValueError("shards: either all of them have an `address`, for other machines, or none has")
        for index, shard in enumerate(self.shards):
            if shard.listen and not shard.address:
                raise ValueError(
                    f"shards.{index}.listen: without an `address` no frontend connects from another machine"
                )
        if apart and not (self.shard_links.secret_file or self.shard_links.tls):
            raise ValueError(
                "shard_links: shards with an `address` can be reached from other machines, "
                "and may be asked by anybody there: "
                "set shard_links.secret_file, shard_links.tls or both"
            )

    def _check_graphs(self) -> None:
        """No Triton has a graph by its name, so that its requests cannot bypass; none may be within itself."""
        others = {"layout": self.layout, "shards": self.shards, "shadow": self.shadow, "canary": self.canary}
        if self.graphs and (found := [name for name, value in others.items() if value]):
            raise ValueError(f"graphs: they are not served with {found[0]}: leave one of the two out")
        steps = {name: [step.model for step in graph.steps] for name, graph in self.graphs.items()}
        within = {name: [model for model in models if model in steps] for name, models in steps.items()}
        try:
            TopologicalSorter(within).prepare()
        except CycleError as error:
            cycle = " -> ".join(error.args[1][::-1])
            raise ValueError(f"graphs: they form a cycle ({cycle}): leave out one of these steps") from None

    def _check_workers(self) -> None:
        if not self.shards:
            check_workers(self.tritons, self.layout, "")
        for index, shard in enumerate(self.shards):
            check_workers(shard.tritons, shard.layout, f"shards.{index}.")
        limited = [name for name, model in self.models.items() if model.max_concurrency is not None]
        if limited and (self.layout is not None or any(shard.layout for shard in self.shards)):
            raise ValueError(
                f"models.{limited[0]}.max_concurrency: it makes slots, and a layout says which workers there are: "
                "leave one of the two out"
            )

    def _check_shadow(self) -> None:
        """Change nothing at the Tritons if all requests bypass."""
        if self.shadow and self.canary is not None:
            raise ValueError("canary: a share is scheduled, and shadow schedules nothing: leave one of them out")
        if not self.shadow and self.canary is None:
            return
        which = "shadow" if self.shadow else "canary"
        if self.layout is not None or any(shard.layout for shard in self.shards):
            raise ValueError(
                f"{which}: models of a layout may be split, and split models cannot bypass the scheduler: "
                "leave layout out"
            )
        limited = [name for name, model in self.models.items() if model.max_concurrency is not None]
        if self.shadow and limited:
            raise ValueError(f"shadow: models.{limited[0]}.max_concurrency would hold requests back: leave it out")
        if delayed := [name for name, model in self.models.items() if model.strip_queue_delay]:
            raise ValueError(f"{which}: models.{delayed[0]}.strip_queue_delay would change the Tritons: leave it out")

    def _check_versions(self) -> None:
        """Shadow mode, canary and layouts are for the version that Triton chooses."""
        for name in self.rollouts.versions:
            where = f"rollouts.versions.{name}"
            for section in ("layout", "shards", "shadow", "canary"):
                if getattr(self, section):
                    raise ValueError(f"{where}: with {section} no version is chosen: leave one of the two out")
            if name in self.graphs:
                raise ValueError(f"{where}: it is a graph, which has no versions: name a model")
            if (model := self.models.get(name)) and model.load == "on-demand":
                raise ValueError(f"{where}: the model is loaded on demand, in one version: leave one of the two out")

    def _check_take_over(self) -> None:
        """Clients have to leave the old process while it still answers."""
        if not self.listen.reuse_port:
            return
        if self.drain_timeout_s < 2 * RECONNECT_NOTICE_S:
            raise ValueError(
                f"listen.reuse_port: set drain_timeout_s to {2 * RECONNECT_NOTICE_S:g} s or more: clients reconnect"
            )

    def _check_ports(self) -> None:
        own = [
            (name, address)
            for name, address in (
                ("grpc", self.listen.grpc),
                ("http", self.listen.http),
                ("metrics", self.listen.metrics),
            )
            if address is not None and port_of(address)
        ]
        for index, (name, address) in enumerate(own):
            for other, taken in own[:index]:
                if port_of(address) == port_of(taken) and (
                    host_of(address) == host_of(taken) or listens_on(address, taken) or listens_on(taken, address)
                ):
                    raise ValueError(f"listen: {other} and {name} both want port {port_of(address)}: give one another")
            for triton in self.tritons:
                if listens_on(address, triton.grpc):
                    raise ValueError(f"listen.{name}: {address} is the address of a Triton, {triton.grpc}")


log = logging.getLogger(__name__)

_RESERVE: Final = 128
"""Descriptors at least for files, libraries and connections to Tritons."""
_RESERVE_FRACTION: Final = 8
"""And at least an eighth of all."""


def within_descriptors(config: ServeConfig) -> ServeConfig:
    """Return the configuration with as many connections per port as open files allow.

    Warns if these are fewer than the configuration asks for; the default asks for as many as there can be.
    Each port has its own part, so that a flood of connections on one does not affect the others.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return config
    ports = [port for port in (config.listen.grpc, config.listen.http, config.listen.metrics) if port]
    allowed = max(1, (files - max(_RESERVE, files // _RESERVE_FRACTION)) // max(1, len(ports)))
    if allowed >= config.limits.max_connections:
        return config
    log.log(
        logging.WARNING if "max_connections" in config.limits.model_fields_set else logging.DEBUG,
        "fewer connections allowed than limits.max_connections: raise the limit of open files (ulimit -n, "
        "LimitNOFILE=), or lower max_connections",
        extra={
            "max_connections": config.limits.max_connections,
            "ports": len(ports),
            "open_files": files,
            "allowed_per_port": allowed,
        },
    )
    limits = config.limits.model_copy(update={"max_connections": allowed})
    return config.model_copy(update={"limits": limits})
