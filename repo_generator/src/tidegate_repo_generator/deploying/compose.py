"""Docker Compose services for the workers of one node: one container each, with access to its own slice only."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.schemas import LayoutWorker, device_variable, mig_instance
from tidegate_repo_generator.deploying.launch import ALLOW_CLIENT_SHM
from tidegate_repo_generator.deploying.mps import MPS_PIPE_FOLDER, domain_of
from tidegate_repo_generator.deploying.places import WorkerPlacement, folder_name
from tidegate_repo_generator.deploying.slices import VISIBLE_DEVICE
from tidegate_repo_generator.model import DeployTarget

TRITON_IMAGE: Final = "nvcr.io/nvidia/tritonserver:25.06-py3"
TENSORRT_IMAGE: Final = "nvcr.io/nvidia/tensorrt:25.06-py3"
"""Container image of the matching release: engines must be built with the TensorRT version that will load them."""
DEPLOYMENT_MOUNT: Final = "/deployment"
_MPS: Final = "/mps"


def compose(
    workers: Sequence[LayoutWorker], places: Mapping[str, WorkerPlacement], deploy_target: DeployTarget
) -> dict[str, Any]:
    """Build the Compose document, for a file two folders below the deployment's.

    MIG instances come from environment variables (`tidegate mig env`), because their UUIDs exist only once they are
    created.
    """
    services: dict[str, Any] = {}
    names = [places[worker.name].folder for worker in workers]
    for worker in workers:
        place = places[worker.name]
        name = place.folder.lower()
        common = _common(worker, place)
        services[name] = {
            "image": f"${{TRITON_IMAGE:-{TRITON_IMAGE}}}",
            "command": [f"{DEPLOYMENT_MOUNT}/workers/{place.folder}.sh"],
            "restart": "unless-stopped",
            "network_mode": "host",
            **common,
        }
        if deploy_target is DeployTarget.TENSORRT:
            services[folder_name(f"{name}-build", names)] = {
                "image": f"${{TENSORRT_IMAGE:-{TENSORRT_IMAGE}}}",
                "command": [f"{DEPLOYMENT_MOUNT}/workers/{place.folder}.build.sh"],
                "profiles": ["build"],
                **common,
            }
    return {"services": services}


def _common(worker: LayoutWorker, place: WorkerPlacement) -> dict[str, Any]:
    domain = domain_of(worker)
    device = str(worker.device.id)
    if mig_instance(worker.slice) and not device.startswith("MIG-"):
        device = f"${{{device_variable(place.folder)}:?run tidegate mig env}}"
    volumes = [f"../..:{DEPLOYMENT_MOUNT}"] + ([f"{MPS_PIPE_FOLDER}:{_MPS}"] if domain else [])
    reserved = {"driver": "nvidia", "device_ids": [device], "capabilities": ["gpu"]}
    return {
        # MPS, and tensors in shared memory, join processes of one IPC namespace.
        "ipc": "host",
        # Those who share through MPS are one user, who its daemon is, too.
        **({"user": "${TIDEGATE_USER:-0:0}"} if domain else {}),
        "environment": {
            "TIDEGATE_DEVICE": VISIBLE_DEVICE,
            ALLOW_CLIENT_SHM: f"${{{ALLOW_CLIENT_SHM}:-false}}",
            **({"TIDEGATE_MPS": _MPS} if domain else {}),
        },
        "volumes": volumes,
        "deploy": {"resources": {"reservations": {"devices": [reserved]}}},
    }
