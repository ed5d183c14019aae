"""A scenario at several rates: what is sent, what is found, what is shown."""

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from typer.testing import Result

from tests.command_line import invoke
from tests.pages import chart, check_alone, dots, verdicts
from tidegate.sim.charts import LoadPoint
from tidegate.workload import draw_requests, read_scenario
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.rate_sweep import highest_within, parse_rates

if TYPE_CHECKING:
    from pathlib import Path

    from tests.loadtest.conftest import FakeTriton

SCENARIO = {
    "warmup_s": 0.1,
    "duration_s": 0.4,
    "workers": [{"count": 1}],
    "models": [{"name": "echo", "slo_ms": 1000, "profile": {"alpha_ms": 1, "beta_ms": 1, "max_batch": 8}}],
    "arrivals": {"process": "uniform", "rate_rps": 50},
}


def loadtest(*arguments: "str | Path | int") -> Result:
    """Run it on whatever machine, however late it sends."""
    return invoke("loadtest", *arguments, "--lateness-limit-ms", 60_000)


@pytest.fixture
def scenario(tmp_path: "Path") -> "Path":
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    return path


def test_every_rate_is_run_with_every_seed(triton: "FakeTriton", scenario: "Path", tmp_path: "Path") -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    seeds = ("--seed", 1, "--seed", 2)
    done = loadtest(scenario, "--target", triton.target, "--rates", "100,25,50", *seeds, "-o", out, "--html", page)
    assert done.exit_code == 0, done.output
    document = json.loads(out.read_text())
    rows = [row for row in document["rows"] if row["model"] == "*"]
    runs = [(rate, seed) for rate in (25, 50, 100) for seed in (1, 2)]
    assert [(row["rate_rps"], row["seed"]) for row in rows] == runs
    read = read_scenario(scenario)
    assert len(triton.requests) == sum(len(draw_requests(read, seed, rate / 50)) for rate, seed in runs)
    assert document["highest"] == [{"policy": triton.target, "highest_rps": 100}]
    (verdict,) = verdicts(page.read_text())
    assert verdict == (
        f"{triton.target} keeps 99 % of every model's requests on time at all rates, up to 100 requests/s: more was "
        "not tried."
    )
    assert verdict in done.stdout
    check_alone(page.read_text())
    drawn = dots(chart(page.read_text(), "At which load does the worst model miss too many deadlines?"))
    assert [said.rpartition(" at ")[2] for _, said in drawn] == ["25/s", "25/s", "50/s", "50/s", "100/s", "100/s"]


def test_a_server_that_fails_is_seen_to_fail(triton: "FakeTriton", scenario: "Path", tmp_path: "Path") -> None:
    failing = {**SCENARIO, "models": [{**SCENARIO["models"][0], "name": "failing"}]}  # type: ignore[index]
    scenario.write_text(yaml.safe_dump(failing))
    page = tmp_path / "out.html"
    done = loadtest(scenario, "--target", triton.target, "--rates", "50,100", "--html", page)
    assert done.exit_code == 0, done.output
    (verdict,) = verdicts(page.read_text())
    assert verdict == f"{triton.target} keeps 99 % of every model's requests on time not even at 50 requests/s."


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "-5", "inf", "nan"])
def test_rates_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(LoadTestError, match="write requests per second with commas"):
        parse_rates(text)


def test_rates_are_tried_from_the_lowest_on() -> None:
    assert parse_rates("300, 100,200.5,100") == [100, 200.5, 300]


@pytest.mark.parametrize(
    ("attained", "found"),
    [
        ({10: [1.0], 20: [0.99], 30: [0.9]}, 20),
        ({10: [0.9], 20: [1.0]}, None),  # what fails below is no promise
        ({10: [1.0, 0.5, 1.0], 20: [0.5, 0.5, 1.0]}, 10),
        ({10: [1.0], 20: [1.0]}, 20),
    ],
)
def test_the_highest_rate_is_below_the_first_that_fails(
    attained: dict[float, list[float]], found: float | None
) -> None:
    tried = [LoadPoint(rate, value, seed) for rate, values in attained.items() for seed, value in enumerate(values)]
    assert highest_within(tried, 0.01) == found


def test_many_runs_that_are_not_measured_are_counted(triton: "FakeTriton", scenario: "Path") -> None:
    sent = ("--target", triton.target, "--rates", "25,50,100", "--lateness-limit-ms", 0)
    (verdict,) = [line for line in invoke("loadtest", scenario, *sent).stdout.splitlines() if "not measured" in line]
    assert verdict.startswith(
        f"3 of 3 runs are not measured, first {triton.target}, seed 0, 25/s: not measured: the load"
    )
