"""What is known of a configuration and of the Tritons that it names: what findings are made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tritonclient.grpc import model_config_pb2

from tidegate.api import Model, Profile, Worker
from tidegate.documents import Hardware, ProfileFile
from tidegate_proxy.configuration.config import ModelConfig, ServeConfig
from tidegate_proxy.tritons.batching_mode import Consent
from tidegate_proxy.tritons.catalog import Catalog
from tidegate_proxy.tritons.starting_profiles import misfits


@dataclass(frozen=True, slots=True)
class Form:
    """What some of the Tritons have of a model."""

    config: model_config_pb2.ModelConfig
    tritons: tuple[str, ...]
    """Their addresses."""


@dataclass(frozen=True, slots=True)
class Service:
    """One model, as all Tritons together serve it."""

    name: str
    consent: Consent
    """What happens to its requests, and why."""
    forms: tuple[Form, ...] = ()
    """What the Tritons have of it, the leading form first; more than one where they disagree; none of a split model."""
    model: Model | None = None
    """As the policy sees it; None: its requests are not scheduled."""
    kinds: tuple[str, ...] = ()
    """The kinds of the workers that it runs on."""
    workers: int = 0
    """How many workers it runs on."""
    beside: tuple[str, ...] = ()
    """The other models that run on every one of these, in turn with it."""

    @property
    def config(self) -> model_config_pb2.ModelConfig:
        """The leading form's config; an empty one of a split model."""
        return self.forms[0].config if self.forms else model_config_pb2.ModelConfig(name=self.name)

    @property
    def slo_ms(self) -> float | None:
        """Its SLO, where it has one that counts."""
        return None if self.model is None or self.model.slo_ns is None else self.model.slo_ns / 1e6


@dataclass(frozen=True, slots=True)
class NotReady:
    """A version of a model that a Triton has, and could not make ready."""

    triton: str
    model: str
    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class Executions:
    """What a Triton's statistics say of the batches of one row that a model has run."""

    count: int
    mean_ms: float
    """From the moment an instance begins with the inputs until it is done with the outputs."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What became of requests of one row of zeros that were sent to find out how long that takes."""

    took_ms: float | None
    """None: it was not answered."""
    why_not: str = ""
    open_dimensions: bool = False
    """Whether sizes that the model leaves open were taken to be 1: then larger requests take longer."""


@dataclass(frozen=True, slots=True)
class RowsVerdict:
    """Whether the rows of a model are independent."""

    batches: bool | None
    """None: it could not be found out."""
    reason: str
    """A clause for people, without a full stop."""


@dataclass(frozen=True)
class Facts:
    """Everything that is known."""

    config: ServeConfig
    services: Mapping[str, Service] = field(default_factory=dict)
    """Every model that some Triton has ready, by name."""
    measured: ProfileFile = field(default_factory=lambda: ProfileFile(profiles=[]))
    planned: Sequence[Profile] = ()
    """How long the partitions of a layout run, as it says."""
    misfits: Sequence[str] = ()
    """What the profile file says of shapes that no request runs in (`starting_profiles.misfits`)."""
    unpadded: Mapping[str, str] = field(default_factory=dict)
    """Models that cannot be padded as the configuration says, and why."""
    not_ready: Sequence[NotReady] = ()
    executions: Mapping[str, Executions] = field(default_factory=dict)
    """What Tritons have counted, by model."""
    rows: Mapping[str, RowsVerdict] = field(default_factory=dict)
    """Whether rows are independent, by model; only of those whose ONNX files could be read."""
    timed: Mapping[str, Timed] = field(default_factory=dict)
    """What was timed, by model; only of those that were asked."""
    refusal: str = ""
    """Why the policy does not take what the Tritons serve; empty: it does, or nobody has asked."""
    broken_plugins: Mapping[str, str] = field(default_factory=dict)
    """The distributions whose plugin could not be imported, with the reason."""
    hardware: Hardware | None = None
    """What this machine has; None: nobody has looked."""
    has_nvml: bool = True
    """Whether the package is installed that tells which GPUs this machine has."""

    def told(self, name: str) -> ModelConfig:
        """What the configuration says of a model."""
        return self.config.models.get(name, ModelConfig())

    @property
    def has_layout(self) -> bool:
        """Whether a planner has said how long everything takes."""
        return self.config.layout is not None


def facts_of(config: ServeConfig, catalog: Catalog, measured: ProfileFile) -> Facts:
    """What the configuration and the Tritons' catalog say, before anything else is asked for."""
    return Facts(
        config,
        services={name: _service(catalog, name) for name in sorted(catalog.consents)},
        measured=measured,
        planned=catalog.layout.contract()[2] if catalog.layout else (),
        misfits=misfits(catalog, measured),
        unpadded=catalog.unpadded,
    )


def _service(catalog: Catalog, name: str) -> Service:
    model = catalog.models.get(name)
    partitions = {part for path in model.paths for part in path.partitions} if model else set()
    workers = [worker for worker in catalog.workers if partitions.intersection(worker.hosts)]
    forms = [
        Form(variant.config, tuple(backend.address for backend in variant.backends))
        for variant in catalog.variants.get(name, ())
    ]
    if not forms and name not in catalog.split:
        having = [
            (backend.address, loaded.config)
            for backend, models in catalog.loaded.items()
            for loaded in models
            if loaded.config.name == name
        ]
        forms = [Form(having[0][1], tuple(sorted(address for address, _ in having)))] if having else []
    return Service(
        name,
        catalog.consents[name],
        tuple(forms),
        model,
        tuple(sorted({worker.kind for worker in workers})),
        len(workers),
        tuple(sorted(_on_all(workers) & catalog.models.keys() - {name})),
    )


def _on_all(workers: Sequence[Worker]) -> set[str]:
    """What every one of these workers hosts."""
    return set.intersection(*(set(worker.hosts) for worker in workers)) if workers else set()
