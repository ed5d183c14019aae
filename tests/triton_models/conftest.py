"""Model repositories, written by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.python_models import write_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton, TritonStartError
from tidegate_triton_models import model_source

LoadErrors = Callable[[Path], dict[str, str]]


def add_model(repository: Path, name: str, source: str, config: str, **parameters: object) -> Path:
    """Write a model into a repository; returns its version folder.

    `source` is one of ours, `config` the body of the config.pbtxt.
    """
    lines = ['backend: "python"', config]
    for key, value in parameters.items():
        text = str(value).replace('"', '\\"')
        lines.append(f'parameters {{ key: "{key}" value: {{ string_value: "{text}" }} }}')
    return write_model(repository, name, model_source(source).read_text(), "\n".join(lines))


@pytest.fixture
def load_errors(start_triton: Callable[..., EmbeddedTriton]) -> LoadErrors:
    """Start a Triton that cannot start; returns why, by the name of each model that does not load.

    A Triton that has models that fail now and then aborts and says nothing; it is started anew then.
    """

    def errors(repository: Path) -> dict[str, str]:
        reasons: dict[str, str] = {}
        for _ in range(3):
            with pytest.raises(TritonStartError) as raised:
                start_triton([repository])
            lines = (line.strip() for line in str(raised.value).splitlines())
            reasons = {line.split("'")[1]: line for line in lines if line.startswith("model '")}
            if reasons.keys() >= {folder.name for folder in repository.iterdir()}:
                break
        return reasons

    return errors
