"""Placement of each worker: its folder and its ports; names of real machines for the nodes of a planner."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from tidegate.schemas import Layout, LayoutWorker, device_variable
from tidegate_repo_generator.model import GenerateError

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9000
PORTS_APART: Final = 10
"""Distance between the first ports of two workers, as between Triton's own 8000 and that of a second Triton."""

_LAST_PORT: Final = 65535
_PART: Final = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_KUBERNETES_NAME: Final = re.compile(rf"{_PART}(\.{_PART})*")
_LONGEST_LABEL: Final = 63


@dataclass(frozen=True)
class WorkerPlacement:
    """Placement of one worker: folder, host and ports."""

    folder: str
    """Worker name, made a valid folder name."""
    host: str
    http_port: int

    @property
    def grpc_port(self) -> int:
        """Port of gRPC. The order is Triton's: HTTP, gRPC, metrics."""
        return self.http_port + 1

    @property
    def metrics_port(self) -> int:
        """Port of the Prometheus metrics; see `grpc_port`."""
        return self.http_port + 2


def places_of(workers: Sequence[LayoutWorker], hosts: Mapping[str, str], port: int) -> dict[str, WorkerPlacement]:
    """Assign a folder, a host and ports to every worker; return the placements by worker name.

    `hosts`: addresses by node; "" is that of all other nodes, this machine by default. `port`: the first port on every
    host.
    Raises GenerateError for an unknown node, and if the ports run out.
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
    """Return the names derived from a worker's folder, which must be unique: files, and the variable of its device."""
    return f"{folder}.sh", f"{folder}.build.sh", device_variable(folder)


def folder_name(name: str, taken: Collection[str], beside: Callable[[str], Collection[str]] = lambda folder: ()) -> str:
    """Derive a folder name that is not in `taken`, ignoring case, from a worker's or another name.

    `beside`: returns further names that a folder needs, which must be free too.
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "worker"
    lowered = {folder.lower() for folder in taken}
    number, found = 1, plain
    while any(claimed.lower() in lowered for claimed in (found, *beside(found))):
        number += 1
        found = f"{plain}-{number}"
    return found


def with_nodes(layout: Layout, names: Mapping[str, str]) -> Layout:
    """Return the layout with nodes renamed by `names` (new by old name); "" names the only node.

    Raises GenerateError for an unknown node, and if two nodes would get one name.
    """
    nodes = list(dict.fromkeys(worker.device.node for worker in layout.workers))
    renamed = dict(names)
    if "" in renamed:
        if len(nodes) > 1:
            raise GenerateError(f"--node {renamed['']}: say of which it is the name; the layout has {', '.join(nodes)}")
        renamed[nodes[0]] = renamed.pop("")
    if unknown := sorted(set(renamed) - set(nodes)):
        raise GenerateError(
            f"--node {unknown[0]}={renamed[unknown[0]]}: the layout has no such node; it has {', '.join(nodes)}"
        )
    called: dict[str, str] = {}
    for node in nodes:
        name = renamed.get(node, node)
        if name in called:
            raise GenerateError(f"--node: {called[name]!r} and {node!r} would both be {name!r}: give each its own name")
        called[name] = node
    if not renamed:
        return layout
    workers = tuple(
        worker.model_copy(
            update={"device": replace(worker.device, node=renamed.get(worker.device.node, worker.device.node))}
        )
        for worker in layout.workers
    )
    return layout.model_copy(update={"workers": workers})


def can_name_kubernetes_node(name: str) -> bool:
    """Return whether Kubernetes accepts a node of that name: lowercase letters, digits, '-' and '.'."""
    return len(name) <= _LONGEST_LABEL and _KUBERNETES_NAME.fullmatch(name) is not None
