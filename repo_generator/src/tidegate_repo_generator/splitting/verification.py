"""Verification of the chained blocks against the model, on random or given inputs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from tidegate_repo_generator.dataflow import Dataflow, SplitError
from tidegate_repo_generator.onnx_sessions import Arrays, RunError, open_session, run
from tidegate_repo_generator.rows.comparison import is_far, is_float
from tidegate_repo_generator.rows.samples import Sampler, part

VERIFIED_ROWS: Final = 3
RELATIVE_TOLERANCE: Final = 1e-5
"""Largest allowed difference of an output, relative to its largest value."""


@dataclass(frozen=True)
class Reference:
    """Outputs of the whole model, with its inputs, for comparison."""

    feed: Arrays
    outputs: Arrays
    inner: Arrays
    """Tensors that are sent from block to block."""


def reference(flow: Dataflow, folder: Path, sampler: Sampler, values: Iterable[str]) -> Reference:
    """Run the model; `values`: names of the inner tensors to keep. `folder`: folder of its external weights.

    Raises SplitError if a second run gives other outputs, and RunError.
    """
    inner = sorted(set(values) - set(flow.inputs) - set(flow.outputs))
    model = onnx.ModelProto()
    model.CopyFrom(flow.proto)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    session = open_session(model, folder)
    feed = sampler.rows(VERIFIED_ROWS)
    together, again = run(session, feed), run(session, feed, flow.outputs)
    for name in flow.outputs:
        array = together[name]
        if not _equal(array, again[name]):
            raise SplitError(f"output '{name}' differs from run to run: what draws random numbers cannot be verified")
    return Reference(feed, {name: together.pop(name) for name in flow.outputs}, together)


def compose(models: Iterable[Any], folder: Path, expected: Reference, step: Callable[[], None]) -> float:
    """Run the blocks one after another; return the largest relative difference of an output of the model.

    Tensors between blocks are compared too, because an output may be saturated, unless they are cast. Every block also
    runs on its first row alone, because rows may meet others in the next one. Raises SplitError. `models`: the blocks
    as ModelProtos, in order; `step`: progress callback.
    """
    live, alone = dict(expected.feed), part(expected.feed, 0, 1)
    for number, model in enumerate(models):
        session = open_session(model, folder)
        try:
            produced, first = run(session, live), run(session, alone)
        except RunError as error:
            raise SplitError(f"block {number} cannot be run: {error}") from error
        for name, array in produced.items():
            _check_rows(number, name, array, first[name])
            if name in expected.inner and (worst := difference(expected.inner[name], array)) > RELATIVE_TOLERANCE:
                raise SplitError(
                    f"tensor '{name}', which block {number} sends on, differs from the model's by {worst:.2g} of its "
                    f"largest value, more than {RELATIVE_TOLERANCE:g}: cut elsewhere"
                )
        live |= produced
        alone |= first
        step()
    return max(difference(expected.outputs[name], live[name]) for name in expected.outputs)


def difference(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the largest difference, relative to the largest expected value; infinite if shapes or types differ."""
    if expected.shape != actual.shape:
        return float("inf")
    if expected.dtype.kind not in "fiu":
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    before, after = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(before)
    if not np.array_equal(before[~finite], after[~finite], equal_nan=True) or not np.isfinite(after[finite]).all():
        return float("inf")
    magnitude = float(np.abs(before[finite]).max(initial=0))
    worst = float(np.abs(before[finite] - after[finite]).max(initial=0))
    return worst / magnitude if magnitude else worst


def _check_rows(number: int, name: str, array: NDArray[Any], first: NDArray[Any]) -> None:
    if array.dtype == np.float16 and not np.isfinite(array).all():
        raise SplitError(f"tensor '{name}' has values that float16 cannot hold (beyond 65504): split without --fp16")
    if array.shape[:1] != (VERIFIED_ROWS,) or first.shape[:1] != (1,):
        raise SplitError(
            f"tensor '{name}' of block {number} has the shape {list(array.shape)} for {VERIFIED_ROWS} rows"
        )
    if _depends_on_company(array[:1], first):
        raise SplitError(
            f"tensor '{name}', which block {number} sends on, depends on what else is in the batch: its rows could not "
            "meet others in the next block. Cut elsewhere"
        )


def _depends_on_company(together: NDArray[Any], alone: NDArray[Any]) -> bool:
    return together.shape != alone.shape or (is_float(together) and is_far(alone, together))


def _equal(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind == "f"))
