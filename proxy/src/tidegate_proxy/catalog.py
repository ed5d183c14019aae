"""What the Tritons serve: which models are scheduled, on which workers, and which pass straight through."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tritonclient.grpc import model_config_pb2

from tidegate.api import Layout, Model, Network, Worker, ms_to_ns
from tidegate_proxy.backend import Backend, BackendError, LoadedModel
from tidegate_proxy.signature import Signature, instances_of, signature_of, why_not_batchable
from tidegate_proxy.split_models import VERSION, SplitModel, find_layout

SLO_PARAMETER = "slo_ms"
"""The parameter of a config.pbtxt that holds a model's SLO, in milliseconds."""


@dataclass
class Catalog:
    """The models and workers of all Tritons together. Complete once it is made: what changes is another catalog."""

    models: dict[str, Model] = field(default_factory=dict)
    """Those that are scheduled."""
    signatures: dict[str, Signature] = field(default_factory=dict)
    partitions: dict[str, Signature] = field(default_factory=dict)
    """What batches run through, by its name; a model that is not split is one partition of its own name."""
    passed_through: dict[str, str] = field(default_factory=dict)
    """The others, each with the reason."""
    versions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of every model, all that some Triton has ready."""
    ensembles: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """The steps of each ensemble: model and version, "" for the latest."""
    sequential: set[str] = field(default_factory=set)
    """Models whose requests may belong to sequences."""
    workers: list[Worker] = field(default_factory=list)
    backend_of: dict[int, Backend] = field(default_factory=dict)
    """By worker id; also those of workers that are no more."""
    hosts: dict[str, list[Backend]] = field(default_factory=dict)
    """The Tritons on which a model, of either sort, is loaded."""
    loaded: dict[Backend, list[LoadedModel]] = field(default_factory=dict)
    """What each Triton said it has."""
    layout: Layout | None = None
    """The plan that the Tritons follow, if they follow one."""
    split: dict[str, SplitModel] = field(default_factory=dict)
    """Models of the layout, which no Triton has by that name."""

    @property
    def hidden(self) -> frozenset[str]:
        """Models of Tritons that clients do not see: the partitions of others."""
        return frozenset(self.partitions).difference(self.models) if self.split else frozenset()

    @property
    def network(self) -> Network | None:
        """Between the nodes of the layout."""
        return self.layout.contract()[3] if self.layout else None

    def same_plan(self, other: "Catalog") -> bool:
        """Whether a scheduler need not notice the difference."""
        return (self.models, self.workers, self.network) == (other.models, other.workers, other.network)


class Directory:
    """Holds the catalog that is in force: whoever uses it looks here, once per request."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog


async def discover(
    backends: Sequence[Backend],
    slos_ms: Mapping[str, float],
    before: Catalog | None = None,
    returning: Backend | None = None,
    layout: Layout | None = None,
) -> Catalog:
    """Ask every Triton what it serves. With a `layout` each of them is one of its workers, and serves nothing else.

    `slos_ms` overrides the SLOs of the models' configs, or of the layout. `before`: the catalog so far, in which
    workers that are the same keep their ids, and what a Triton that is given up had loaded is taken to be there still,
    unless it is `returning`.
    Raises BackendError for a Triton that does not answer, for two that disagree about a model, for an SLO that is no
    positive number, and (at first) for one of a model that is not scheduled.
    """
    asked = [
        backend
        for backend in backends
        if before is None or backend.alive or backend is returning or backend not in before.loaded
    ]
    answers = dict(zip(asked, await asyncio.gather(*(backend.models() for backend in asked)), strict=True))
    catalog = Catalog()
    known = _known_workers(before)
    if before:
        catalog.backend_of.update(before.backend_of)
    for backend in backends:
        models = answers[backend] if backend in answers else before.loaded[backend] if before else []
        catalog.loaded[backend] = models
        if layout is None:
            _add(catalog, backend, models, slos_ms, known)
    if layout is not None:
        _follow(catalog, layout, slos_ms, known)
    unknown = sorted(set(slos_ms) - set(catalog.models))
    if unknown and before is None:
        scheduled = ", ".join(sorted(catalog.models)) or "none"
        raise BackendError(
            f"an SLO is given for {', '.join(unknown)}, which is not scheduled; these models are: {scheduled}"
        )
    return catalog


def _known_workers(before: Catalog | None) -> dict[tuple[str, tuple[str, ...]], int]:
    return {(worker.name, worker.hosts): worker.id for worker in before.workers} if before else {}


def _add(
    catalog: Catalog,
    backend: Backend,
    models: Iterable[LoadedModel],
    slos_ms: Mapping[str, float],
    known: Mapping[tuple[str, tuple[str, ...]], int],
) -> None:
    instances: dict[str, int] = {}
    for model in models:
        config = model.config
        catalog.hosts.setdefault(config.name, []).append(backend)
        catalog.versions[config.name] = tuple(sorted({*catalog.versions.get(config.name, ()), *model.versions}))
        if config.HasField("sequence_batching") or config.HasField("ensemble_scheduling"):
            catalog.sequential.add(config.name)
        if config.HasField("ensemble_scheduling"):
            catalog.ensembles[config.name] = tuple(
                (step.model_name, "" if step.model_version < 0 else str(step.model_version))
                for step in config.ensemble_scheduling.step
            )
        has_slo = config.name in slos_ms or SLO_PARAMETER in config.parameters
        reason = why_not_batchable(config, has_slo=has_slo)
        signature = signature_of(config) if reason is None else None
        first = catalog.hosts[config.name][0]
        if first is not backend and catalog.signatures.get(config.name) != signature:
            raise BackendError(
                f"model {config.name!r} is not the same at {first.address} and {backend.address}: inputs, outputs, "
                "max_batch_size and what else makes it batchable must agree on all Tritons behind one Tidegate"
            )
        if signature is None:
            catalog.passed_through[config.name] = str(reason)
            continue
        catalog.signatures[config.name] = signature
        catalog.partitions[config.name] = signature
        slo_ms = slos_ms.get(config.name, _slo_of(config, backend))
        slo_ns = None if slo_ms is None else ms_to_ns(slo_ms)
        catalog.models[config.name] = Model(config.name, signature.max_rows, slo_ns)
        instances[config.name] = instances_of(config)
    # One worker per batch that this Triton runs at a time: lane k hosts the models with more than k instances.
    for lane in range(max(instances.values(), default=0)):
        hosted = tuple(sorted(name for name, count in instances.items() if count > lane))
        name = f"{backend.address}/{lane}"
        worker_id = known.get((name, hosted), max(catalog.backend_of, default=-1) + 1)
        catalog.workers.append(Worker(worker_id, name, hosted))
        catalog.backend_of[worker_id] = backend


def _follow(
    catalog: Catalog, layout: Layout, slos_ms: Mapping[str, float], known: Mapping[tuple[str, tuple[str, ...]], int]
) -> None:
    found = find_layout(layout, catalog.loaded, slos_ms, known, max(catalog.backend_of, default=-1) + 1)
    catalog.layout = layout
    catalog.partitions = dict(found.partitions)
    for worker, backend in found.workers:
        catalog.workers.append(worker)
        catalog.backend_of[worker.id] = backend
    for name, split in found.models.items():
        catalog.models[name] = split.model
        catalog.signatures[name] = split.signature
        catalog.versions[name] = (VERSION,)
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
