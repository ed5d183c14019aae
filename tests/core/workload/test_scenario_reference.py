"""docs/reference/scenario.md describes every field of the scenario, and its examples are scenarios."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tidegate.workload import Scenario, distributions, partitions, scenario, simulated, workers

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs/reference/scenario.md").read_text(encoding="utf-8")
SECTIONS = [
    part
    for module in (scenario, workers, partitions, simulated, distributions)
    for part in vars(module).values()
    if isinstance(part, type) and issubclass(part, BaseModel) and part.__module__ == module.__name__
]
FIELDS = sorted({field for part in SECTIONS for field in part.model_fields})


def test_every_field_is_described() -> None:
    assert [field for field in FIELDS if not re.search(rf"[`{{ ]{field}[`:]", REFERENCE)] == []


def test_the_example_of_the_how_to_is_a_scenario() -> None:
    text = (ROOT / "docs/how-to/simulate.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert Scenario.model_validate(yaml.safe_load(example)).duration_s == 20


MODEL = {"name": "m", "profile": {"alpha_ms": 1, "beta_ms": 1, "max_batch": 64}}
WORLD = {"duration_s": 1, "workers": [{"count": 4}], "models": [MODEL], "arrivals": {"rate_rps": 1}}


EXAMPLE = object()
PLACES: list[tuple[set[str], dict[str, Any]]] = [
    ({"law"}, {"popularity": EXAMPLE}),
    ({"process"}, {"arrivals": EXAMPLE}),
    ({"distribution"}, {"models": [{**MODEL, "rows": EXAMPLE}]}),
    ({"control_ms"}, {"workers": [{"count": 1, "network": EXAMPLE}]}),
    ({"max_batch"}, {"models": [{"name": "m", "profile": EXAMPLE}]}),
    ({"batch"}, {"models": [{"name": "m", "pipelines": [EXAMPLE]}]}),
    ({"gbps"}, {"network": EXAMPLE}),
    ({"shape"}, {"models": [{**MODEL, "shapes": [EXAMPLE]}]}),
    ({"probability", "factor"}, {"simulation": {"stalls": EXAMPLE}}),
    ({"probability"}, {"simulation": {"failures": EXAMPLE}}),
    ({"time_s", "fails"}, {"simulation": {"startup": EXAMPLE}}),
    ({"at_s"}, {"simulation": {"events": [EXAMPLE]}}),
]
"""By the fields that tell it, where an example of the reference stands in a scenario."""


@pytest.mark.parametrize(
    "example", [text for text in re.findall(r"`(\{.*?\})`", REFERENCE) if "..." not in text and ".csv" not in text]
)
def test_every_example_of_the_reference_is_read(example: str) -> None:
    given = yaml.safe_load(example)
    place = next((place for keys, place in PLACES if keys <= given.keys()), None)
    assert place is not None, f"an example of nothing that is known: {example}"
    if given.get("distribution") and not {"mean", "values", "value"} & given.keys():
        place = {"simulation": {"jitter": EXAMPLE}}
    Scenario.model_validate({**WORLD, **_filled(place, given)})


def _filled(place: Any, given: object) -> Any:
    """The place with the example put where it belongs."""
    match place:
        case dict():
            return {key: _filled(value, given) for key, value in place.items()}
        case list():
            return [_filled(value, given) for value in place]
        case _:
            return given if place is EXAMPLE else place
