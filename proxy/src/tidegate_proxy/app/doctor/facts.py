"""Facts that the doctor collects, the latency of one row derived from them, and findings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from tritonclient.grpc import model_config_pb2

from tidegate.api import Model, Profile, Worker
from tidegate.schemas import Hardware, ProfileFile
from tidegate_proxy.configuration.config import ModelConfig, ServeConfig
from tidegate_proxy.tritons.batching_mode import BatchingDecision
from tidegate_proxy.tritons.catalog import Catalog, catalog_for_shadow
from tidegate_proxy.tritons.initial_profiles import unmatched_shapes

Severity = Literal["error", "warning", "advice"]
"""Severity: error (prevents serving), warning (costs something), advice (something could be gained)."""
SEVERITY_ORDER: Final[tuple[Severity, ...]] = ("error", "warning", "advice")


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: one sentence, with a remedy."""

    severity: Severity
    rule: str
    """Rule id, such as `slo-too-short`."""
    where: str
    """Path of a field of the configuration, e.g. `models.resnet50.slo_ms`, or another place."""
    what: str
    remedy: str
    """Remedy: what the operator should do."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}" if self.remedy else f"{self.where}: {self.what}"


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, most severe first; equal ones at several places become one that names them all."""
    places: dict[tuple[Severity, str, str, str], list[str]] = {}
    for finding in findings:
        where = places.setdefault((finding.severity, finding.rule, finding.what, finding.remedy), [])
        if finding.where not in where:
            where.append(finding.where)
    found = [
        Finding(severity, rule, _places(where), what, remedy)
        for (severity, rule, what, remedy), where in places.items()
    ]
    return sorted(found, key=lambda finding: SEVERITY_ORDER.index(finding.severity))


def _places(places: Sequence[str]) -> str:
    """Return the models as text: `models a, b` for several."""
    names = [place.removeprefix("model ") for place in places]
    if len(places) > 1 and all(place.startswith("model ") for place in places):
        return f"models {', '.join(names)}"
    return ", ".join(places)


@dataclass(frozen=True, slots=True)
class ModelConfigForm:
    """Configuration of a model that some of the Tritons share."""

    config: model_config_pb2.ModelConfig
    tritons: tuple[str, ...]
    """Addresses of the Tritons."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Model as served by all Tritons together."""

    name: str
    consent: BatchingDecision
    """Scheduling mode of its requests, with the reason."""
    forms: tuple[ModelConfigForm, ...] = ()
    """Configurations on the Tritons, the leading one first; several if they differ; none for a split model."""
    model: Model | None = None
    """The model for the policy; None: its requests are not scheduled."""
    kinds: tuple[str, ...] = ()
    """Device classes of its workers."""
    workers: int = 0
    """Number of its workers."""
    beside: tuple[str, ...] = ()
    """Other models that run on all of these workers, serialized with it."""

    @property
    def config(self) -> model_config_pb2.ModelConfig:
        """Leading configuration; an empty one for a split model."""
        return self.forms[0].config if self.forms else model_config_pb2.ModelConfig(name=self.name)

    @property
    def slo_ms(self) -> float | None:
        """SLO in ms; None if it has none that applies."""
        return None if self.model is None or self.model.slo_ns is None else self.model.slo_ns / 1e6


@dataclass(frozen=True, slots=True)
class NotReady:
    """Version of a model that a Triton failed to load."""

    triton: str
    model: str
    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class Executions:
    """Statistics of a Triton on batches of one row of a model."""

    count: int
    mean_ms: float
    """Mean time from reading inputs to writing outputs on an instance."""


@dataclass(frozen=True, slots=True)
class RowsVerdict:
    """Verdict on whether the rows of a model are independent."""

    batches: bool | None
    """Whether they are; None if unknown."""
    reason: str
    """Clause with the reason, without a full stop."""


@dataclass(frozen=True)
class DoctorFacts:
    """All facts about configuration, Tritons, profiles and hardware."""

    config: ServeConfig
    services: Mapping[str, ServedModel] = field(default_factory=dict)
    """Models that some Triton has ready, by name."""
    measured: ProfileFile = field(default_factory=lambda: ProfileFile(profiles=[]))
    planned: Sequence[Profile] = ()
    """Latency profiles of the partitions in a layout."""
    unmatched_shapes: Sequence[str] = ()
    """Shapes of the profile file that no request has (`initial_profiles.unmatched_shapes`)."""
    judged: frozenset[str] = frozenset()
    """Models that shadow mode judges, or a canary leaves to Triton, though their requests are not scheduled."""
    unpadded: Mapping[str, str] = field(default_factory=dict)
    """Models that cannot be padded as configured, with the reason."""
    not_ready: Sequence[NotReady] = ()
    executions: Mapping[str, Executions] = field(default_factory=dict)
    """Statistics of Tritons by model."""
    rows: Mapping[str, RowsVerdict] = field(default_factory=dict)
    """Row independence by model, of those whose ONNX files could be read."""
    bls_calls: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Served models that a BLS model calls, by model, of those whose `model.py` could be read."""
    refusal: str = ""
    """Reason for which the policy rejects these models; "": it accepts them, or was not asked."""
    broken_plugins: Mapping[str, str] = field(default_factory=dict)
    """Distributions whose plugin could not be imported, with the reason."""
    hardware: Hardware | None = None
    """Hardware of this machine; None: unknown."""
    has_nvml: bool = True
    """Whether the package is installed that detects the GPUs of this machine."""

    def config_of(self, name: str) -> ModelConfig:
        """Return the configuration of a model."""
        return self.config.models.get(name, ModelConfig())

    @property
    def has_layout(self) -> bool:
        """Whether a layout of a planner has all latencies."""
        return self.config.layout is not None


def facts_of(config: ServeConfig, catalog: Catalog, measured: ProfileFile) -> DoctorFacts:
    """Return the facts from the configuration and the Tritons' catalog, before anything else is queried."""
    is_rollout = config.shadow or config.canary is not None
    judged = catalog_for_shadow(catalog, config.models) if is_rollout else catalog
    return DoctorFacts(
        config,
        services={name: _service(catalog, name) for name in sorted(catalog.consents)},
        measured=measured,
        planned=catalog.layout.contract()[2] if catalog.layout else (),
        unmatched_shapes=unmatched_shapes(catalog, measured),
        judged=frozenset(judged.models.keys() - catalog.models.keys()),
        unpadded=catalog.unpadded,
    )


def _service(catalog: Catalog, name: str) -> ServedModel:
    model = catalog.models.get(name)
    partitions = {part for path in model.paths for part in path.partitions} if model else set()
    workers = [worker for worker in catalog.workers if partitions.intersection(worker.hosts)]
    forms = [
        ModelConfigForm(variant.config, tuple(backend.address for backend in variant.backends))
        for variant in catalog.variants.get(name, ())
    ]
    if not forms and name not in catalog.split:
        having = [
            (backend.address, loaded.config)
            for backend, models in catalog.loaded.items()
            for loaded in models
            if loaded.config.name == name
        ]
        forms = [ModelConfigForm(having[0][1], tuple(sorted(address for address, _ in having)))] if having else []
    return ServedModel(
        name,
        catalog.consents[name],
        tuple(forms),
        model,
        tuple(sorted({worker.device_class for worker in workers})),
        len(workers),
        tuple(sorted(_on_all(workers) & catalog.models.keys() - {name})),
    )


def _on_all(workers: Sequence[Worker]) -> set[str]:
    """Return the partitions that every one of these workers hosts."""
    return set.intersection(*(set(worker.hosts) for worker in workers)) if workers else set()


MIN_EXECUTIONS: Final = 100
"""Number of executions from which their mean is trusted: the first ones may take a hundred times as long."""


@dataclass(frozen=True, slots=True)
class OneRow:
    """Latency of requests of one row and one shape on the fastest worker."""

    expected_ms: float
    upper_ms: float
    """95th percentile of the latency in ms; equal to the expected one if unknown."""
    source: str
    """Source of the latency."""
    shape: str = ""
    """Shape; "" stands for all shapes without a prediction of their own."""


def one_row(facts: DoctorFacts, service: ServedModel) -> list[OneRow]:
    """Return the latency of one row by shape; empty if unknown.

    A profile takes precedence over a mean since Triton's start.
    """
    if service.model is None:
        return []
    if facts.has_layout:
        return _by_layout(facts, service.model)
    profiled = _by_profile(facts, service)
    if profiled:
        return profiled
    executions = facts.executions.get(service.name)
    if executions is not None and executions.count >= MIN_EXECUTIONS:
        source = f"the mean of {executions.count:,} executions, by its Triton's statistics"
        return [OneRow(executions.mean_ms, executions.mean_ms, source)]
    return []


def _by_layout(facts: DoctorFacts, model: Model) -> list[OneRow]:
    """Return the latency of the fastest route through the partitions, without links; None if the layout lacks it."""
    quickest: dict[str, Profile] = {}
    for profile in facts.planned:
        known = quickest.get(profile.partition)
        if known is None or profile.expected_ns(1) < known.expected_ns(1):
            quickest[profile.partition] = profile
    ways = [path.partitions for path in model.paths if quickest.keys() >= set(path.partitions)]
    rows = [
        OneRow(
            sum(quickest[name].expected_ns(1) for name in way) / 1e6,
            sum(quickest[name].upper_ns(1) for name in way) / 1e6,
            "the layout, without links",
        )
        for way in ways
    ]
    return [min(rows, key=lambda row: row.expected_ms)] if rows else []


def _by_profile(facts: DoctorFacts, service: ServedModel) -> list[OneRow]:
    assert service.model is not None
    quickest: dict[str, OneRow] = {}
    for device_class in service.kinds:
        profiles = facts.measured.profiles_of(service.name, device_class, service.model.max_rows)
        for profile in profiles:
            if not profile.shape and len(profiles) > 1:
                continue  # what the slowest of the others takes
            source = f"the profile for workers of device class {device_class!r}"
            row = OneRow(profile.expected_ns(1) / 1e6, profile.upper_ns(1) / 1e6, source, profile.shape)
            if profile.shape not in quickest or row.expected_ms < quickest[profile.shape].expected_ms:
                quickest[profile.shape] = row
    return sorted(quickest.values(), key=lambda row: row.expected_ms)
