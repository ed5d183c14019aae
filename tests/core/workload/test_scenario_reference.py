"""docs/reference/scenario.md describes every field of the scenario, and its examples are scenarios."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from tidegate.workload import Scenario, distributions, partitions, profiles, scenario, simulated, workers

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs/reference/scenario.md").read_text(encoding="utf-8")
SECTIONS = [
    part
    for module in (scenario, workers, partitions, simulated, profiles, distributions)
    for part in vars(module).values()
    if isinstance(part, type) and issubclass(part, BaseModel) and part.__module__ == module.__name__
]
FIELDS = sorted({field for part in SECTIONS for field in part.model_fields})


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_described(field: str) -> None:
    assert re.search(rf"[`{{ ]{field}[`:]", REFERENCE), f"docs/reference/scenario.md does not mention {field!r}"


def test_the_example_of_the_how_to_is_a_scenario() -> None:
    text = (ROOT / "docs/how-to/simulate.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert Scenario.model_validate(yaml.safe_load(example)).duration_s == 20


MODEL = {"name": "m", "profile": {"alpha_ms": 1, "beta_ms": 1, "max_batch": 64}}
WORLD = {"duration_s": 1, "workers": [{"count": 4}], "models": [MODEL], "arrivals": {"rate_rps": 1}}


@pytest.mark.parametrize(
    "example", [text for text in re.findall(r"`(\{.*?\})`", REFERENCE) if "..." not in text and ".csv" not in text]
)
def test_every_example_of_the_reference_is_read(example: str) -> None:
    given = yaml.safe_load(example)
    match given:
        case {"law": _}:
            world = {**WORLD, "popularity": given}
        case {"process": _}:
            world = {**WORLD, "arrivals": given}
        case {"distribution": _, "cv": _} if "mean" not in given:
            world = {**WORLD, "simulation": {"jitter": given}}
        case {"distribution": _}:
            world = {**WORLD, "models": [{**MODEL, "rows": given}]}
        case {"control_ms": _}:
            world = {**WORLD, "workers": [{"count": 1, "network": given}]}
        case {"max_batch": _}:
            world = {**WORLD, "models": [{"name": "m", "profile": given}]}
        case {"batch": _}:
            world = {**WORLD, "models": [{"name": "m", "pipelines": [given]}]}
        case {"gbps": _}:
            world = {**WORLD, "network": given}
        case {"probability": _}:
            world = {**WORLD, "simulation": {"failures": given}}
        case {"at_s": _}:
            world = {**WORLD, "simulation": {"events": [given]}}
        case _:
            raise AssertionError(f"an example of nothing that is known: {example}")
    Scenario.model_validate(world)
