"""Split models: a planner's layout matched with the Tritons, and the clients' view of such models."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate.api import Model, Worker, ms_to_ns
from tidegate.schemas import Layout
from tidegate_proxy.configuration.config import ModelConfig
from tidegate_proxy.messages.model_signature import ModelSignature, datatype_of, signature_of
from tidegate_proxy.tritons.backend import Backend, BackendError, LoadedModel
from tidegate_proxy.tritons.batching_mode import BatchingDecision, consent_of, most_careful

SPLIT_MODEL_VERSION = "1"
"""Version of every split model: partitions are written as version 1."""


WorkerKey = tuple[str, tuple[str, ...], str]
"""Key by which a worker keeps its id: name, partitions, device class."""


@dataclass(frozen=True)
class SplitModel:
    """Split model as clients see it, without its partitions."""

    model: Model
    signature: ModelSignature
    config: model_config_pb2.ModelConfig
    """Configuration of its first partition, with the outputs of the whole model."""
    consent: BatchingDecision

    @property
    def outputs(self) -> list[str]:
        """Outputs of the model for clients, in order."""
        return [tensor.name for tensor in self.config.output]

    @property
    def metadata(self) -> service_pb2.ModelMetadataResponse:
        """Model's metadata in Triton's form."""
        answer = service_pb2.ModelMetadataResponse(
            name=self.config.name, versions=[SPLIT_MODEL_VERSION], platform=self.config.platform or self.config.backend
        )
        for tensors, declared in ((answer.inputs, self.config.input), (answer.outputs, self.config.output)):
            for tensor in declared:
                tensors.add(name=tensor.name, datatype=datatype_of(tensor.data_type), shape=[-1, *tensor.dims])
        return answer


@dataclass(frozen=True)
class FoundLayout:
    """Layout whose partitions were found on the Tritons."""

    models: Mapping[str, SplitModel]
    """Split models, and those that are one partition of their own name."""
    workers: Sequence[tuple[Worker, Backend]]
    partitions: Mapping[str, ModelSignature]


def find_layout(
    layout: Layout,
    loaded: Mapping[Backend, Iterable[LoadedModel]],
    configured: Mapping[str, ModelConfig],
    known: Mapping[WorkerKey, int],
    first_new_id: int,
) -> FoundLayout:
    """Match a layout with these Tritons, each of which says which worker it is; leave out workers without a Triton.

    `known`: ids of workers that are kept. Raises BackendError if a Triton lacks a partition of its worker, if
    partitions do not fit together, and if a model has no complete pipeline.
    """
    models, workers, _, _ = layout.contract()
    backends = {backend.worker: backend for backend in loaded}
    unknown = sorted(name for name in backends if name not in {worker.name for worker in workers})
    if unknown:
        address = backends[unknown[0]].address
        raise BackendError(f"Triton at {address} is worker {unknown[0] or 'none'!r}, which is not in the layout")
    found: list[tuple[Worker, Backend]] = []
    partitions: dict[str, ModelSignature] = {}
    configs: dict[str, model_config_pb2.ModelConfig] = {}
    consents: dict[str, BatchingDecision] = {}
    models_of = {partition.name: partition.model for partition in layout.partitions}
    for worker in workers:
        if backend := backends.get(worker.name):
            worker_id = known.get((worker.name, worker.hosts, worker.device_class), first_new_id + len(found))
            found.append((msgspec.structs.replace(worker, id=worker_id), backend))
            for name in worker.hosts:
                config = _config_of(name, worker, backend, loaded[backend])
                consent = _consent_of(config, backend, configured.get(models_of[name], ModelConfig()))
                consents[name] = most_careful((consent, consents.get(name, consent)))
                signature = signature_of(config)
                known_signature = partitions.setdefault(name, signature)
                narrower = replace(signature, max_rows=min(signature.max_rows, known_signature.max_rows))
                if replace(known_signature, max_rows=narrower.max_rows) != narrower:
                    raise BackendError(
                        f"partition {name!r} at {backend.address} is not the one that other workers have"
                    )
                partitions[name] = narrower
                configs[name] = config
    outputs = {model.name: model.outputs for model in layout.models}
    fitted = {
        model.name: _fit(
            model, partitions, configs, consents, configured.get(model.name, ModelConfig()), outputs[model.name]
        )
        for model in models
    }
    return FoundLayout(fitted, found, partitions)


def _outputs(
    model: Model, configs: Sequence[model_config_pb2.ModelConfig], asked: Sequence[str]
) -> list[model_config_pb2.ModelOutput]:
    """Return the outputs for clients: the requested ones, otherwise those that no partition consumes."""
    given = {tensor.name: tensor for config in configs for tensor in config.output}
    taken = {tensor.name for config in configs for tensor in config.input}
    if missing := [name for name in asked if name not in given]:
        raise BackendError(f"model {model.name!r}: no partition gives its output {missing[0]!r}")
    return [given[name] for name in asked] or [tensor for name, tensor in given.items() if name not in taken]


def _config_of(
    name: str, worker: Worker, backend: Backend, models: Iterable[LoadedModel]
) -> model_config_pb2.ModelConfig:
    configs = {model.config.name: model.config for model in models}
    if name not in configs:
        raise BackendError(
            f"Triton at {backend.address} is worker {worker.name!r}, which hosts {name!r} in the layout, but it has "
            f"{', '.join(sorted(configs)) or 'nothing'}: was its repository generated from this layout?"
        )
    return configs[name]


def _consent_of(config: model_config_pb2.ModelConfig, backend: Backend, settings: ModelConfig) -> BatchingDecision:
    """Whether batches may run through a partition: its layout is a plan of what is scheduled, as an SLO is."""
    consent = consent_of(config, settings.scheduling, has_slo=True)
    if consent.is_left_to_triton:
        return BatchingDecision("unbatched", consent.why, 1)
    if consent.scheduling == "bypass":
        raise BackendError(f"partition {config.name!r} at {backend.address} cannot be batched: {consent.why}")
    return consent


def _fit(
    model: Model,
    partitions: Mapping[str, ModelSignature],
    configs: Mapping[str, model_config_pb2.ModelConfig],
    consents: Mapping[str, BatchingDecision],
    settings: ModelConfig,
    asked: Sequence[str],
) -> SplitModel:
    """A model over the pipelines that are there. `asked`: its outputs, as far as the layout says which those are."""
    ways = [path for path in model.paths if all(name in partitions for name in path.partitions)]
    if not ways:
        missing = sorted({name for path in model.paths for name in path.partitions} - set(partitions))
        raise BackendError(f"model {model.name!r}: no Triton is a worker that hosts {', '.join(missing)}")
    for path in ways:
        for name in path.partitions:
            if partitions[name].max_rows < path.max_rows:
                raise BackendError(
                    f"partition {name!r} takes {partitions[name].max_rows} rows, its pipeline {path.max_rows}: "
                    "raise max_batch_size in its config.pbtxt"
                )
        there = set(partitions[path.partitions[0]].inputs)
        for name in path.partitions:
            if missing := sorted(set(partitions[name].inputs) - there):
                raise BackendError(f"partition {name!r} takes {missing[0]!r}, which none before it gives")
            there |= partitions[name].outputs
    inputs = configs[ways[0].partitions[0]]
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(inputs)
    config.name, config.max_batch_size = model.name, model.max_rows
    for left_out in ("instance_group", "parameters", "output", "dynamic_batching"):
        config.ClearField(left_out)
    config.output.extend(_outputs(model, [configs[name] for name in ways[0].partitions], asked))
    signature = signature_of(config)
    for path in ways:
        given = set[str]().union(*(partitions[name].outputs for name in path.partitions))
        if partitions[path.partitions[0]].inputs != signature.inputs or not signature.outputs <= given:
            raise BackendError(f"model {model.name!r}: its pipelines take or give different tensors")
    slo_ns = model.slo_ns if settings.slo_ms is None else ms_to_ns(settings.slo_ms)
    consent = most_careful(consents[name] for path in ways for name in path.partitions)
    model = msgspec.structs.replace(
        model, slo_ns=slo_ns, on_deadline_miss=settings.on_deadline_miss or "reject", merge_limit=consent.merge_limit
    )
    return SplitModel(model, signature, config, consent)
