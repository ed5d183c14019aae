"""Kubernetes objects for the workers and the proxy; NVIDIA's device plugin assigns MIG instances (strategy `mixed`).

The plugin picks which instance of a profile a pod gets: they are equal. It only offers equal MPS shares of whole
GPUs, so workers that share a device or an instance are one container here, with an MPS control daemon of their own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Final

from tidegate.schemas import LAYOUT_FILE, PROXY_FILE, LayoutWorker, Mig, mig_instance
from tidegate_repo_generator.deploying.compose import DEPLOYMENT_MOUNT, TENSORRT_IMAGE, TRITON_IMAGE
from tidegate_repo_generator.deploying.launch import proxy_config
from tidegate_repo_generator.deploying.mps import MpsDomain, domain_of
from tidegate_repo_generator.deploying.places import WorkerPlacement, can_name_kubernetes_node, folder_name
from tidegate_repo_generator.deploying.slices import VISIBLE_DEVICE
from tidegate_repo_generator.model import DeployTarget

VOLUME_CLAIM: Final = "tidegate-deployment"
"""PersistentVolumeClaim that holds the folder of the deployment."""
_IMAGE: Final = f"tidegate:{version('tidegate')}"
_CONFIG: Final = "/etc/tidegate/config"
_LONGEST_NAME: Final = 50


@dataclass(frozen=True)
class Pod:
    """Workers of one pod: a single worker, or all that share a device or an instance through MPS."""

    name: str
    workers: tuple[LayoutWorker, ...]
    domain: MpsDomain | None

    @property
    def instance(self) -> Mig | None:
        """MIG instance of the pod; None for a whole GPU."""
        return mig_instance(self.workers[0].slice)


def pods_of(workers: Sequence[LayoutWorker], places: Mapping[str, WorkerPlacement]) -> list[Pod]:
    """Group workers into pods, each with a unique name."""
    together: dict[object, list[LayoutWorker]] = {}
    for worker in workers:
        together.setdefault(domain_of(worker) or worker.name, []).append(worker)
    pods: list[Pod] = []
    for group in together.values():
        plain = re.sub(r"[^a-z0-9]+", "-", places[group[0].name].folder.lower()).strip("-")
        name = folder_name(f"worker-{plain}"[:_LONGEST_NAME].rstrip("-"), [pod.name for pod in pods])
        pods.append(Pod(name, tuple(group), domain_of(group[0])))
    return pods


def worker_objects(
    pods: Sequence[Pod], places: Mapping[str, WorkerPlacement], deploy_target: DeployTarget
) -> list[dict[str, Any]]:
    """Build a Deployment with one replica and a Service for each of the pods."""
    return [made for pod in pods for made in (_deployment(pod, places, deploy_target), _service(pod, places))]


def proxy_objects(
    pods: Sequence[Pod], places: Mapping[str, WorkerPlacement], policy: str, layout: str
) -> list[dict[str, Any]]:
    """Build the objects of the proxy and its configuration. `layout`: the text of `layout.json`.

    `policy`: name of the policy.
    """
    homes = {worker.name: pod.name for pod in pods for worker in pod.workers}
    found = {name: replace(place, host=homes[name]) for name, place in places.items()}
    ports = {"grpc": 8101, "http": 8100, "metrics": 8102}
    container = {
        "name": "tidegate",
        "image": _IMAGE,
        "args": ["serve", "--config", f"{_CONFIG}/{PROXY_FILE}"],
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        "readinessProbe": _probe("ready", "http", 5),
        "livenessProbe": _probe("live", "http", 10),
        "volumeMounts": [{"name": "config", "mountPath": _CONFIG, "readOnly": True}],
    }
    volumes = [{"name": "config", "configMap": {"name": "tidegate"}}]
    services = [{"name": name, "port": port, "targetPort": name} for name, port in ports.items()]
    config = {PROXY_FILE: proxy_config(found, policy), LAYOUT_FILE: layout}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata("tidegate"), "data": config},
        _one_pod("tidegate", {"containers": [container], "volumes": volumes}),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata("tidegate"),
            "spec": {"selector": _labels("tidegate"), "ports": services},
        },
    ]


def _deployment(pod: Pod, places: Mapping[str, WorkerPlacement], deploy_target: DeployTarget) -> dict[str, Any]:
    workers = [places[worker.name] for worker in pod.workers]
    command = (
        [f"{DEPLOYMENT_MOUNT}/{pod.domain.script}", "run"]
        if pod.domain
        else [f"{DEPLOYMENT_MOUNT}/workers/{workers[0].folder}.sh"]
    )
    resource = f"nvidia.com/mig-{pod.instance.profile.replace('+', '.')}" if pod.instance else "nvidia.com/gpu"
    common = {
        "env": [{"name": "TIDEGATE_DEVICE", "value": VISIBLE_DEVICE}],
        "resources": {"limits": {resource: 1}},
        "volumeMounts": [
            {"name": "deployment", "mountPath": DEPLOYMENT_MOUNT},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }
    ready = _all_ready(workers) if pod.domain else {"httpGet": {"path": "/v2/health/ready", "port": "http"}}
    container = {
        "name": "triton",
        "image": TRITON_IMAGE,
        "command": command,
        "ports": [port for number, place in enumerate(workers) for port in _ports(place, number, "containerPort")],
        "startupProbe": {**ready, "periodSeconds": 5, "failureThreshold": 240},
        "readinessProbe": {**ready, "periodSeconds": 5},
        **common,
    }
    building = []
    if deploy_target is DeployTarget.TENSORRT:
        scripts = " && ".join(f"{DEPLOYMENT_MOUNT}/workers/{place.folder}.build.sh" for place in workers)
        building = [{"name": "build", "image": TENSORRT_IMAGE, "command": ["/bin/sh", "-c", scripts], **common}]
    volumes = [
        {"name": "deployment", "persistentVolumeClaim": {"claimName": VOLUME_CLAIM}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    node = pod.workers[0].device.node
    spec = {
        **({"nodeSelector": {"kubernetes.io/hostname": node}} if can_name_kubernetes_node(node) else {}),
        **({"initContainers": building} if building else {}),
        "containers": [container],
        "volumes": volumes,
    }
    return _one_pod(pod.name, spec)


def _service(pod: Pod, places: Mapping[str, WorkerPlacement]) -> dict[str, Any]:
    ports = [port for number, worker in enumerate(pod.workers) for port in _ports(places[worker.name], number, "port")]
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": _labels(pod.name), "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(pod.name), "spec": spec}


def _ports(place: WorkerPlacement, number: int, key: str) -> list[dict[str, Any]]:
    after = f"-{number}" if number else ""
    named = (("http", place.http_port), ("grpc", place.grpc_port), ("metrics", place.metrics_port))
    return [{"name": f"{name}{after}", key: port} for name, port in named]


def _all_ready(places: Sequence[WorkerPlacement]) -> dict[str, Any]:
    urls = " ".join(f"http://localhost:{place.http_port}/v2/health/ready" for place in places)
    return {"exec": {"command": ["/bin/sh", "-c", f"for url in {urls}; do curl -sf $url || exit 1; done"]}}


def _probe(what: str, port: str, period_s: int) -> dict[str, Any]:
    return {"httpGet": {"path": f"/v2/health/{what}", "port": port}, "periodSeconds": period_s}


def _one_pod(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A Deployment that never has two: the next pod cannot have the slice before the last one let it go."""
    template = {"metadata": {"labels": _labels(name)}, "spec": {"automountServiceAccountToken": False, **spec}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(name),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": _labels(name)},
            "template": template,
        },
    }


def _metadata(name: str) -> dict[str, Any]:
    return {"name": name, "labels": _labels(name)}


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/part-of": "tidegate", "app.kubernetes.io/name": name}
