"""Sessions of onnxruntime on the CPU: runs models, and converts errors of onnxruntime to RunError."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tidegate_repo_generator.model import GenerateError

Arrays = dict[str, NDArray[Any]]
_FATAL_SEVERITY: Final = 4


class RunError(GenerateError):
    """Error: onnxruntime failed to load or run a model. The message is onnxruntime's own, in one line."""


def open_session(
    model: Any,  # noqa: ANN401 - a ModelProto or a path
    folder: Path,
    *,
    optimized: bool = False,
    timed: bool = False,
    provider: str = "CPUExecutionProvider",
    **options: Any,  # noqa: ANN401
) -> ort.InferenceSession:
    """Load an ONNX model, a ModelProto or a file. `folder`: folder of its external weights.

    `optimized`: whether the graph is optimized; `provider`: execution provider. `timed`: threads spin while they wait,
    as a server's do; on a busy machine that takes CPU time from others. `options`: attributes of onnxruntime's
    SessionOptions. Raises RunError.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = _FATAL_SEVERITY
    if not optimized:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not timed:
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for name, value in options.items():
        setattr(settings, name, value)
    try:
        if isinstance(model, Path):
            content: Any = os.fspath(model)
        else:
            settings.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
            content = model.SerializeToString()
        return ort.InferenceSession(content, settings, providers=[provider])
    except Exception as error:  # onnxruntime's exceptions have no common class of their own
        raise RunError(f"onnxruntime cannot load it here ({first_line(error)})") from error


def run(session: ort.InferenceSession, feed: Arrays, names: Iterable[str] | None = None) -> Arrays:
    """Run a session on those of the arrays that it takes; return its outputs by name. Raises RunError."""
    wanted = [entry.name for entry in session.get_outputs()] if names is None else list(names)
    try:
        taken = {entry.name: feed[entry.name] for entry in session.get_inputs()}
        answers = session.run(wanted, taken)
    except Exception as error:  # see `open_session`
        raise RunError(first_line(error)) from error
    for name, answer in zip(wanted, answers, strict=True):
        if not isinstance(answer, np.ndarray):
            raise RunError(f"output '{name}' is no tensor")
    return dict(zip(wanted, answers, strict=True))


def first_line(error: Exception) -> str:
    """Return the first line of an exception's text, for a one-line message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
