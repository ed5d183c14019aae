"""Description of a dynamic model for the benchmark, and the search for the package that contains it."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """A model with real inputs and its SLO."""

    model: str
    """Name of the model on the servers."""
    inputs: str
    """Description of the inputs for readers."""
    slo_ms: float
    write_model: Callable[[Path], object]
    """Writes the ONNX file to a path."""
    write_inputs: Callable[[Path], object]
    """Fills an empty folder with the inputs as `tidegate compare --inputs` reads them, the same each time."""
    rows: int = 1
    """Rows of each request."""
    max_batch: int = 8
    """Maximum batch size in rows."""


def package_folder(name: str) -> Path:
    """Return the folder of an installed package without importing it. Raises ModuleNotFoundError, with its name."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return Path(spec.origin).parent
