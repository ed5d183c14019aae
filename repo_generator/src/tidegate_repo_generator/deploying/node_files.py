"""Files of a node besides its workers' repositories: MIG partitioning, MPS daemons, containers."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tidegate.schemas import Device, Layout, LayoutWorker, Mig, mig_instance
from tidegate_repo_generator.deploying.compose import compose
from tidegate_repo_generator.deploying.kubernetes import pods_of, proxy_objects, worker_objects
from tidegate_repo_generator.deploying.mps import MpsDomain, daemon_file, domain_of
from tidegate_repo_generator.deploying.places import WorkerPlacement, can_name_kubernetes_node, folder_name
from tidegate_repo_generator.deploying.slices import share_of
from tidegate_repo_generator.model import DeployTarget

_EXECUTABLE: Final = 0o755
_MOST_CONFIG_BYTES: Final = 2**20


class _Dumper(yaml.SafeDumper):  # type: ignore[misc] # yaml has no types
    """YAML writer for human readers: no anchors, and texts of several lines as blocks."""

    def ignore_aliases(self, data: object) -> bool:
        """Ignore all."""
        return True

    def represent_str(self, data: str) -> Any:  # noqa: ANN401
        """Represent a text, line by line if it has several."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def write_node_files(
    folder: Path,
    layout: Layout,
    places: Mapping[str, WorkerPlacement],
    deploy_target: DeployTarget,
    policy: str,
    layout_text: str,
) -> list[str]:
    """Write `mig`, `mps`, `compose` and `kubernetes` into a deployment; return notices for the user.

    `policy`: name of the policy. `layout_text`: the text of `layout.json`.
    """
    nodes: dict[str, list[LayoutWorker]] = {}
    for worker in layout.workers:
        nodes.setdefault(worker.device.node, []).append(worker)
    notices, taken = [], set[str]()
    for node, workers in nodes.items():
        name = folder_name(node, taken)
        taken.add(name)
        notices += _write_cuts(folder, node, name, workers)
        if not can_name_kubernetes_node(node):
            notices.append(
                f"kubernetes/workers.yaml: no node of Kubernetes can be called {node!r}, so the pods of its workers "
                f"run wherever there is what they ask for: say which it is with --node {shlex.quote(f'{node}=NAME')}"
            )
        services = compose(workers, places, deploy_target)
        what = f"The workers of node {node!r}: docker compose -f compose/{name}/compose.yaml up"
        _write_yaml(folder / "compose" / name / "compose.yaml", what, services)
    _write_daemons(folder, layout.workers, places)
    pods = pods_of(layout.workers, places)
    objects = worker_objects(pods, places, deploy_target)
    _write_yaml(folder / "kubernetes" / "workers.yaml", "The workers, a pod for each slice.", *objects)
    proxy = proxy_objects(pods, places, policy, layout_text)
    _write_yaml(folder / "kubernetes" / "tidegate.yaml", "The proxy in front of the workers.", *proxy)
    size = sum(len(text.encode()) for text in proxy[0]["data"].values())
    if size > _MOST_CONFIG_BYTES:
        notices.append(
            f"kubernetes/tidegate.yaml: Kubernetes takes ConfigMaps of up to {_MOST_CONFIG_BYTES} bytes, and this "
            f"one has {size}, most of it the layout: put both files on a volume instead."
        )
    return notices


def _write_cuts(folder: Path, node: str, name: str, workers: list[LayoutWorker]) -> list[str]:
    cuts = cuts_of(workers)
    document = mig_parted(cuts)
    if document is None:
        if not any(cuts.values()):
            return []
        return [
            f"node {node!r}: its GPUs have UUIDs in the layout, and nvidia-mig-parted knows numbers only, so there is "
            f"no mig/{name}.yaml: `tidegate mig apply` takes either"
        ]
    what = f"How the GPUs of node {node!r} are cut: nvidia-mig-parted apply -f mig/{name}.yaml -c {CONFIG_NAME}"
    _write_yaml(folder / "mig" / f"{name}.yaml", what, document)
    return []


def _write_daemons(folder: Path, workers: tuple[LayoutWorker, ...], places: Mapping[str, WorkerPlacement]) -> None:
    domains: dict[MpsDomain, list[LayoutWorker]] = {}
    for worker in workers:
        if domain := domain_of(worker):
            domains.setdefault(domain, []).append(worker)
    for domain, sharers in domains.items():
        script = folder / domain.script
        script.parent.mkdir(exist_ok=True)
        launched = [f"{places[worker.name].folder}.sh" for worker in sharers]
        script.write_text(daemon_file(domain, sharers, launched, share_of(sharers[0])), encoding="utf-8")
        script.chmod(_EXECUTABLE)


def _write_yaml(path: Path, what: str, *documents: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, default_flow_style=None)
    path.write_text(f"# Written by `tidegate generate`. {' '.join(what.split())}\n{text}", encoding="utf-8")


CONFIG_NAME: Final = "tidegate"
"""Name of the configuration: `nvidia-mig-parted apply -f FILE -c tidegate`."""


def cuts_of(workers: Iterable[LayoutWorker]) -> dict[Device, tuple[Mig, ...]]:
    """Return the MIG instances of every device, ordered by first memory slice; empty for a device that is not cut.

    Instances that the layout identifies by UUID exist already and are left out.
    """
    cuts: dict[Device, set[Mig]] = {}
    for worker in workers:
        if not str(worker.device.id).startswith("MIG-"):
            instances = cuts.setdefault(worker.device, set())
            if instance := mig_instance(worker.slice):
                instances.add(instance)
    return {device: tuple(sorted(cut, key=lambda each: each.start)) for device, cut in cuts.items()}


def mig_parted(cuts: dict[Device, tuple[Mig, ...]]) -> dict[str, Any] | None:
    """Return the document of nvidia-mig-parted for one node, or None if no GPU is cut, or if a cut one has no index.

    It counts instances by profile, and the driver places them; `tidegate mig apply` keeps the placement of the layout.
    """
    cut = any(cuts.values())
    if not cut or any(instances and isinstance(device.id, str) for device, instances in cuts.items()):
        return None
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for device, instances in cuts.items():
        if isinstance(device.id, int):
            counts = Counter(instance.profile for instance in instances)
            alike.setdefault(tuple(sorted(counts.items())), []).append(device.id)
    entries = [
        {"devices": sorted(numbers), "mig-enabled": bool(counts), **({"mig-devices": dict(counts)} if counts else {})}
        for counts, numbers in sorted(alike.items(), key=lambda each: min(each[1]))
    ]
    return {"version": "v1", "mig-configs": {CONFIG_NAME: entries}}
