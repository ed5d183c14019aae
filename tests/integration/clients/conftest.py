"""A Triton with a model, and Tidegates in front of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.python_models import ECHO, write_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton

CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
"""


@dataclass(frozen=True)
class Frontend:
    """Where a Tidegate is."""

    grpc_address: str
    http_address: str


@pytest.fixture(scope="module")
def echo_triton(
    start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory
) -> EmbeddedTriton:
    """It serves `echo`, from X to Y."""
    version = write_model(tmp_path_factory.mktemp("models"), "echo", ECHO, CONFIG)
    return start_triton([version.parents[1]])


@pytest.fixture(scope="module")
def start_frontend(
    start_tidegate: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Frontend]:
    """`start_frontend(triton)`: a Tidegate that serves gRPC and HTTP."""

    def start(triton: EmbeddedTriton) -> Frontend:
        config = tmp_path_factory.mktemp("config") / "tidegate.yaml"
        config.write_text(
            f"tritons: [{{grpc: '{triton.grpc_address}', http: '{triton.http_address}'}}]\npolicy: fifs\n"
        )
        tidegate = start_tidegate([], config=config, listen_http="127.0.0.1:0")
        (http,) = (line.split()[1] for line in tidegate.output.splitlines() if line.startswith("HTTP"))
        return Frontend(tidegate.address, http)

    return start
