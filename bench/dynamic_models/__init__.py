"""Real models whose time depends on their input: Triton's own dynamic batcher beside Tidegate, on real inputs.

    python -m bench.dynamic_models [--model NAME ...] [--loads 0.3 0.5 ...] [--rounds N] [--json FILE] [--pages FOLDER]

`ocr`, `detector`, `file_types` and `digits` each say what a model is and what its inputs are (`case`);
`baselines` are the ways to serve it; `measuring` has one caller ask, one request at a time; `loads` sends Poisson
arrivals to all of them in turn. Text lines as wide as they are, for a Tidegate that pads them, are only measured where
they are named: `--model text_lines --tidegate padded=bench/dynamic_models/padded_lines.yaml`. Each contender has a
tritonserver of its own with one instance of the model; only one contender has load at a time. Nothing else should run
meanwhile: generator, Tidegate and tritonserver share the machine.
"""

from importlib import import_module

from bench.dynamic_models.case import Case

MODULES = {
    "text_recognition": "ocr",
    "text_direction": "ocr",
    "text_detection": "detector",
    "file_types": "file_types",
    "digits": "digits",
}
"""Where each model is described."""
ON_REQUEST = {"text_lines": "ocr"}
"""Those that are only measured where they are named."""
OURS = ("bench", "demo", "tidegate")


class NotInstalledError(Exception):
    """A package that a model needs is missing; the message says which, and the remedy."""


def find_case(model: str) -> Case:
    """A model by its name. Raises NotInstalledError where a package is missing that it needs."""
    try:
        module = import_module(f"{__name__}.{(MODULES | ON_REQUEST)[model]}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(OURS):
            raise
        remedy = "`make install`, or pip install what requirements-dev.txt names"
        raise NotInstalledError(f"{model}: the package {error.name} is not installed: {remedy}") from error
    cases: dict[str, Case] = {case.model: case for case in module.CASES}
    return cases[model]
