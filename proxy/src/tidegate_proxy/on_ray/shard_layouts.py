"""Division of a layout among shards, each of which schedules some models on its own workers."""

from collections.abc import Collection

from tidegate.schemas import Layout, LayoutWorker


def split_layout(layout: Layout, shards: int, started: Collection[str]) -> tuple[Layout, ...]:
    """Return the layouts of at most `shards` shards, with as equal numbers of workers as possible.

    Workers of one device, and all workers of one model, stay together. `started`: names of the workers that will exist;
    models without any are in no layout.
    """
    groups = [group for group in _groups(layout) if any(worker.name in started for worker in group)]
    members: list[list[LayoutWorker]] = [[] for _ in range(min(shards, len(groups)))]
    for group in sorted(groups, key=len, reverse=True):
        min(members, key=len).extend(group)
    return tuple(_of_workers(layout, [worker.name for worker in each]) for each in members)


def _groups(layout: Layout) -> list[list[LayoutWorker]]:
    """The workers, those together that share a device or a model."""
    model_of = {partition.name: partition.model for partition in layout.partitions}
    groups: list[tuple[set[object], list[LayoutWorker]]] = []
    for worker in layout.workers:
        shared: set[object] = {(worker.device.node, worker.device.id), *(model_of[name] for name in worker.hosts)}
        members = [worker]
        apart = []
        for keys, others in groups:
            if keys & shared:
                shared |= keys
                members = others + members
            else:
                apart.append((keys, others))
        groups = [*apart, (shared, members)]
    return [members for _, members in groups]


def _of_workers(layout: Layout, names: Collection[str]) -> Layout:
    """Return the part of a layout with these workers, which share no model with others."""
    workers = tuple(worker for worker in layout.workers if worker.name in names)
    hosted = {name for worker in workers for name in worker.hosts}
    partitions = tuple(partition for partition in layout.partitions if partition.name in hosted)
    models = {partition.model for partition in partitions}
    return layout.model_copy(
        update={
            "workers": workers,
            "partitions": partitions,
            "models": tuple(model for model in layout.models if model.name in models),
        }
    )
