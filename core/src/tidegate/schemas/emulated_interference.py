"""Interference among the emulated GPUs of a deployment, so that workers on one slow each other down by a fitted model.

The deployment's folder has the model, and for each device a board: a file on which all who are busy there, in whatever
process, say what they use. It is a worker's place that says which board is its own, so one that moves finds its new
neighbors.
"""

import json
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tidegate.api.device import Device, Slice, compute_percent, mig_instance
from tidegate.api.interference import Tenant
from tidegate.schemas.interference import InterferenceModel

INTERFERENCE_FILE: Final = "interference.json"
"""The interference file of a deployment on emulated GPUs, beside its layout."""
NEIGHBORS_PARAMETER: Final = "neighbors"
"""The parameter of an emulated GPU's model."""
_BOARDS: Final = "boards"


def neighbors_parameter(
    interference: InterferenceModel, folder: Path, device: Device, part: Slice, partition: str, most_rows: int
) -> str:
    """The parameter `neighbors` of a partition with batches of up to so many rows, on a part of a device.

    `folder`: the deployment's; the board's folder is made in it. Raises KeyError for a partition that the interference
    model does not list.
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
