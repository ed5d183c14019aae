"""Configuration of `tidegate serve`, as written in the file (docs/reference/config.md) and as used.

`config_file` reads it and applies the command-line options. Fields in milliseconds and seconds end in `_ms` and `_s`.
"""

from collections import Counter
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    model_validator,
)

from tidegate.api.model import DeadlineMissAction
from tidegate.control import ControllerChoice
from tidegate_proxy.configuration.access import ApiRestriction, AuthenticationConfig, DashboardConfig
from tidegate_proxy.configuration.addresses import Address, ListenAddress, host_of, listens_on, port_of
from tidegate_proxy.configuration.clients import AppConfig, ClientsConfig
from tidegate_proxy.configuration.limits import LimitsConfig
from tidegate_proxy.configuration.links import LinksConfig
from tidegate_proxy.configuration.padding import MergeConfig
from tidegate_proxy.configuration.section import ConfigSection, InputFile, Name, OutputFile, SchedulingMode, Seconds
from tidegate_proxy.configuration.tritons import TritonAddress, check_workers

CONFIG_VERSION: Literal[1] = 1
AGE_JITTER: Final = 1.2
"""Factor on a connection's age at which gRPC has ended it, including notice to the client."""
TOLD_S: Final = 1.0
"""Seconds within which clients have been told to reconnect elsewhere."""


def _share(given: object) -> object:
    """A share that may be told in percent, as a number from 0 to 1; what is no number is left to be refused."""
    if not isinstance(given, str):
        return given
    number, is_percent = given.strip().removesuffix("%"), given.strip().endswith("%")
    try:
        share = float(number) / 100 if is_percent else float(number)
    except ValueError:
        raise ValueError(f"must be a share, such as 5% or 0.05, not {given!r}") from None
    if share > 1 and not is_percent:
        raise ValueError(f"must be a share of at most 1, not {given}: for {number} percent write {number}%")
    return share


def _short(section: type[ConfigSection], field: str) -> BeforeValidator:
    """A section that may be written as the value of its one essential field."""
    return BeforeValidator(
        lambda given: {field: given} if isinstance(given, str) else given, json_schema_input_type=section | str
    )


class ShardConfig(ConfigSection):
    """Shard: an engine with its own Tritons, in a process of its own."""

    tritons: tuple[Annotated[TritonAddress, _short(TritonAddress, "grpc")], ...] = Field(
        min_length=1, description="Its Tritons; a string is a gRPC address"
    )
    address: Address | None = Field(
        default=None,
        description="HOST:PORT where frontends of other machines find it; default: it runs beside its frontends",
    )
    listen: ListenAddress | None = Field(
        default=None, description="Where it listens for them; default: on the port of `address`, of every interface"
    )
    layout: InputFile | None = Field(
        default=None, description="A planner's layout; each of its Tritons then is one of its workers. Default: none"
    )


class ListenConfig(ConfigSection):
    """Addresses for clients. A protocol without an address is not served."""

    grpc: ListenAddress = Field(description="HOST:PORT of the gRPC service; port 0 takes a free one")
    http: ListenAddress | None = Field(default=None, description="HOST:PORT of the HTTP service")
    metrics: ListenAddress | None = Field(default=None, description="HOST:PORT of the metrics page")
    reuse_port: bool = Field(
        default=False, description="Another Tidegate may listen on the same ports, to take over: SO_REUSEPORT"
    )


class PolicyChoice(ConfigSection):
    """The scheduling policy and its options."""

    name: Name = Field(default="symphony", description="`tidegate plugins` lists them")
    options: dict[Name, Any] = Field(default_factory=dict, description="Options of that policy")


class ObserverChoice(ConfigSection):
    """An observer of the engine, and its options."""

    name: Name = Field(description="`tidegate plugins` lists them")
    options: dict[Name, Any] = Field(default_factory=dict, description="Options of that observer")


class ModelConfig(ConfigSection):
    """Settings of a model beyond its config.pbtxt."""

    slo_ms: float | None = Field(default=None, gt=0, lt=1e12, description="Replaces `slo_ms` of its config.pbtxt")
    scheduling: SchedulingMode | None = Field(
        default=None,
        description="Its requests share batches (batched), run one by one (unbatched), or are not scheduled (bypass). "
        "Replaces `tidegate_scheduling` of its config.pbtxt; default: batched only where Triton would batch",
    )
    on_deadline_miss: DeadlineMissAction | None = Field(
        default=None,
        description="Requests that cannot meet their deadline are refused (reject) or answered late (serve), with what "
        "those on time leave over. Replaces `tidegate_on_deadline_miss` of its config.pbtxt; default: reject",
    )
    merge: MergeConfig = Field(default=MergeConfig(), description="How its requests share batches")
    strip_queue_delay: bool = Field(
        default=False,
        description="Have a Triton under explicit model control load it without `max_queue_delay_microseconds`",
    )


SHED_HTTP_STATUS: Final = {"UNAVAILABLE": 503, "RESOURCE_EXHAUSTED": 429, "DEADLINE_EXCEEDED": 504}


class SheddingConfig(ConfigSection):
    """Status and message for requests that miss their deadline or find the queue full."""

    status: Literal["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"] = Field(
        default="UNAVAILABLE", description="gRPC status (HTTP: 503, 429, 504). KServe retries the first three times"
    )


class RetriesConfig(ConfigSection):
    """Retries of requests on a lost Triton, and of those whose batch failed because of another request."""

    max: int = Field(
        default=1, ge=0, le=10, description="How often a request is tried elsewhere, its deadline allowing"
    )
    budget: float = Field(
        default=1.0,
        ge=0,
        le=100,
        description="Requests tried again because another poisoned their batch, at most, per request that comes",
    )


class OutlierDetection(ConfigSection):
    """Outlier detection: ejects Tritons that fail while others succeed, though they answer probes."""

    consecutive_errors: int = Field(default=5, ge=0, description="So many failures in a row; 0: they do not matter")
    error_rate: float = Field(default=0.5, gt=0, le=1, description="Or such a share of its calls within `window_s`")
    min_requests: int = Field(default=20, ge=1, description="That share counts from so many calls on")
    window_s: Seconds = Field(default=10.0, description="How long calls are counted for that share")
    base_ejection_time_s: Seconds = Field(
        default=10.0, description="How long the first outlier_detection lasts; the second twice as long ..."
    )
    max_ejection_time_s: Seconds = Field(
        default=300.0, description="The longest; after so long without one it begins anew"
    )
    max_ejection_fraction: float = Field(
        default=0.5, ge=0, le=1, description="Of all Tritons, at most so many are ejected at a time; 0: none ever"
    )


class BatchVerification(ConfigSection):
    """Verification that batching does not change responses: runs one request of some batches again alone."""

    fraction: float = Field(
        default=0.001,
        ge=0,
        le=1,
        description="Fraction of a model's batches that are verified; its first ones more often, one a second at most, "
        "while its Triton is idle; 0: none",
    )
    tolerance: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="Floating-point answers agree within this fraction of their output's largest magnitude",
    )


class ServerTls(ConfigSection):
    """TLS for clients, over gRPC and HTTP. The files are reloaded when they change."""

    cert: InputFile = Field(description="PEM file: our certificate, then those that lead to the CA")
    key: InputFile = Field(description="PEM file: its private key, not encrypted")
    client_ca: InputFile | None = Field(
        default=None, description="PEM file: clients must show a certificate of these CAs (mutual TLS)"
    )


class LogConfig(ConfigSection):
    """Settings of the log on standard error."""

    format: Literal["text", "json"] = Field(default="text", description="For people, or one JSON object a line")
    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="The least that is written")


class TracingConfig(ConfigSection):
    """Settings of tracing with OpenTelemetry."""

    endpoint: str = Field(pattern=r"^https?://[^/\s]+", description="URL of an OTLP collector, e.g. http://otel:4317")


class ServeConfig(ConfigSection):
    """Complete configuration of `tidegate serve`."""

    version: Literal[1] = Field(default=CONFIG_VERSION, description="Of this format")
    tritons: tuple[Annotated[TritonAddress, _short(TritonAddress, "grpc")], ...] = Field(
        min_length=1, description="The Tritons; a string is a gRPC address"
    )
    listen: Annotated[ListenConfig, _short(ListenConfig, "grpc")] = Field(
        default=ListenConfig(grpc="0.0.0.0:8101", http="0.0.0.0:8100", metrics="0.0.0.0:8102"),
        description="Where clients find Tidegate; a string is the gRPC address",
    )
    policy: Annotated[PolicyChoice, _short(PolicyChoice, "name")] = Field(
        default=PolicyChoice(), description="The scheduling policy; a string is its name"
    )
    controller: ControllerChoice | None = Field(
        default=None, description="What changes the layout while it serves; default: nothing does"
    )
    models: dict[Name, ModelConfig] = Field(default_factory=dict, description="By model")
    layout: InputFile | None = Field(
        default=None, description="A planner's layout; every Triton then is one of its workers. Default: none"
    )
    profiles: InputFile | None = Field(default=None, description="Profile file, written by `tidegate profile`")
    event_log: OutputFile | None = Field(
        default=None,
        description="Write the event log to this file (JSON lines); one that is there is kept as FILE.1, ...",
    )
    observers: tuple[Annotated[ObserverChoice, _short(ObserverChoice, "name")], ...] = Field(
        default=(), description="Who watches the engine; a string is the name of an observer"
    )
    shadow: bool = Field(
        default=False,
        description="Every request passes as it is; what the policy would have done is simulated and told at /shadow",
    )
    canary: Annotated[float | None, BeforeValidator(_share)] = Field(
        default=None,
        ge=0,
        le=1,
        description="For this share of the time all is scheduled, else all passes as it is, and /canary compares both: "
        "`5%`, or 0.05; default: always",
    )
    seed: int = Field(default=0, ge=0, description="Of the policy's random generator")
    startup_timeout_s: Seconds = Field(
        default=10.0, description="How long to wait at start for the Tritons to become ready"
    )
    clients: ClientsConfig = Field(default=ClientsConfig(), description="Who counts as one client")
    app: AppConfig = Field(default=AppConfig(), description="What tells the application of a request; default: nothing")
    limits: LimitsConfig = Field(default=LimitsConfig(), description="What is refused or given up")
    shedding: SheddingConfig = Field(default=SheddingConfig(), description="How a request is refused")
    retries: RetriesConfig = Field(default=RetriesConfig(), description="Requests on a Triton that is lost")
    outlier_detection: OutlierDetection = Field(
        default=OutlierDetection(), description="Tritons that fail though they answer probes"
    )
    batch_verification: BatchVerification = Field(
        default=BatchVerification(), description="Whether answers in a batch are those that a request has alone"
    )
    drain_timeout_s: float = Field(
        default=20.0, ge=0, le=1e6, description="How long what is under way may take when Tidegate is asked to end"
    )
    frontends: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Processes that clients are connected to, beside the one that schedules; 0: it has them itself",
    )
    shards: tuple[ShardConfig, ...] = Field(
        default=(), description="Engines with Tritons of their own behind the same frontends, in place of `tritons`"
    )
    plan: InputFile | None = Field(
        default=None, description="Which shard has which model: a plan of `tidegate plan subclusters`. Default: none"
    )
    shard_links: LinksConfig = Field(default=LinksConfig(), description="Between frontends and shards")
    tls: ServerTls | None = Field(default=None, description="TLS towards clients; default: none")
    authentication: AuthenticationConfig | None = Field(default=None, description="Who may call; default: everybody")
    restricted: tuple[ApiRestriction, ...] = Field(default=(), description="APIs that are not for everybody")
    dashboard: DashboardConfig = Field(default=DashboardConfig(), description="The live page, beside the metrics")
    shared_memory: Literal["pass-through", "refuse"] = Field(
        default="pass-through",
        description="Requests with tensors in shared memory: to a Triton as they are, or refused",
    )
    log: LogConfig = Field(default=LogConfig(), description="What is written to standard error")
    tracing: TracingConfig | None = Field(default=None, description="OpenTelemetry; default: none")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for address, count in Counter(triton.grpc for triton in self.tritons).items():
            if count > 1:
                raise ValueError(f"tritons: {address} stands there {count} times")
        self._check_ports()
        self._check_take_over()
        self._check_workers()
        self._check_shadow()
        self._check_shards()
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
                raise ValueError(f"shards.{index}.listen: nobody comes from elsewhere without an `address`")
        if apart and not (self.shard_links.secret_file or self.shard_links.tls):
            raise ValueError(
                "shard_links: shards with an `address` can be reached from other machines, "
                "and may be asked by anybody there: "
                "set shard_links.secret_file, shard_links.tls or both"
            )

    def _check_workers(self) -> None:
        if not self.shards:
            check_workers(self.tritons, self.layout, "")
        for index, shard in enumerate(self.shards):
            check_workers(shard.tritons, shard.layout, f"shards.{index}.")

    def _check_shadow(self) -> None:
        """Where requests are to pass as they are nothing changes at the Tritons."""
        if self.shadow and self.canary is not None:
            raise ValueError("canary: a share is scheduled, and shadow schedules nothing: leave one of them out")
        if not self.shadow and self.canary is None:
            return
        which = "shadow" if self.shadow else "canary"
        if self.layout is not None or any(shard.layout for shard in self.shards):
            raise ValueError(
                f"{which}: models of a layout may be split, and then cannot pass as they are: leave layout out"
            )
        if delayed := [name for name, model in self.models.items() if model.strip_queue_delay]:
            raise ValueError(f"{which}: models.{delayed[0]}.strip_queue_delay would change the Tritons: leave it out")

    def _check_take_over(self) -> None:
        """Clients have to leave the old process while it still answers."""
        if not self.listen.reuse_port:
            return
        if self.drain_timeout_s < 2 * TOLD_S:
            raise ValueError(
                f"listen.reuse_port: set drain_timeout_s to {2 * TOLD_S:g} s or more, for clients to come over in time"
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
