"""Fixtures that several test folders share."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate_proxy.embedded import EmbeddedTriton
from tidegate_proxy.embedded.install import SUPPORTED

StartTriton = Callable[..., EmbeddedTriton]


@pytest.fixture(scope="session")
def start_triton() -> Iterator[StartTriton]:
    """Start a real tritonserver, which the end of the session stops.

    `start_triton([repository, ...], **options)`: the options are those of EmbeddedTriton.
    """
    if sys.version_info[:2] not in SUPPORTED or importlib.util.find_spec("pytriton") is None:
        pytest.skip("needs nvidia-pytriton on CPython 3.11 or 3.12")
    servers: list[EmbeddedTriton] = []

    def start(repositories: list[Path], **options: Any) -> EmbeddedTriton:  # noqa: ANN401
        server = EmbeddedTriton(repositories, **{"grace_s": 0, "timeout_s": 60, **options})
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.stop()
