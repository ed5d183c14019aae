"""What the Tritons serve: which models are scheduled, on which workers, and which pass straight through."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tritonclient.grpc import model_config_pb2

from tidegate.api import Model, Worker, ms_to_ns
from tidegate_proxy.backend import Backend, BackendError
from tidegate_proxy.signature import Signature, instances_of, signature_of, why_not_batchable

SLO_PARAMETER = "slo_ms"
"""The parameter of a config.pbtxt that holds a model's SLO, in milliseconds."""


@dataclass
class Catalog:
    """The models and workers of all Tritons together."""

    models: dict[str, Model] = field(default_factory=dict)
    """Those that are scheduled."""
    signatures: dict[str, Signature] = field(default_factory=dict)
    passed_through: dict[str, str] = field(default_factory=dict)
    """The others, each with the reason."""
    workers: list[Worker] = field(default_factory=list)
    backend_of: dict[int, Backend] = field(default_factory=dict)
    """By worker id."""
    hosts: dict[str, list[Backend]] = field(default_factory=dict)
    """The Tritons on which a model, of either sort, is loaded."""


async def discover(backends: Sequence[Backend], slos_ms: Mapping[str, float]) -> Catalog:
    """Ask every Triton what it serves.

    `slos_ms` overrides the SLOs of the models' configs. Raises BackendError for a Triton that does not answer, for two
    that disagree about a model, and for an SLO that is no positive number or of a model that is not scheduled.
    """
    catalog = Catalog()
    for backend in backends:
        _add(catalog, backend, await backend.configs(), slos_ms)
    unknown = sorted(set(slos_ms) - set(catalog.models))
    if unknown:
        scheduled = ", ".join(sorted(catalog.models)) or "none"
        raise BackendError(f"--slo names {', '.join(unknown)}, which is not scheduled; these models are: {scheduled}")
    return catalog


def _add(
    catalog: Catalog, backend: Backend, configs: Sequence[model_config_pb2.ModelConfig], slos_ms: Mapping[str, float]
) -> None:
    instances: dict[str, int] = {}
    for config in configs:
        catalog.hosts.setdefault(config.name, []).append(backend)
        reason = why_not_batchable(config)
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
        slo_ms = slos_ms.get(config.name, _slo_of(config, backend))
        slo_ns = None if slo_ms is None else ms_to_ns(slo_ms)
        catalog.models[config.name] = Model(config.name, signature.max_rows, slo_ns)
        instances[config.name] = instances_of(config)
    # One worker per batch that this Triton runs at a time: lane k hosts the models with more than k instances.
    for lane in range(max(instances.values(), default=0)):
        hosted = tuple(sorted(name for name, count in instances.items() if count > lane))
        worker = Worker(len(catalog.workers), f"{backend.address}/{lane}", hosted)
        catalog.workers.append(worker)
        catalog.backend_of[worker.id] = backend


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
