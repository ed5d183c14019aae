"""Catalog: the models of all Tritons, which are scheduled, on which workers, and which are bypassed."""

import asyncio
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, cast, get_args

from msgspec.structs import replace
from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate.api import Model, Network, Worker, ms_to_ns
from tidegate.api.model import DeadlineMissAction
from tidegate.control.concurrency_limit import INITIAL_LIMIT, ConcurrencyLimit
from tidegate.schemas import Layout, did_you_mean
from tidegate_proxy.configuration.config import GraphConfig, ModelConfig
from tidegate_proxy.messages.model_signature import ModelSignature, concurrency_of
from tidegate_proxy.messages.padding import PaddedAxis
from tidegate_proxy.messages.request import InferenceRequest
from tidegate_proxy.messages.slot_request import slot_signature_of
from tidegate_proxy.tritons.backend import Backend, BackendError, LoadedModel
from tidegate_proxy.tritons.batching_mode import SCHEDULING_PARAMETER, BatchingDecision, consent_of, graph_mode_of
from tidegate_proxy.tritons.declared_padding import PaddingError, padding_of
from tidegate_proxy.tritons.gpus import Gpu
from tidegate_proxy.tritons.model_graphs import ModelGraph, graph_of, inner_first, models_within, why_not_expandable
from tidegate_proxy.tritons.operator_graphs import (
    GRAPH_CONSENT,
    GRAPH_VERSION,
    ensemble_config_of,
    operator_graph_order,
)
from tidegate_proxy.tritons.split_models import SPLIT_MODEL_VERSION, SplitModel, WorkerKey, find_layout
from tidegate_proxy.tritons.variants import (
    LoadedConfig,
    ModelConfigVariant,
    VariantAgreement,
    agree,
    with_priorities,
)
from tidegate_proxy.tritons.workers import SERIALIZED_SUFFIX, WorkerHardware, execution_slots_of, places_of

SLO_PARAMETER = "slo_ms"
"""Parameter of a config.pbtxt with a model's SLO, in milliseconds."""
DEADLINE_MISS_PARAMETER = "tidegate_on_deadline_miss"
"""Parameter of a config.pbtxt that says what happens to requests that cannot meet their deadline."""


@dataclass
class Catalog:
    """Models and workers of all Tritons together. Immutable once complete: a change creates another catalog."""

    models: dict[str, Model] = field(default_factory=dict)
    """Scheduled models by name."""
    signatures: dict[str, ModelSignature] = field(default_factory=dict)
    partitions: dict[str, ModelSignature] = field(default_factory=dict)
    """Partitions by name; an unsplit model is one partition of its own name."""
    consents: dict[str, BatchingDecision] = field(default_factory=dict)
    """Scheduling decision of every model, with the reason."""
    unpadded: dict[str, str] = field(default_factory=dict)
    """Models whose configured padding is impossible, with the reason."""
    versions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Versions of every model that some Triton has ready."""
    slots: dict[str, ModelSignature] = field(default_factory=dict)
    """Signatures of models with slots (`max_concurrency`): scheduled one by one, and forwarded unmodified."""
    ensembles: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """Steps of each ensemble: model and version, "" for the latest."""
    graphs: dict[str, ModelGraph] = field(default_factory=dict)
    """Ensembles whose steps may be scheduled, and graphs of the configuration, by name."""
    broken_graphs: dict[str, str] = field(default_factory=dict)
    """Graphs of the configuration that cannot be served with the loaded models, with the reason."""
    sequential: set[str] = field(default_factory=set)
    """Models whose requests may belong to sequences."""
    sequence_idle_s: dict[str, float] = field(default_factory=dict)
    """Longest pause within a sequence, in seconds, of models whose configs set one."""
    key_patterns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Patterns of metadata that Tritons forward to scheduled models that may read it."""
    guarded: dict[str, tuple[Backend, ...]] = field(default_factory=dict)
    """Tritons of scheduled models that restrict inference: clients with their keys are scheduled, others bypassed."""
    workers: list[Worker] = field(default_factory=list)
    backend_of: dict[int, Backend] = field(default_factory=dict)
    """Triton of each worker, by worker id; former workers included, until their Triton is closed."""
    next_worker_id: int = 0
    """Id of the next new worker: no id is used twice."""
    hosts: dict[str, list[Backend]] = field(default_factory=dict)
    """Tritons on which a model, scheduled or not, is loaded."""
    loaded: dict[Backend, list[LoadedModel]] = field(default_factory=dict)
    """Models that each Triton reported; Tritons with recent changes come last."""
    variants: dict[str, tuple[ModelConfigVariant, ...]] = field(default_factory=dict)
    """Variants of models whose configurations differ between Tritons."""
    layout: Layout | None = None
    """Layout of the Tritons, if they have one."""
    gpus: Sequence[Gpu] = ()
    """GPUs of this machine at the start of Tidegate."""
    places: dict[Backend, WorkerHardware] = field(default_factory=dict)
    """Hardware of each Triton's workers; empty with a layout, which defines it."""
    split: dict[str, SplitModel] = field(default_factory=dict)
    """Split models of the layout, and graphs of the configuration; no Triton has a model of that name."""

    @property
    def hidden(self) -> frozenset[str]:
        """Models of Tritons that are hidden from clients: partitions."""
        return frozenset(self.partitions).difference(self.models) if self.split else frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Every model that clients may request, scheduled or not."""
        return (frozenset(self.consents) | frozenset(self.split)) - self.hidden

    @property
    def network(self) -> Network | None:
        """Network between the nodes of the layout."""
        return self.layout.contract()[3] if self.layout else None

    def same_plan(self, other: "Catalog") -> bool:
        """Return whether the difference to another catalog is irrelevant to a scheduler."""
        return (self.models, self.workers, self.network) == (other.models, other.workers, other.network)

    def schedules(self, envelope: InferenceRequest) -> bool:
        """Return whether a request that could be scheduled when it arrived still can be."""
        if envelope.model in self.slots:
            return True
        signature = self.signatures.get(envelope.model)
        return signature is not None and envelope.fits(signature)

    def takers(self, model: str, header: service_pb2.ModelInferRequest | None) -> Sequence[Backend]:
        """Return the Tritons that accept a request with this header (None if its tensors are unknown).

        If the model's configurations differ and no live Triton accepts the request, the leading one decides.
        """
        variants = self.variants.get(model)
        if not variants:
            return self.hosts.get(model, ())
        takers = [
            backend
            for variant in variants
            if header is not None and variant.takes(header)
            for backend in variant.backends
            if backend.alive
        ]
        return takers or variants[0].backends

    @property
    def steps(self) -> dict[str, tuple[str, ...]]:
        """Models of the steps of each ensemble and graph."""
        return {name: tuple(model for model, _ in steps) for name, steps in self.ensembles.items()}

    def nested_models(self, name: str) -> frozenset[str]:
        """Return the models of an ensemble's steps, at any depth."""
        return models_within(name, self.steps)

    def check_padding(self) -> None:
        """Raise BackendError if a model cannot be padded as configured."""
        if self.unpadded:
            raise BackendError("; ".join(words for _, words in sorted(self.unpadded.items())))

    def check_graphs(self) -> None:
        """Raise BackendError if a graph of the configuration cannot be served."""
        if self.broken_graphs:
            raise BackendError("; ".join(words for _, words in sorted(self.broken_graphs.items())))

    @property
    def disagreements(self) -> list[str]:
        """Line for each model that differs between Tritons."""
        return [
            f"model {name!r} is not the same at "
            + " and ".join(variant.backends[0].address for variant in variants)
            + ": as while it is updated, what all of them take is scheduled, and the rest goes to those that take it"
            for name, variants in self.variants.items()
        ]


@dataclass(frozen=True, slots=True)
class UnbatchedModel:
    """Model that returned wrong responses in batches: its requests run alone."""

    why: str
    loaded: tuple[LoadedModel, ...]
    """Versions and configurations for which that is known."""


class CurrentCatalog:
    """The current catalog: each request reads it once."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        """Catalog without the signatures of models that are being unloaded; their requests are bypassed."""
        self.whole = catalog
        """Catalog with the signatures of models that are being unloaded."""
        self._unloading: list[tuple[str, Backend]] = []
        """Models that Tritons are about to unload; a model is here once per call."""
        self.unbatched: dict[str, UnbatchedModel] = {}
        """Models that must not be batched, by name, whatever their configurations say."""

    def put(self, catalog: Catalog) -> None:
        """Replace the catalog; models that Tritons are about to unload stay unscheduled."""
        self.whole = self.catalog = catalog
        if not self._unloading:
            return
        models = {model for model, _ in self._unloading}
        signatures = {name: signature for name, signature in catalog.signatures.items() if name not in models}
        hosts = dict(catalog.hosts)
        for model in models:
            others = [host for host in hosts.get(model, ()) if (model, host) not in self._unloading]
            if any(host.alive for host in others):
                hosts[model] = others
        graphs = {name: graph for name, graph in catalog.graphs.items() if models.isdisjoint(graph.members | {name})}
        self.catalog = dataclasses.replace(catalog, signatures=signatures, hosts=hosts, graphs=graphs)

    @contextmanager
    def unloading(self, model: str, backend: Backend) -> Iterator[None]:
        """Keep a model unscheduled during the block, whatever catalog is set.

        Its requests are bypassed to another live Triton with the model, if there is one.
        """
        self._unloading.append((model, backend))
        self.put(self.whole)
        try:
            yield
        finally:
            self._unloading.remove((model, backend))
            self.put(self.whole)


_UNSAID: Final = ModelConfig()
"""Settings of a model of which the operator says nothing."""


async def discover(
    backends: Sequence[Backend],
    configured: Mapping[str, ModelConfig],
    before: Catalog | None = None,
    returning: Backend | None = None,
    layout: Layout | None = None,
    gpus: Sequence[Gpu] = (),
    *,
    is_whole: bool = True,
    is_rollout: bool = False,
    unbatched: Mapping[str, UnbatchedModel] | None = None,
    suspects: Collection[str] | None = None,
    broken: Collection[str] = (),
    graphs: Mapping[str, GraphConfig] | None = None,
) -> Catalog:
    """Query every Triton for its models. With a `layout` each is one of its workers, and serves nothing else.

    `configured`: settings of models in the configuration, which precede their configs and the layout. `before`: the
    current catalog, in which equal workers keep their ids, and whose models of a lost Triton are kept, unless that is
    `returning`. `gpus`: those of this machine; `before` has them too. `is_whole`: False if `configured` also names
    models of other Tritons. `is_rollout`: shadow mode or a canary is on, so that an SLO of a model that could be
    scheduled is no error. `suspects`: models whose configs may have changed, besides those with other ready versions;
    None: all models. `broken`: models that Tritons failed to load, which `configured` may name. `graphs`: those of the
    configuration.

    Raises BackendError for a Triton without an answer if it is new or `returning`, for invalid parameters of a config,
    (at first) for an SLO of an unscheduled model and for a graph that does not fit, and for a layout that the Tritons
    do not have.
    """
    catalog = Catalog()
    known = _known_workers(before)
    if before:
        catalog.next_worker_id = before.next_worker_id
        catalog.backend_of.update((number, each) for number, each in before.backend_of.items() if not each.is_closed)
    answers = await _ask(backends, before, returning, suspects)
    loaded_before = before.loaded if before else {}
    loaded = {backend: answers.get(backend, loaded_before.get(backend, [])) for backend in backends}
    catalog.loaded = _latest_last(loaded, loaded_before)
    catalog.gpus = before.gpus if before else gpus
    if layout is None:
        catalog.places = await _places(catalog, before, returning)
        _add_models(catalog, backends, configured, answers, known, unbatched or {})
        _add_graphs(catalog, configured)
        for name in operator_graph_order(graphs or {}):
            _add_operator_graph(catalog, name, (graphs or {})[name], configured.get(name, _UNSAID))
    else:
        _follow(catalog, layout, configured, known)
    if before:
        _keep_signatures(catalog, before)
    else:
        catalog.check_graphs()
        absent = {name for name in configured if name in broken or configured[name].load == "on-demand"}
        expected = catalog.names if not is_whole else catalog.names | (configured.keys() - absent)
        unseen = {name for name in configured if _is_unseen(catalog, backends, name)}
        judged = catalog_for_shadow(catalog, configured) if is_rollout else catalog
        _check_configured(
            judged, {name: settings for name, settings in configured.items() if name in expected - unseen}
        )
    return catalog


def catalog_for_shadow(
    catalog: Catalog, configured: Mapping[str, ModelConfig], unbatched: Mapping[str, UnbatchedModel] | None = None
) -> Catalog:
    """Return the catalog that the operator could have: shadow mode judges it. Queries no Triton.

    A model that its Triton batches is batched, where neither the configuration nor its config.pbtxt says otherwise: in
    shadow mode no batch of Tidegate's reaches a Triton. `configured`, `unbatched`: as for `discover`.
    """
    if catalog.layout is not None:
        return catalog
    wanted = dict(configured)
    for models in catalog.loaded.values():
        for config in (model.config for model in models):
            settings = configured.get(config.name, _UNSAID)
            is_chosen = settings.scheduling is not None or SCHEDULING_PARAMETER in config.parameters
            if config.HasField("dynamic_batching") and not is_chosen:
                wanted[config.name] = settings.model_copy(update={"scheduling": "batched"})
    judged = Catalog(
        backend_of=dict(catalog.backend_of),
        next_worker_id=catalog.next_worker_id,
        loaded=catalog.loaded,
        gpus=catalog.gpus,
        places=catalog.places,
    )
    backends = [*catalog.loaded]
    _add_models(judged, backends, wanted, backends, _known_workers(catalog), unbatched or {})
    _keep_signatures(judged, catalog)
    return judged


def unscheduled_slos(catalog: Catalog, configured: Mapping[str, ModelConfig]) -> dict[str, str]:
    """Return the loaded models that have an SLO but are not scheduled, each with the reason.

    `configured`: settings of models in the configuration.
    """
    with_slo = {name for name, settings in configured.items() if settings.slo_ms}
    for models in catalog.loaded.values():
        with_slo.update(model.config.name for model in models if SLO_PARAMETER in model.config.parameters)
    return {
        name: catalog.consents[name].why for name in sorted(with_slo & catalog.consents.keys() - catalog.models.keys())
    }


def catalog_for_layout(
    before: Catalog,
    loaded: Mapping[Backend, list[LoadedModel]],
    configured: Mapping[str, ModelConfig],
    layout: Layout,
    ids: Mapping[str, int],
) -> Catalog:
    """Return the catalog after these Tritons, with known models, switch to another layout. Queries no Triton.

    `ids`: ids of the layout's workers, by name. Raises BackendError for a layout that the Tritons do not have.
    """
    catalog = Catalog(
        backend_of=dict(before.backend_of),
        next_worker_id=max(before.next_worker_id, max(ids.values(), default=-1) + 1),
        loaded=_latest_last(loaded, before.loaded),
        gpus=before.gpus,
    )
    known = {(worker.name, worker.hosts, worker.device_class): ids[worker.name] for worker in layout.contract()[1]}
    _follow(catalog, layout, configured, known)
    _keep_signatures(catalog, before)
    return catalog


def _keep_signatures(catalog: Catalog, before: Catalog) -> None:
    """So that what has not changed is seen at a glance."""
    for name, signature in catalog.signatures.items():
        if before.signatures.get(name) == signature:
            catalog.signatures[name] = before.signatures[name]
    for name, graph in catalog.graphs.items():
        if before.graphs.get(name) == graph:
            catalog.graphs[name] = before.graphs[name]


def _check_configured(catalog: Catalog, configured: Mapping[str, ModelConfig]) -> None:
    batched = {
        name for name, model in configured.items() if model.scheduling or model.merge.pad or model.max_concurrency
    }
    if unknown := sorted(batched.difference(catalog.consents)):
        served = did_you_mean(unknown[0], catalog.consents, "these models are")
        raise BackendError(
            f"scheduling, max_concurrency or merge.pad is set for {', '.join(unknown)}, which no Triton has{served}"
        )
    catalog.check_padding()
    for name in sorted(configured):
        if configured[name].max_concurrency is not None and name not in catalog.slots:
            consent = catalog.consents[name]
            raise BackendError(
                f"models.{name}.max_concurrency: {name} is {consent.scheduling} ({consent.why}), and its "
                "instances limit it; leave max_concurrency out, or set scheduling: bypass"
            )
        if configured[name].max_concurrency == "auto" and name in catalog.sequential - catalog.ensembles.keys():
            raise BackendError(
                f"models.{name}.max_concurrency: auto is for streams, and the config of {name} says how many sequences "
                "run at once; say instances"
            )
    for what, given in (("an SLO", "slo_ms"), ("on_deadline_miss", "on_deadline_miss")):
        expected = {name for name, consent in catalog.consents.items() if consent.is_left_to_triton}
        expected.update(catalog.models, catalog.graphs)
        unscheduled = sorted(name for name in configured if getattr(configured[name], given) and name not in expected)
        if not unscheduled:
            continue
        scheduled = did_you_mean(unscheduled[0], catalog.models, "these models are")
        reasons = [f"; {name}: {catalog.consents[name].why}" for name in unscheduled if name in catalog.consents]
        raise BackendError(
            f"{what} is given for {', '.join(unscheduled)}, which is not scheduled{scheduled}{''.join(reasons)}"
        )


def _add_models(
    catalog: Catalog,
    backends: Sequence[Backend],
    configured: Mapping[str, ModelConfig],
    voters: Collection[Backend],
    known: Mapping[WorkerKey, int],
    unbatched: Mapping[str, UnbatchedModel],
) -> None:
    """Add the models of Tritons without a layout, and their workers.

    `voters`: Tritons that are available; `known`: ids of the workers that are known.
    """
    forms = _forms(catalog, configured, unbatched)
    catalog.versions = _versions(catalog)
    agreements = {name: agree(_seen(forms[name]), voters) for name in sorted(forms)}
    for name, agreement in agreements.items():
        hosts = [backend for backend in backends if any(form.backend is backend for form in forms[name])]
        catalog.hosts[name] = sorted(hosts, key=lambda backend: backend not in agreement.followers)
        _add_model(catalog, name, agreement, configured.get(name, _UNSAID))
        patterns = {each.grpc_forward_pattern for each in agreement.followers}
        signature = catalog.signatures.get(name)
        if any(patterns) and signature and signature.reads_headers:
            catalog.key_patterns[name] = tuple(sorted(filter(None, patterns)))
        guards = [each for each in agreement.followers if any(api == "inference" for _, api in each.apis.left)]
        if guards and name in catalog.models:
            catalog.guarded[name] = tuple(guards)
    for backend in backends:
        _add_workers(catalog, backend, agreements, known, configured)


async def _places(catalog: Catalog, before: Catalog | None, returning: Backend | None) -> dict[Backend, WorkerHardware]:
    """Return where the workers of every Triton run, looked up again where it, or what it serves, has changed."""
    known = before.places if before else {}
    changed = {
        backend: models
        for backend, models in catalog.loaded.items()
        if before is None or backend is returning or backend not in known or before.loaded.get(backend) != models
    }
    found = await places_of(changed, catalog.gpus, known)
    return {backend: found[backend] if backend in found else known[backend] for backend in catalog.loaded}


async def _ask(
    backends: Sequence[Backend],
    before: Catalog | None,
    returning: Backend | None,
    suspects: Collection[str] | None,
) -> dict[Backend, list[LoadedModel]]:
    """Return the models of the Tritons that answer. Raises BackendError for a silent one that is new or `returning`."""
    asked = [backend for backend in backends if before is None or backend.alive or backend is returning]
    known = before.loaded if before else {}
    answers: dict[Backend, list[LoadedModel]] = {}
    # What returns may be another process: it is asked for everything.
    trusted = {} if suspects is None else {backend: known[backend] for backend in known if backend is not returning}
    asking = (backend.models(trusted.get(backend, ()), suspects or ()) for backend in asked)
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    for backend, outcome in zip(asked, outcomes, strict=True):
        if not isinstance(outcome, BaseException):
            answers[backend] = outcome
        elif backend is returning or backend not in known or not isinstance(outcome, BackendError):
            raise outcome
    return answers


def _known_workers(before: Catalog | None) -> dict[WorkerKey, int]:
    return {(worker.name, worker.hosts, worker.device_class): worker.id for worker in before.workers} if before else {}


def _latest_last(
    loaded: Mapping[Backend, list[LoadedModel]], before: Mapping[Backend, list[LoadedModel]]
) -> dict[Backend, list[LoadedModel]]:
    stayed = [backend for backend in before if loaded.get(backend) == before[backend]]
    return {backend: loaded[backend] for backend in (*stayed, *(other for other in loaded if other not in stayed))}


def _seen(forms: Sequence[LoadedConfig]) -> Sequence[LoadedConfig]:
    """Forms of Tritons that Tidegate can schedule; all, where there are none."""
    return [form for form in forms if form.backend.apis.schedules] or forms


def _is_unseen(catalog: Catalog, backends: Sequence[Backend], name: str) -> bool:
    """Whether a model may be one of a Triton of which Tidegate cannot find out, or cannot schedule it."""
    if hosts := catalog.hosts.get(name):
        return name not in catalog.models and any(not backend.apis.schedules for backend in hosts)
    return any(not backend.apis.lists_models for backend in backends)


def _forms(
    catalog: Catalog, configured: Mapping[str, ModelConfig], unbatched: Mapping[str, UnbatchedModel]
) -> dict[str, list[LoadedConfig]]:
    """Return the configurations of each model, recent changes last."""
    forms: dict[str, list[LoadedConfig]] = {}
    for backend, models in catalog.loaded.items():
        for model in models:
            config = model.config
            settings = configured.get(config.name, _UNSAID)
            has_slo = settings.slo_ms is not None or SLO_PARAMETER in config.parameters
            if backend.apis.schedules:
                consent = consent_of(config, settings.scheduling, has_slo=has_slo)
            else:
                consent = BatchingDecision("bypass", _why_unscheduled(backend))
            known = unbatched.get(config.name)
            if known and consent.scheduling == "batched" and model in known.loaded:
                consent = BatchingDecision("unbatched", known.why, 1)
            forms.setdefault(config.name, []).append(LoadedConfig.of(backend, model, consent, settings))
    return forms


def _why_unscheduled(backend: Backend) -> str:
    apis = " and ".join(sorted(backend.apis.closed & {"inference", "model-config"}))
    return f"Triton at {backend.address} restricts {apis} over gRPC; a header in tritons.N.headers has it scheduled"


def _versions(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """The versions of every model that some Triton has ready."""
    versions: dict[str, set[str]] = {}
    for models in catalog.loaded.values():
        for model in models:
            versions.setdefault(model.config.name, set()).update(model.versions)
    return {name: tuple(sorted(versions[name])) for name in sorted(versions)}


def _add_model(catalog: Catalog, name: str, agreement: VariantAgreement, settings: ModelConfig) -> None:
    config, signature = agreement.leading.config, agreement.signature
    if agreement.variants:
        catalog.variants[name] = agreement.variants
    is_unknown = "model-config" in agreement.leading.backend.apis.closed
    if is_unknown or config.HasField("sequence_batching") or config.HasField("ensemble_scheduling"):
        catalog.sequential.add(name)
        if idle_us := config.sequence_batching.max_sequence_idle_microseconds:
            catalog.sequence_idle_s[name] = idle_us / 1e6
    if config.HasField("ensemble_scheduling"):
        catalog.ensembles[name] = tuple(
            (step.model_name, "" if step.model_version < 0 else str(step.model_version))
            for step in config.ensemble_scheduling.step
        )
    catalog.consents[name] = agreement.consent
    padding = _padding_of(catalog, name, config, settings)
    if signature is None and settings.max_concurrency is None:
        return
    slo_ms = settings.slo_first_ms or settings.slo_ms or _slo_of(config, agreement.leading.backend)
    slo_ns = None if slo_ms is None else ms_to_ns(slo_ms)
    late = settings.on_deadline_miss or _late_of(config, agreement.leading.backend)
    if signature is None:
        catalog.slots[name] = with_priorities(slot_signature_of(config), settings)
        consent = catalog.consents[name]
        why = f"max_concurrency: {settings.max_concurrency} at each Triton; {consent.why}"
        warning = "" if consent.is_left_to_triton else consent.warning
        catalog.consents[name] = BatchingDecision("slots", why, consent.merge_limit, warning, is_requested=True)
        gap_ns = None if settings.slo_gap_ms is None else ms_to_ns(settings.slo_gap_ms)
        catalog.models[name] = Model(
            name, 1, slo_ns, merge_limit=1, on_deadline_miss=late, streams=True, slo_gap_ns=gap_ns
        )
        return
    signature = dataclasses.replace(signature, padding=padding) if padding else signature
    catalog.signatures[name] = catalog.partitions[name] = signature
    merge_limit = agreement.consent.merge_limit
    catalog.models[name] = Model(name, signature.max_rows, slo_ns, merge_limit=merge_limit, on_deadline_miss=late)


def _add_graphs(catalog: Catalog, configured: Mapping[str, ModelConfig]) -> None:
    """Add the ensembles whose steps are scheduled if the operator wants it."""
    if not catalog.ensembles:
        return
    unscheduled = {name: consent.why for name, consent in catalog.consents.items() if name not in catalog.signatures}
    configs = {
        backend: {each.config.name: each.config for each in loaded} for backend, loaded in catalog.loaded.items()
    }
    order, cycles = inner_first(catalog.steps)
    for name in (*order, *cycles):
        settings = configured.get(name, _UNSAID)
        backend = catalog.hosts[name][0]
        config = configs[backend][name]
        mode = graph_mode_of(config, settings.scheduling)
        if mode is None:
            continue
        versions, nested = catalog.versions[name], catalog.nested_models(name)
        why = why_not_expandable(config, catalog.signatures, unscheduled, _nestable(catalog))
        if not why and (cycle := next((cycles[each] for each in sorted(nested | {name}) if each in cycles), "")):
            why = f"a step is an ensemble that runs itself ({cycle})"
        if not why and (name in catalog.variants or len(versions) != 1):
            why = "it has several versions, or differs between Tritons"
        if not why and name in catalog.slots:
            why = "max_concurrency has it scheduled as a whole"
        if not why and (guarded := (nested | {name}) & catalog.guarded.keys()):
            why = f"Triton restricts inference of {min(guarded)}"
        if why:
            warning = f"cannot be expanded (scheduling: {mode}): {why}"
            catalog.consents[name] = dataclasses.replace(catalog.consents[name], warning=warning)
            continue
        slo_ms = settings.slo_ms or _slo_of(config, backend)
        late = settings.on_deadline_miss or _late_of(config, backend)
        slo_ns = None if slo_ms is None else ms_to_ns(slo_ms)
        model = Model(name, config.max_batch_size, slo_ns, on_deadline_miss=late)
        catalog.graphs[name] = graph_of(config, _step_signatures(catalog, name), model, versions[0], mode, nested)
        consent = BatchingDecision(mode, "its steps are scheduled as stages with one deadline")
        catalog.consents[name] = _with_nested(catalog, name, consent)


def _add_operator_graph(catalog: Catalog, name: str, graph: GraphConfig, settings: ModelConfig) -> None:
    """Add a graph of the configuration, or the reason why it cannot be served."""
    configs = {model.config.name: model.config for models in catalog.loaded.values() for model in models}
    configs |= {each: split.config for each, split in catalog.split.items()}
    unscheduled = {each: consent.why for each, consent in catalog.consents.items() if each not in catalog.signatures}
    try:
        if broken := next((step.model for step in graph.steps if step.model in catalog.broken_graphs), None):
            raise BackendError(f"graphs.{name}: its step is graph {broken!r}, which cannot be served; correct that")
        config = ensemble_config_of(name, graph, configs)
        if why := why_not_expandable(config, catalog.signatures, unscheduled, _nestable(catalog)):
            raise BackendError(f"graphs.{name}: {why}; change that, or leave the graph out")
    except BackendError as error:
        catalog.broken_graphs[name] = str(error)
        return
    slo_ns = None if settings.slo_ms is None else ms_to_ns(settings.slo_ms)
    model = Model(name, config.max_batch_size, slo_ns, on_deadline_miss=settings.on_deadline_miss or "reject")
    catalog.ensembles[name] = tuple((step.model, str(step.version or "")) for step in graph.steps)
    nested = catalog.nested_models(name)
    served = graph_of(config, _step_signatures(catalog, name), model, GRAPH_VERSION, "expanded", nested)
    served = catalog.graphs[name] = dataclasses.replace(served, is_operators=True)
    catalog.consents[name] = _with_nested(catalog, name, GRAPH_CONSENT)
    catalog.versions[name] = (GRAPH_VERSION,)
    catalog.hosts[name] = catalog.hosts[served.stages[0].model]
    catalog.split[name] = SplitModel(model, served.signature, config, catalog.consents[name])


def _nestable(catalog: Catalog) -> set[str]:
    """Return the ensembles and graphs that may be steps of others: each of their requests has one response."""
    loaded = (model.config for models in catalog.loaded.values() for model in models)
    decoupled = {config.name for config in loaded if config.model_transaction_policy.decoupled}
    return catalog.ensembles.keys() - decoupled


def _step_signatures(catalog: Catalog, name: str) -> dict[str, ModelSignature]:
    """Return the signature of each step of an ensemble; of one that passes as a whole, whether it may read headers."""
    found = {}
    for step in catalog.steps[name]:
        if step in catalog.signatures:
            found[step] = catalog.signatures[step]
        elif step in catalog.graphs:
            found[step] = catalog.graphs[step].signature
        else:
            known = [catalog.signatures.get(each) for each in catalog.nested_models(step) - catalog.ensembles.keys()]
            reads = any(signature is None or signature.reads_headers for signature in known)
            found[step] = ModelSignature(step, {}, frozenset(), 0, reads_headers=reads)
    return found


def _with_nested(catalog: Catalog, name: str, consent: BatchingDecision) -> BatchingDecision:
    """Return the decision on an ensemble, with what happens to the ensembles and graphs that are its steps."""
    words = [consent.why]
    for step in dict.fromkeys(catalog.steps[name]):
        if step in catalog.graphs:
            words.append(f"its step {step} likewise ({catalog.graphs[step].mode})")
        elif step in catalog.ensembles:
            words.append(f"its step {step} passes as a whole, as Triton runs it")
    return dataclasses.replace(consent, why="; ".join(words))


def _padding_of(
    catalog: Catalog, name: str, config: model_config_pb2.ModelConfig, settings: ModelConfig
) -> tuple[PaddedAxis, ...]:
    """Return the padding of a model; none, with a warning, if the model does not allow it."""
    consent = catalog.consents[name]
    try:
        return padding_of(config, consent, settings.merge.pad)
    except PaddingError as error:
        catalog.unpadded[name] = str(error)
        warning = f"nothing is padded: {error}"
        catalog.consents[name] = dataclasses.replace(
            consent, warning="; ".join(filter(None, (consent.warning, warning)))
        )
        return ()


def _add_workers(
    catalog: Catalog,
    backend: Backend,
    agreements: Mapping[str, VariantAgreement],
    known: Mapping[WorkerKey, int],
    configured: Mapping[str, ModelConfig],
) -> None:
    """A worker for each batch that a Triton runs at a time of what is scheduled there, and for each slot."""
    configs = {
        model.config.name: model.config
        for model in catalog.loaded[backend]
        if model.config.name in catalog.models and backend in agreements[model.config.name].followers
    }
    slots = {name: configs.pop(name) for name in sorted(catalog.slots) if name in configs}
    place = catalog.places[backend]
    for execution_slot in execution_slots_of(
        configs, serialize_models=backend.serialize_models, turns=backend.turns.group if backend.turns else frozenset()
    ):
        name = f"{backend.address}/{execution_slot.name}"
        worker = Worker(
            catalog.next_worker_id, name, execution_slot.models, place.device_class, place.device, place.slice
        )
        if execution_slot.takes_turns:
            worker = replace(worker, device_class=worker.device_class + SERIALIZED_SUFFIX)
        _add_worker(catalog, worker, backend, known)
    for name, config in slots.items():
        slots_here = _slots_at(catalog, backend, config, configured[name])
        for number in range(slots_here):
            slot = Worker(
                catalog.next_worker_id,
                f"{backend.address}/{name}/slot/{number}",
                (name,),
                place.device_class,
                place.device,
                place.slice,
                server=backend.address,
            )
            _add_worker(catalog, slot, backend, known)


def _add_worker(catalog: Catalog, worker: Worker, backend: Backend, known: Mapping[WorkerKey, int]) -> None:
    """Add a worker, with the id that it had before if it is `known`."""
    worker_id = known.get((worker.name, worker.hosts, worker.device_class), worker.id)
    catalog.workers.append(replace(worker, id=worker_id))
    catalog.backend_of[worker_id] = backend
    catalog.next_worker_id += worker_id == catalog.next_worker_id


def _slots_at(catalog: Catalog, backend: Backend, config: model_config_pb2.ModelConfig, settings: ModelConfig) -> int:
    """Return the number of slots of a model at a Triton."""
    if settings.max_concurrency != "auto":
        backend.limits.pop(config.name, None)
        return concurrency_of(config) if settings.max_concurrency == "instances" else settings.max_concurrency or 0
    limit, slo_gap_ns = backend.limits.get(config.name), catalog.models[config.name].slo_gap_ns
    if limit is None or limit.slo_gap_ns != slo_gap_ns:
        initial = max(INITIAL_LIMIT, concurrency_of(config))
        limit = backend.limits[config.name] = ConcurrencyLimit(slo_gap_ns, initial)
    consent = catalog.consents[config.name]
    why = f"{consent.why}; {limit.limit} at {backend.address}"
    catalog.consents[config.name] = dataclasses.replace(consent, why=why)
    return limit.limit


def _follow(
    catalog: Catalog, layout: Layout, configured: Mapping[str, ModelConfig], known: Mapping[WorkerKey, int]
) -> None:
    found = find_layout(layout, catalog.loaded, configured, known, catalog.next_worker_id)
    catalog.layout = layout
    catalog.partitions = dict(found.partitions)
    for worker, backend in found.workers:
        catalog.workers.append(worker)
        catalog.backend_of[worker.id] = backend
        catalog.next_worker_id = max(catalog.next_worker_id, worker.id + 1)
    for name, split in found.models.items():
        catalog.models[name] = split.model
        catalog.consents[name] = split.consent
        padding = _padding_of(catalog, name, split.config, configured.get(name, _UNSAID))
        reads_headers = split.signature.reads_headers and not split.model.pipelines  # no client can ask for those
        signature = dataclasses.replace(split.signature, padding=padding, reads_headers=reads_headers)
        catalog.signatures[name] = signature
        catalog.versions[name] = (SPLIT_MODEL_VERSION,)
        ends = {name for path in split.model.paths for name in (path.partitions[0], path.partitions[-1])}
        catalog.hosts[name] = [backend for worker, backend in found.workers if ends.intersection(worker.hosts)]
        if split.model.pipelines:
            catalog.split[name] = split
    catalog.workers.sort(key=lambda worker: worker.id)


def _slo_of(config: model_config_pb2.ModelConfig, backend: Backend) -> float | None:
    if SLO_PARAMETER not in config.parameters:
        return None
    text = config.parameters[SLO_PARAMETER].string_value
    try:
        slo_ms = float(text)
    except ValueError:
        slo_ms = -1.0
    if not 0 < slo_ms < 1e12:
        raise BackendError(
            f"model {config.name!r} at {backend.address}: its config's parameter {SLO_PARAMETER!r} is {text!r}, "
            "not a positive number of milliseconds"
        )
    return slo_ms


def _late_of(config: model_config_pb2.ModelConfig, backend: Backend) -> DeadlineMissAction:
    text = (
        config.parameters[DEADLINE_MISS_PARAMETER].string_value
        if DEADLINE_MISS_PARAMETER in config.parameters
        else "reject"
    )
    for word in get_args(DeadlineMissAction):
        if text == word:
            return cast("DeadlineMissAction", word)
    raise BackendError(
        f"model {config.name!r} at {backend.address}: its config's parameter {DEADLINE_MISS_PARAMETER!r} is {text!r}, "
        f"not one of {', '.join(get_args(DeadlineMissAction))}"
    )
