"""What a dynamic model is to the benchmark, and how it is found in the wheel that carries it."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """A model, real inputs for it, and what is promised of it."""

    model: str
    """Its name on the servers."""
    inputs: str
    """What the inputs are, for people."""
    slo_ms: float
    write_model: Callable[[Path], object]
    """Writes the ONNX file at a path."""
    write_inputs: Callable[[Path], object]
    """Fills an empty folder with the inputs as `tidegate compare --inputs` takes them, always the same."""
    rows: int = 1
    """The rows of a request."""
    max_batch: int = 8
    """The largest batch, in rows."""


def package_folder(name: str) -> Path:
    """Where a package is installed; it is not imported. Raises ModuleNotFoundError, naming it, where it is not."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return Path(spec.origin).parent
