"""Random inputs for a model, and sessions that run it as it is written."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort
from numpy.typing import NDArray

from tidegate_repo_generator.model import Tensor
from tidegate_repo_generator.splitting.graph import SplitError
from tidegate_repo_generator.trial import DYNAMIC_SIZES, first_line, random_rows

Arrays = dict[str, NDArray[Any]]
Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of inputs, without the batch dimension."""

_SHAPE: Final = re.compile(r"(?P<name>.+):(?P<sizes>\d+(,\d+)*)")
_FATAL_SEVERITY: Final = 4


def parse_shapes(options: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Read `NAME:SIZE,SIZE...`, without the batch dimension, as perf_analyzer's --shape does. Raises SplitError."""
    shapes = {}
    for option in options:
        match = _SHAPE.fullmatch(option)
        if match is None:
            raise SplitError(f"--shape {option}: give NAME:SIZE,SIZE..., without the batch dimension, e.g. x:3,48,320")
        shapes[match["name"]] = tuple(map(int, match["sizes"].split(",")))
    return shapes


def with_sizes(inputs: tuple[Tensor, ...], shapes: Shapes) -> tuple[Tensor, ...]:
    """Put sizes that the user gave in the place of dynamic dimensions. Raises SplitError where they do not fit."""
    unknown = sorted(set(shapes) - {tensor.name for tensor in inputs})
    if unknown:
        names = ", ".join(tensor.name for tensor in inputs)
        raise SplitError(f"--shape {unknown[0]}: the model has no such input; its inputs: {names}")
    sized = []
    for tensor in inputs:
        sizes = shapes.get(tensor.name, tensor.shape[1:])
        fits = len(sizes) == len(tensor.shape) - 1 and all(
            isinstance(declared, str) or size == declared
            for size, declared in zip(sizes, tensor.shape[1:], strict=True)
        )
        if not fits:
            raise SplitError(
                f"--shape {tensor.name}: it is {tensor.dims[1:]} in the model (-1: any), not {list(sizes)}"
            )
        sized.append(Tensor(tensor.name, tensor.data_type, (tensor.shape[0], *sizes)))
    return tuple(sized)


def open_session(model: Any, folder: Path, *, optimised: bool = False, **options: Any) -> ort.InferenceSession:  # noqa: ANN401
    """Load an ONNX model, a ModelProto or a file, on the CPU. `folder`: where its external weights are.

    `options`: of onnxruntime's SessionOptions. Raises SplitError.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = _FATAL_SEVERITY
    if not optimised:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in options.items():
        setattr(settings, name, value)
    if isinstance(model, Path):
        content = str(model)
    else:
        settings.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        content = model.SerializeToString()
    try:
        return ort.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common class of their own
        raise SplitError(f"onnxruntime cannot load it here, but it must be run: {first_line(error)}") from error


def run(session: ort.InferenceSession, feed: Arrays, names: Iterable[str] | None = None) -> Arrays:
    """Run a session on those of the arrays that it takes; its outputs by name."""
    wanted = [entry.name for entry in session.get_outputs()] if names is None else list(names)
    taken = {entry.name: feed[entry.name] for entry in session.get_inputs()}
    return dict(zip(wanted, session.run(wanted, taken), strict=True))


def accepted_sizes(session: ort.InferenceSession, inputs: tuple[Tensor, ...]) -> list[int]:
    """Find up to two sizes for the dynamic dimensions that the model accepts; [0] where it has none.

    Raises SplitError where it accepts none.
    """
    dynamic = any(isinstance(size, str) for tensor in inputs for size in tensor.shape[1:])
    accepted: list[int] = []
    refusal = ""
    for size in DYNAMIC_SIZES if dynamic else (0,):
        try:
            run(session, random_rows(inputs, 1, size))
        except Exception as error:
            refusal = refusal or first_line(error)
            continue
        accepted.append(size)
        if len(accepted) == 2:
            break
    if not accepted:
        remedy = ": say sizes that it accepts for its dynamic dimensions, --shape NAME:SIZE,SIZE..." if dynamic else ""
        raise SplitError(f"onnxruntime cannot run it here on random inputs ({refusal}){remedy}")
    return accepted


def part(feed: Mapping[str, NDArray[Any]], start: int, stop: int) -> Arrays:
    """Rows `start`..`stop` - 1 of every array."""
    return {name: array[start:stop] for name, array in feed.items()}
