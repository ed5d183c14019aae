"""Networks of both stages: two ONNX files, with the sizes that they were trained for, run by onnxruntime."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from tidegate.api import PlanningError
from tidegate_inss.learned.catalog import Ints
from tidegate_inss.learned.placement import GROUP_SIZE, MAX_MODELS_PER_GPU, PLACING_STATE, Bools, Floats32
from tidegate_inss.learned.sharing import SHARING_ACTION, SHARING_STATE

PLACING, SHARING = "placing.onnx", "sharing.onnx"
RECORD_FILE = "record.json"
NETWORK_SIZES = {
    "gpus_per_group": GROUP_SIZE,
    "models_per_gpu": MAX_MODELS_PER_GPU,
    "placing_state": PLACING_STATE,
    "sharing_state": SHARING_STATE,
    "sharing_action": SHARING_ACTION,
}
"""Sizes that the networks are trained for, as stored in their files."""
SHIPPED_FOLDER = Path(__file__).parent / "shipped"


class Networks:
    """Neural networks (ONNX) of InSS: stage 1 places models on GPUs, stage 2 divides each GPU among them."""

    def __init__(self, folder: Path) -> None:
        """Raise PlanningError if files are missing, invalid, or trained for other sizes."""
        self._placing = _session(folder / PLACING, PLACING_STATE)
        self._sharing = _session(folder / SHARING, SHARING_STATE)

    def preferences(self, states: Floats32) -> Floats32:
        """Return stage 1's preference for each child: logits of shape (groups, GROUP_SIZE), without masks."""
        found: Floats32 = self._placing.run(None, {"states": states})[0]
        return found

    def place(self, states: Floats32, masks: Bools) -> Ints:
        """Return the rank of the preferred child with memory, for each group.

        `states`: shape (groups, PLACING_STATE); `masks`: children with memory, shape (groups, GROUP_SIZE).
        """
        best: Ints = np.where(masks, self.preferences(states), -np.inf).argmax(axis=1)
        return best

    def share(self, states: Floats32) -> Floats32:
        """Return the actions of stage 2, shape (GPUs, SHARING_ACTION), for states of shape (GPUs, SHARING_STATE)."""
        found: Floats32 = self._sharing.run(None, {"states": states})[0]
        return found


def _session(path: Path, state: int) -> onnxruntime.InferenceSession:
    """`state`: how many numbers each of its states has."""
    options = onnxruntime.SessionOptions()
    # The networks are small: more threads would only wait for each other.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common class of their own
        why = "there is no such file" if not path.exists() else str(error)
        raise PlanningError(f"{path}: {why}; tidegate train-inss writes {PLACING} and {SHARING}") from error
    metadata = session.get_modelmeta().custom_metadata_map
    if other := [name for name, size in NETWORK_SIZES.items() if metadata.get(name) != str(size)]:
        raise PlanningError(f"{path}: {_other_sizes(metadata, other)}: train networks for these (tidegate train-inss)")
    if (has := session.get_inputs()[0].shape[-1]) != state:
        raise PlanningError(
            f"{path}: its states have {has} numbers, not {state}: it is another network of that name; put back what "
            "tidegate train-inss wrote"
        )
    return session


def _other_sizes(metadata: dict[str, str], other: Sequence[str]) -> str:
    if not set(NETWORK_SIZES) & set(metadata):
        return "it does not say for which sizes it was trained"
    return "trained for " + ", ".join(f"{name} {metadata.get(name)}, not {NETWORK_SIZES[name]}" for name in other)
