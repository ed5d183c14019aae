"""One Triton with the models of this folder, and the Tidegates before it whose answers are to be its own."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.examples import few
from tests.integration.triton_qa.asking import Served
from tests.integration.triton_qa.models import ENSEMBLES, write_models
from tests.proxy.fixtures.calls import call, open_stream, start_call
from tidegate_proxy.tritons.embedded import EmbeddedTriton

__all__ = ["call", "open_stream", "start_call"]

OPTIONS = [
    "--cache-config=local,size=16777216",
    "--grpc-header-forward-pattern=my-.*",
    "--http-header-forward-pattern=my-.*",
]
SLOTS = ("sums", "oldest", "named", "solo", "repeat", "square", "iterative", "flat")
SLOT_ENSEMBLES = (
    *("simple_sums", "sequence_sums", "simple_repeat", "sequence_repeat", "repeat_square", "nested_square"),
    "ensemble_flat",
)
STEPS = ("simple", "add_sub", "partial", "optional", "same", "same_int", "reshaped", "tells")
MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "default": {},
    "expanded": {
        **{name: {"scheduling": "batched"} for name in STEPS},
        **{name: {"scheduling": "expanded"} for name in ENSEMBLES if name not in SLOT_ENSEMBLES},
        **{name: {"max_concurrency": 4} for name in (*SLOTS, *SLOT_ENSEMBLES)},
    },
}
"""Settings of models, by the name of the Tidegate."""


@pytest.fixture(scope="session")
def gate_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file for which the model `queue` waits."""
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="session")
def triton(
    start_triton: Callable[..., EmbeddedTriton], gate_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> EmbeddedTriton:
    """A Triton that serves all models."""
    repository = tmp_path_factory.mktemp("models")
    write_models(repository, gate_file)
    spec = find_spec("pytriton")  # importing it takes seconds
    assert spec, "start_triton skips without it"
    caches = Path(str(spec.origin)).parent / "tritonserver" / "caches"
    return start_triton([repository], options=[*OPTIONS, f"--cache-directory={caches}"])


@pytest.fixture(scope="session")
def direct(triton: EmbeddedTriton) -> Served:
    """The Triton itself."""
    return Served(triton.grpc_address, triton.http_address)


@pytest.fixture(scope="session", params=few(["expanded", "default"]))
def through(
    request: pytest.FixtureRequest,
    triton: EmbeddedTriton,
    start_tidegate: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Served:
    """A Tidegate: with default options, and with each ensemble expanded and each model scheduled or in slots."""
    config = tmp_path_factory.mktemp("config") / "tidegate.json"
    document = {
        "tritons": [{"grpc": triton.grpc_address, "http": triton.http_address}],
        "listen": {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
        "models": MODELS[request.param],
    }
    config.write_text(json.dumps(document))
    tidegate = start_tidegate([], config=config)
    (http_address,) = (line.split()[1] for line in tidegate.output.splitlines() if line.startswith("HTTP"))
    return Served(tidegate.address, http_address)
