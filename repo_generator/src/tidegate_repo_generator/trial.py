"""Running a model to find out whether its first dimension is a batch's: each row is answered as if it were alone."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tidegate_repo_generator.model import Tensor
from tidegate_repo_generator.onnx_file import OnnxFile

Arrays = dict[str, NDArray[Any]]

# Sizes for the dynamic dimensions beyond the first: the first that the model accepts. Vision models mostly want
# multiples of 32, and the windows of convolutions a minimum; the small ones are for everything else.
DYNAMIC_SIZES: Final = (64, 32, 224, 16, 4, 1)
_MOST_ELEMENTS: Final = 2**24
_FATAL_SEVERITY: Final = 4
_ROWS: Final = 3
# How far a row's values may move in company, relative to the largest. Kernels differ with the batch, and dynamic
# quantisation takes its scale from all rows; a model that mixes rows moves much further.
_TOLERANCE: Final = 0.1
_NUMPY_TYPES: Final = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64", "STRING": "str"}


@dataclass(frozen=True)
class Verdict:
    """Whether requests may share a batch."""

    batches: bool | None
    """None: could not be found out."""
    reason: str
    """A clause for people, without a full stop."""


def try_rows(model: OnnxFile) -> Verdict:
    """Run the model on the CPU with rows alone and together, on random inputs.

    The first dimension of every tensor must be dynamic. Where the model cannot be run here at all (custom operators,
    types that numpy lacks, sizes that it rejects) the verdict is open.
    """
    if any(tensor.data_type == "BF16" for tensor in model.inputs + model.outputs):
        return Verdict(None, "a model with BF16 inputs or outputs cannot be tried here")
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_SEVERITY
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    names = [tensor.name for tensor in model.outputs]
    try:
        session = ort.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common class of their own
        return Verdict(None, f"onnxruntime cannot load it here ({first_line(error)})")

    def run(feed: Arrays) -> Arrays:
        return dict(zip(names, session.run(names, feed), strict=True))

    refusal = "its dynamic dimensions are too many"
    for size in DYNAMIC_SIZES:
        feed = random_rows(model.inputs, _ROWS, size)
        if sum(array.size for array in feed.values()) > _MOST_ELEMENTS:
            continue
        try:
            alone, again = (run(_part(feed, 0, 1)) for _ in range(2))
        except Exception as error:
            refusal = first_line(error)
            continue
        try:
            rest, together = run(_part(feed, 1, _ROWS)), run(feed)
        except Exception as error:
            return Verdict(False, f"it runs with one row but not with several ({first_line(error)})")
        return _compare(alone, again, rest, together)
    return Verdict(None, f"onnxruntime cannot run it here on random inputs ({refusal})")


def random_rows(inputs: tuple[Tensor, ...], rows: int, size: int) -> Arrays:
    """Seeded random inputs; `size`: of every dynamic dimension beyond the first."""
    generator = np.random.default_rng(0)  # noqa: TID251 - this is where its seed is given
    feed = {}
    for tensor in inputs:
        shape = [rows, *(size if isinstance(entry, str) else entry for entry in tensor.shape[1:])]
        data_type = _NUMPY_TYPES.get(tensor.data_type, tensor.data_type.lower())
        if data_type.startswith("float"):
            feed[tensor.name] = generator.standard_normal(shape).astype(data_type)
        else:
            # 0 and 1 are valid tokens, indices, masks and lengths nearly everywhere.
            values = generator.integers(0, 2, shape).astype(data_type)
            feed[tensor.name] = values.astype(object) if data_type == "str" else values
    return feed


def _part(feed: Arrays, start: int, stop: int) -> Arrays:
    return {name: array[start:stop] for name, array in feed.items()}


def _compare(alone: Arrays, again: Arrays, rest: Arrays, together: Arrays) -> Verdict:
    for name, merged in together.items():
        parts = (alone[name], rest[name])
        for rows, array in ((1, parts[0]), (_ROWS - 1, parts[1]), (_ROWS, merged)):
            if array.ndim == 0 or array.shape[0] != rows:
                return Verdict(False, f"output '{name}' has the shape {list(array.shape)} for a batch of {rows}")
            if array.shape[1:] != merged.shape[1:]:
                return Verdict(False, f"the shape of output '{name}' depends on what else is in the batch")
        # A model that draws random numbers cannot be compared with itself.
        repeats = np.array_equal(alone[name], again[name])
        if repeats and merged.dtype.kind == "f" and differs(np.concatenate(parts), merged):
            return Verdict(False, f"a row's output '{name}' depends on what else is in the batch")
    return Verdict(True, f"{_ROWS} rows were answered together as alone")


def differs(expected: NDArray[Any], actual: NDArray[Any]) -> bool:
    """Whether floats moved further than the company of other rows may move them."""
    finite = np.isfinite(expected) & np.isfinite(actual)
    before, after = expected[finite].astype("float64"), actual[finite].astype("float64")
    # Random inputs often leave a saturated output, all but zero, of which only the rounding of larger values is left.
    rounding = 100 * float(np.finfo(expected.dtype).eps)
    return bool((np.abs(before - after) > rounding + _TOLERANCE * np.abs(before).max(initial=0)).any())


def first_line(error: Exception) -> str:
    """What an exception says, for a message of one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
