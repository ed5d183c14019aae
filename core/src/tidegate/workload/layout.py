"""Layout of a scenario: the one that it names, or the one that its workers and models describe."""

from tidegate.api import NS_PER_MS, Profile
from tidegate.schemas import Layout, LayoutModel, LayoutNetwork, LayoutPartition, LayoutPipeline, LayoutWorker
from tidegate.workload.partitions import PartitionSpec, blocks_of
from tidegate.workload.scenario import ModelSpec, Scenario
from tidegate.workload.workers import devices_of


def layout_of(scenario: Scenario) -> Layout:
    """Return the layout of a scenario. An unsplit model is one partition of its own name."""
    if scenario.layout is not None:
        slos_ms = {model.name: model.slo_ms for model in scenario.models}
        models = (model.model_copy(update={"slo_ms": slos_ms[model.name]}) for model in scenario.layout.models)
        return scenario.layout.model_copy(update={"models": tuple(models)})
    everything = tuple(sorted(scenario.partitions))
    workers = []
    for number, (pool, device) in enumerate(devices_of(scenario.workers)):
        name = f"{device.node}/{pool.device_class}-{number}"
        hosts = tuple(sorted(pool.hosts)) if pool.hosts else everything
        workers.append(LayoutWorker(name=name, device=device, slice=pool.slice, hosts=hosts))
    kinds: dict[str, set[str]] = {}
    for hosts, kind in {(worker.hosts, worker.speed) for worker in workers}:
        for name in hosts:
            kinds.setdefault(name, set()).add(kind)
    network = scenario.network
    return Layout(
        models=tuple(
            LayoutModel(name=model.name, slo_ms=model.slo_ms, pipelines=_pipelines(model)) for model in scenario.models
        ),
        partitions=tuple(part for model in scenario.models for part in _partitions(model, kinds)),
        workers=tuple(workers),
        network=None if network is None else LayoutNetwork(gbps=network.gbps, latency_ms=network.latency_ms),
    )


def _pipelines(model: ModelSpec) -> tuple[LayoutPipeline, ...]:
    if not model.pipelines:
        return (LayoutPipeline(partitions=(model.name,), batch=model.max_rows),)
    return tuple(
        LayoutPipeline(partitions=tuple(part.name for part in pipeline.partitions), batch=pipeline.batch)
        for pipeline in model.pipelines
    )


def _partitions(model: ModelSpec, kinds: dict[str, set[str]]) -> list[LayoutPartition]:
    blocks = blocks_of([pipeline.partitions for pipeline in _pipelines(model)])
    return [
        LayoutPartition(
            name=name,
            model=model.name,
            blocks=blocks[name],
            bytes_per_row=part.output_bytes,
            latency_ms={
                device_class: _table_ms(_profile(part, device_class, max_rows)) for device_class in sorted(kinds[name])
            },
        )
        for name, (part, max_rows) in model.partitions.items()
    ]


def _profile(part: PartitionSpec, device_class: str, max_rows: int) -> Profile:
    spec = part.profile_on(device_class)
    assert spec is not None, "checked when the scenario was read"
    return spec.build(part.name, device_class, max_rows)


def _table_ms(profile: Profile) -> tuple[float, ...]:
    return tuple(profile.expected_ns(rows) / NS_PER_MS for rows in range(1, profile.max_rows + 1))
