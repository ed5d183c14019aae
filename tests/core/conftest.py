"""What several rooms of the core are tried with."""

import random
from pathlib import Path

import pytest

from tidegate.host import Plugins
from tidegate.observation import Recorder
from tidegate.testing import random_world, run_world

WORLD = 1  # one with a few dozen requests


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The recording of a run of symphony."""
    path = tmp_path / "run.jsonl"
    with path.open("wb") as out:
        symphony = Plugins.installed().policy("symphony")
        run_world(symphony, random_world(random.Random(WORLD)), recorder=Recorder(out))
    return path
