"""Dynamic models: real models whose latency depends on the input, under Triton's dynamic batcher and under Tidegate.

    python -m bench.dynamic_models [--model NAME ...] [--loads 0.3 0.5 ...] [--rounds N] [--json FILE]

`ocr`, `detector` and `file_types` each describe a model and its inputs (`case`); `baselines` has the contenders that
serve it. Unpadded text lines, for a Tidegate that pads them, are measured only on request: `--model text_lines
--tidegate padded=bench/dynamic_models/padded_lines.yaml`. Each contender has its own tritonserver with one instance of
the model; only one contender has load at a time. Keep the machine otherwise idle: generator, Tidegate and tritonserver
share it.
"""

from importlib import import_module

from bench.dynamic_models.case import Case

MODULES = {
    "text_recognition": "ocr",
    "text_direction": "ocr",
    "text_detection": "detector",
    "file_types": "file_types",
}
"""Module that describes each model."""
ON_REQUEST = {"text_lines": "ocr"}
"""Models measured only if named on the command line, with their modules."""
OURS = ("bench", "demo", "tidegate")


class NotInstalledError(Exception):
    """A package that a model needs is not installed; the message has its name and the remedy."""


def find_case(model: str) -> Case:
    """Return the case of a model. Raises NotInstalledError if a package that it needs is missing."""
    try:
        module = import_module(f"{__name__}.{(MODULES | ON_REQUEST)[model]}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(OURS):
            raise
        remedy = "`make install`, or pip install what requirements-dev.txt names"
        raise NotInstalledError(f"{model}: the package {error.name} is not installed: {remedy}") from error
    cases: dict[str, Case] = {case.model: case for case in module.CASES}
    return cases[model]
