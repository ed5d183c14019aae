"""`tidegate batch-histogram` of a scenario, a recording and a running Tidegate."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.command_line import invoke
from tidegate.api import RequestArrived
from tidegate.observation import read_log
from tidegate.schemas import RequestSizes, read_document
from tidegate.workload import draw_requests, read_scenario

SCENARIO = """
duration_s: 200
workers: [{count: 4}]
arrivals: {rate_rps: 400}
models:
  - name: m
    profile: {alpha_ms: 1, beta_ms: 1, max_batch: 32}
    rows: {distribution: lognormal, mean: 6, cv: 1}
    apps:
      - {name: usual, weight: 3}
      - {name: large, weight: 1, rows: 32}
  - {name: n, profile: {alpha_ms: 1, beta_ms: 1, max_batch: 8}}
"""


def sizes(source: Path, output: Path) -> tuple[int, str]:
    result = invoke("batch-histogram", source, "-o", output)
    return result.exit_code, result.output


def test_those_of_a_scenario_are_what_it_draws(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO)
    code, output = sizes(scenario, tmp_path / "sizes.json")
    assert code == 0, output
    found = read_document(tmp_path / "sizes.json", RequestSizes).models
    drawn: dict[str, Counter[int]] = {"m": Counter(), "n": Counter()}
    for request in draw_requests(read_scenario(scenario), seed=1):
        drawn[request.model][request.rows] += 1
    assert found["n"] == {1: 1.0}
    assert sum(found["m"].values()) == pytest.approx(1)
    for rows in range(1, 33):
        share = drawn["m"][rows] / drawn["m"].total()
        assert found["m"].get(rows, 0.0) == pytest.approx(share, abs=0.01), rows


def test_those_of_a_recording_are_what_arrived(log: Path, tmp_path: Path) -> None:
    code, output = sizes(log, tmp_path / "sizes.json")
    assert code == 0, output
    with log.open("rb") as lines:
        events = [entry.event for entry in read_log(lines)[1]]
    arrived = Counter(
        (event.request.model, event.request.rows) for event in events if isinstance(event, RequestArrived)
    )
    found = read_document(tmp_path / "sizes.json", RequestSizes).models
    assert {(name, rows): count for name, mine in found.items() for rows, count in mine.items()} == arrived


def test_those_of_a_running_tidegate_are_what_it_answered(tmp_path: Path) -> None:
    page = tmp_path / "models.json"
    page.write_text(json.dumps([{"name": "m", "rows": {"1": 5, "16": 2}}, {"name": "passes", "rows": {}}]))
    code, output = sizes(page, tmp_path / "sizes.json")
    assert code == 0, output
    assert read_document(tmp_path / "sizes.json", RequestSizes).models == {"m": {1: 5, 16: 2}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"name": "m", "rows": {}}]', "no request of any model that is scheduled was answered yet"),
        ('[{"name": "m"}]', "it is no answer of /models"),
        ('[{"rows": {"1": 1}}]', "it is no answer of /models"),
        (
            '[{"name": "m", "rows": {"x": 1}}]',
            "it is no answer of /models: models.m.x: must be a whole number",
        ),
        (
            '[{"name": "m", "rows": 5}]',
            "it is no answer of /models: models.m: must be fields with values, not 5",
        ),
        ('[{"name": "m", "rows": {"1": 0}}]', "the sizes of 'm' sum to nothing"),
        ("[1,", "it is no answer of /models"),
        ("", "is empty"),
        ("name: nothing", "duration_s"),
        ('{"setup": 3}', "line 1 is no header of an event log"),
    ],
)
def test_what_tells_no_sizes_is_said(text: str, said: str, tmp_path: Path) -> None:
    source = tmp_path / "source.yaml"
    source.write_text(text)
    code, output = sizes(source, tmp_path / "sizes.json")
    assert code == 1
    assert said in output
    assert "pydantic" not in output
    assert not (tmp_path / "sizes.json").exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    code, output = sizes(tmp_path / "absent.yaml", tmp_path / "sizes.json")
    assert (code, output.strip()) == (1, f"error: {tmp_path}/absent.yaml: No such file or directory")
