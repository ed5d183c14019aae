"""Interference among emulated GPUs of a deployment: workers on one slow each other down by a fitted model.

The deployment's folder has the model, and a board for each device: a file in which the processes that are busy there
publish their use. The device of a worker determines its board, so a worker that moves finds its new neighbors.
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
