"""Models that Triton loads through its Python backend: data of the repository generator, never imported by Tidegate.

Each is a folder with one `model.py`, to be copied into the version folder of a model repository. That file imports
nothing of Tidegate, so the repository works where this package is not installed. `emulated_gpu` emulates the execution
time of a GPU, `onnx_runner` runs ONNX files.
"""

from pathlib import Path
from typing import Final

MODEL_NAMES: Final = ("emulated_gpu", "onnx_runner")
"""Names of the Triton models in this package."""


def model_source(name: str) -> Path:
    """Return the `model.py` of the model `name`, to be copied to `<repository>/<model>/<version>/model.py`.

    Raises ValueError, naming those that exist, for any other name.
    """
    if name not in MODEL_NAMES:
        raise ValueError(f"no model {name!r} for Triton's Python backend: there are {', '.join(MODEL_NAMES)}")
    return Path(__file__).parent / name / "model.py"
