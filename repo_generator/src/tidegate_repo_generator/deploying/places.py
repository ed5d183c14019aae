"""Where each worker is: its folder and its ports."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.schemas import LayoutWorker, device_variable
from tidegate_repo_generator.model import GenerateError

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9000
PORTS_APART: Final = 10
"""Between one worker's ports and the next one's, as between Triton's own 8000 and a second Triton's."""

_LAST_PORT: Final = 65535


@dataclass(frozen=True)
class WorkerPlacement:
    """One worker's."""

    folder: str
    """Its name, made a folder's."""
    host: str
    http_port: int

    @property
    def grpc_port(self) -> int:
        """Triton's order: HTTP, gRPC, metrics."""
        return self.http_port + 1

    @property
    def metrics_port(self) -> int:
        """See `grpc_port`."""
        return self.http_port + 2


def places_of(workers: Sequence[LayoutWorker], hosts: Mapping[str, str], port: int) -> dict[str, WorkerPlacement]:
    """A place for every worker, by its name.

    `hosts`: addresses by node; "" is that of all other nodes, this machine by default. `port`: the first, on every
    host. Raises GenerateError for a node that there is not, and where the ports run out.
    """
    nodes = {worker.device.node for worker in workers}
    if unknown := sorted(set(hosts) - nodes - {""}):
        raise GenerateError(f"--host {unknown[0]}=...: the layout has no such node; it has {', '.join(sorted(nodes))}")
    on_host: Counter[str] = Counter()
    folders: set[str] = set()
    places = {}
    for worker in workers:
        host = hosts.get(worker.device.node, hosts.get("", DEFAULT_HOST))
        first = port + PORTS_APART * on_host[host]
        if first + 2 > _LAST_PORT:
            raise GenerateError(
                f"worker {worker.name!r}: no port is left on {host} above {port}: give a lower --port, or each node "
                "its own --host"
            )
        on_host[host] += 1
        folder = folder_name(worker.name, folders, _named_after)
        folders |= {folder, *_named_after(folder)}
        places[worker.name] = WorkerPlacement(folder, host, first)
    return places


def _named_after(folder: str) -> tuple[str, ...]:
    """What is named after a worker's folder and must be its own: files beside it, and the variable of its device."""
    return f"{folder}.sh", f"{folder}.build.sh", device_variable(folder)


def folder_name(name: str, taken: Collection[str], beside: Callable[[str], Collection[str]] = lambda folder: ()) -> str:
    """A folder's name for a worker or the like, one that no other has, not even where case does not count.

    `beside`: further names that come with it, which must be free, too.
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "worker"
    lowered = {folder.lower() for folder in taken}
    number, found = 1, plain
    while any(claimed.lower() in lowered for claimed in (found, *beside(found))):
        number += 1
        found = f"{plain}-{number}"
    return found
