"""The deployment: a folder generated from a layout, with a model repository for each worker.

`tidegate generate` writes it; `tidegate up` starts it.
"""

import json
import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal
from urllib.parse import quote

from pydantic import AfterValidator, Field

from tidegate.api import VersionedDocument
from tidegate.api.device import Device, Slice, compute_percent, mig_instance
from tidegate.api.interference import Tenant
from tidegate.api.planner import DocumentSection
from tidegate.schemas.document import DeviceField, DocumentError, Name, SliceField, read_document
from tidegate.schemas.interference import InterferenceModel


def _inside(path: str) -> str:
    """A path in the folder: relative, and never out of it."""
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} is not inside the folder")
    return path


Inside = Annotated[str, Field(min_length=1), AfterValidator(_inside)]

DEPLOYMENT_FILE: Final = "deployment.json"
LAYOUT_FILE: Final = "layout.json"
PROXY_FILE: Final = "tidegate.yaml"
RUN_FOLDER: Final = "run"
"""Folder of the logs and of the state file."""
STATE_FILE: Final = "run/state.json"
"""File that exists while the deployment is up, or after it ended unexpectedly."""


class DeployedPartition(DocumentSection):
    """A partition that was extracted from a model."""

    name: Name
    model: Name
    blocks: tuple[int, int]
    file: Inside = Field(description="ONNX file of the partition, to which the repositories of its workers are linked")
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class DeployedWorker(DocumentSection):
    """A worker and its model repository."""

    name: Name
    repository: Inside
    launch: Inside = Field(description="Script that starts the worker's Triton")
    device: DeviceField
    slice: SliceField
    hosts: tuple[Name, ...]


class Deployment(VersionedDocument):
    """Contents of a folder generated from a layout; paths are relative to it."""

    kind: Literal["deployment"] = "deployment"
    deploy_target: Literal["embedded", "triton", "triton-tensorrt", "tensorrt"]
    partitions: tuple[DeployedPartition, ...] = Field(min_length=1)
    workers: tuple[DeployedWorker, ...] = Field(min_length=1)
    sources: dict[Name, str] = Field(
        default={}, description="Folder of each model's blocks, from which other partitions can be made"
    )


def device_variable(repository: str) -> str:
    """Return the environment variable with the UUID of a worker's MIG instance in Docker Compose files."""
    return "TIDEGATE_" + re.sub(r"\W", "_", PurePosixPath(repository).name).upper()


def read_deployment(folder: Path) -> Deployment:
    """Read the deployment in a folder. Raises DocumentError."""
    if not (folder / DEPLOYMENT_FILE).is_file():
        raise DocumentError(
            f"{folder} holds no deployment (it has no {DEPLOYMENT_FILE}): make one with "
            "`tidegate generate LAYOUT.json --blocks MODEL=DIR -o FOLDER`"
        )
    return read_document(folder / DEPLOYMENT_FILE, Deployment)


INTERFERENCE_FILE: Final = "interference.json"
"""The interference file of a deployment on emulated GPUs, beside its layout."""
NEIGHBORS_PARAMETER: Final = "neighbors"
"""Name of the parameter in the config.pbtxt of an emulated GPU's model."""
_BOARDS: Final = "boards"


def neighbors_parameter(
    interference: InterferenceModel, folder: Path, device: Device, part: Slice, partition: str, most_rows: int
) -> str:
    """Return the value of the parameter `neighbors` of a partition on a part of a device.

    `folder`: folder of the deployment, in which the board's folder is created. `most_rows`: largest batch in rows.
    Raises KeyError for a partition that the interference model does not list.
    """
    tenants = [Tenant(partition, rows, compute_percent(part)) for rows in range(1, most_rows + 1)]
    alone = {tenant.rows: interference.alone(tenant) for tenant in tenants}
    instance = mig_instance(part)
    place = f"-{instance.profile}-{instance.start}" if instance else ""
    board = folder.absolute() / _BOARDS / quote(f"{device.node}-{device.id}{place}", safe="")
    board.parent.mkdir(exist_ok=True)
    return json.dumps(
        {
            "board": str(board),
            "uses": {
                rows: (each.cache_percent, each.dram_percent, each.gpu_ms / each.taken_ms)
                for rows, each in alone.items()
            },
            "minds": [*interference.models[partition].sensitivity.model_dump().values()],
        }
    )
