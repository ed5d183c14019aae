"""Model repositories, written by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate_triton_models import model_source

AddModel = Callable[..., Path]


@pytest.fixture(scope="session")
def add_model() -> AddModel:
    """Write a model into a repository; returns its version folder.

    `add_model(repository, name, source, config, **parameters)`: `source` is one of ours, `config` the body of the
    config.pbtxt.
    """

    def add(repository: Path, name: str, source: str, config: str, **parameters: object) -> Path:
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_bytes(model_source(source).read_bytes())
        lines = ['backend: "python"', config]
        for key, value in parameters.items():
            text = str(value).replace('"', '\\"')
            lines.append(f'parameters {{ key: "{key}" value: {{ string_value: "{text}" }} }}')
        (version.parent / "config.pbtxt").write_text("\n".join(lines))
        return version

    return add
