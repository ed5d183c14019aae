"""Two random worlds in one: models, workers and requests of both, none of which is the other's."""

from dataclasses import replace as dataclass_replace

from msgspec.structs import replace

from tidegate.api import Model, Network, RequestArrived, RequestCancelled, Worker, WorkerJoined, WorkerLost
from tidegate.observation import AnyStimulus
from tidegate.testing.world import ConformanceWorld

APART = 1000
"""By how much ids of the second world are larger."""


def of_other(name: str) -> str:
    """What something of the second world is called."""
    return f"other-{name}"


def joined(one: ConformanceWorld, two: ConformanceWorld) -> ConformanceWorld:
    """Both, with the execution of the first."""
    mine, other = one.setup, two.setup
    bytes_per_row = dict(mine.network.bytes_per_row) if mine.network else {}
    if other.network:
        bytes_per_row |= {of_other(part): size for part, size in other.network.bytes_per_row.items()}
    network = mine.network or other.network
    setup = replace(
        mine,
        models=(*mine.models, *map(_model, other.models)),
        workers=(*mine.workers, *map(_worker, other.workers)),
        profiles=(*mine.profiles, *(replace(each, partition=of_other(each.partition)) for each in other.profiles)),
        network=network and Network(bytes_per_row, network.bytes_per_s, network.latency_ns),
    )
    events = sorted((*one.events, *map(_event, two.events)), key=lambda event: event.now_ns)
    return dataclass_replace(one, setup=setup, events=tuple(events), failures=one.failures | two.failures)


def _model(model: Model) -> Model:
    pipelines = (replace(path, partitions=tuple(map(of_other, path.partitions))) for path in model.pipelines)
    return replace(model, name=of_other(model.name), pipelines=tuple(pipelines))


def _worker(worker: Worker) -> Worker:
    hosts = tuple(sorted(map(of_other, worker.hosts)))
    return replace(worker, id=worker.id + APART, name=of_other(worker.name), hosts=hosts)


def _event(event: AnyStimulus) -> AnyStimulus:
    match event:
        case RequestArrived(_, request):
            other = replace(request, id=request.id + APART, model=of_other(request.model))
            return replace(event, request=other)
        case RequestCancelled():
            return replace(event, request_id=event.request_id + APART)
        case WorkerLost():
            return replace(event, worker_id=event.worker_id + APART)
        case WorkerJoined():
            return replace(event, worker=_worker(event.worker))
        case _:
            raise TypeError(f"{event!r} is in no random world")
