"""A small world that tests change as they need it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate.workload import Scenario

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 1,
    "warmup_s": 0.5,
    "duration_s": 2,
    "workers": [{"count": 2, "gpu": "A100"}],
    "models": [
        {"name": "resnet", "slo_ms": 25, "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 16}},
        {"name": "bert", "slo_ms": 60, "profile": {"alpha_ms": 4, "beta_ms": 1, "max_batch": 8}},
    ],
    "arrivals": {"rate_rps": 250},
    "policies": [{"name": "fifs"}, {"name": "fifs", "options": {"max_rows": 1}, "label": "one by one"}],
}
"""Two workers, comfortably loaded."""


def make_scenario(**changes: Any) -> Scenario:
    """Make the small world with these fields replaced."""
    return Scenario.model_validate({**SMALL, **changes})


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    """The small world as a file."""
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path
