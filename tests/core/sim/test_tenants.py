"""Tenants of a scenario: quotas, priorities and shares in a simulated run."""

from pathlib import Path

import pytest
import yaml

from tests.core.engine.test_priority_classes import BATCH
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, ScenarioError, read_scenario

SCENARIO = {
    "warmup_s": 0,
    "duration_s": 2,
    "workers": [{"count": 2, "gpu": "A100"}],
    "models": [
        {"name": name, "slo_ms": 100, "profile": {"alpha_ms": 2, "beta_ms": 12, "max_batch": BATCH}}
        for name in ("ocr", "embed")
    ],
    "arrivals": {"rate_rps": 900},
    "policies": [{"name": "symphony"}],
    "tenants": [
        {"name": "live", "models": ["ocr"], "clients": 20},
        {"name": "batch", "models": ["embed"], "priority": 2},
        {"name": "limited", "models": ["embed"], "priority": 2, "requests_per_s": 50},
    ],
}


def test_each_tenant_gets_what_it_is_promised(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(yaml.safe_dump(SCENARIO))
    result = simulate(RunSpec(read_scenario(file), PolicyChoice(name="symphony"), seed=1))
    live, batch, limited = result.tenants
    assert live.attainment > 0.99
    assert batch.attainment < 0.9
    assert batch.worker_fraction is not None
    assert limited.worker_fraction is not None
    assert batch.worker_fraction + limited.worker_fraction > 0.05
    assert batch.offered_rps == batch.requests / 2
    assert limited.requests - limited.rate_limited == pytest.approx(100, rel=0.06), "two seconds, and a burst"
    assert result.total.dropped["rate_limited"] == limited.rate_limited
    assert result.total.stranded == 0


def test_what_is_wrong_with_tenants_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    for change, words in (
        ({"tenants": [{"name": "a", "models": ["orc"]}]}, "tenants.0.models: 'orc' is no model of this scenario"),
        ({"tenants": [{"name": "a"}, {"name": "a"}]}, "'a' is listed twice"),
        ({"tenants": [{"name": "a", "weight": -1}]}, "tenants.0.weight"),
        ({"tenants": [{"name": "a", "requests_per_s": 0}]}, "tenants.0.requests_per_s"),
        ({"priority_floors": {2: 0.6, 3: 0.6}}, "they add up to 1.2"),
    ):
        file.write_text(yaml.safe_dump(SCENARIO | change))
        with pytest.raises(ScenarioError, match=words.replace("(", ".")):
            read_scenario(file)
