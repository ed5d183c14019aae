"""`tidegate simulate`, `goodput` and `sweep`: their files, their errors, and the same bytes in every process."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import invoke

SCENARIO = """
version: 1
seed: 3
warmup_s: 0.5
duration_s: 2
workers: [{count: 2, gpu: A100, per_gpu: 2}]
models:
  - {name: resnet, slo_ms: 25, profile: {alpha_ms: 1, beta_ms: 5, max_batch: 16}}
  - name: bert
    slo_ms: 60
    profile: {alpha_ms: 4, beta_ms: 1, max_batch: 8}
    apps:
      - {name: chat, weight: 3, time_ms: {distribution: lognormal, mean: 2, cv: 1}}
      - {name: batch, rows: {distribution: table, values: [1, 4]}}
arrivals: {process: gamma, rate_rps: 150, shape: 0.5}
policies: [{name: fifs}, {name: symphony}]
simulation:
  jitter: {cv: 0.1}
  interference: 1.2
  failures: {probability: 0.02}
  events: [{at_s: 0.5, lost: 1}, {at_s: 1, joined: 1}]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_simulate_writes_a_row_for_every_policy_seed_and_model(scenario: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    result = invoke("simulate", scenario, "--policy", "fifs", "--seed", 3, "--seed", 4, "-o", out, "--html", page)
    assert result.exit_code == 0, result.output
    assert "scenario: 2 models, 2 workers, 150 requests/s, 2 s" in result.stdout
    document = read(out)
    assert (document["version"], document["command"]) == (1, "simulate")
    assert [(row["policy"], row["seed"], row["model"]) for row in document["rows"]] == [
        ("fifs", seed, model) for seed in (3, 4) for model in ("*", "resnet", "bert")
    ]
    assert str(tmp_path) not in out.read_text(), "results name no folder of this machine"
    assert "What ran where at the start of the window under fifs, seed 3?" in page.read_text()
    assert f"Tidegate</dt><dd>{metadata.version('tidegate')}</dd>" in page.read_text()


def test_the_scenario_in_the_results_can_be_run_again(scenario: Path, tmp_path: Path) -> None:
    first, again, copy = tmp_path / "first.json", tmp_path / "again.json", tmp_path / "copy.yaml"
    invoke("simulate", scenario, "--policy", "fifs", "-o", first)
    copy.write_text(json.dumps(read(first)["scenario"]))
    printed = invoke("simulate", copy, "--policy", "fifs", "-o", again, "--json")
    assert printed.exit_code == 0
    assert first.read_bytes() == again.read_bytes()
    assert printed.stdout == first.read_text(), "no table, no notice"


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_in_every_process(scenario: Path, tmp_path: Path) -> None:
    written = []
    for hash_seed in ("1", "2"):
        out = tmp_path / f"out{hash_seed}.json"
        program = "from tidegate.cli import main; main()"
        subprocess.run(
            [sys.executable, "-c", program, "simulate", str(scenario), "-o", str(out), "--jobs", hash_seed],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            timeout=120,
        )
        written.append(out.read_bytes())
    assert written[0] == written[1]
    assert len(json.loads(written[0])["rows"]) == 6


def test_goodput_reports_the_spread_over_the_seeds(scenario: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    arguments = ("--policy", "fifs", "--seed", 1, "--seed", 2, "--limit", 0.1, "--tolerance", 0.1, "--jobs", 1)
    result = invoke("goodput", scenario, *arguments, "-o", out, "--html", page)
    assert result.exit_code == 0, result.output
    assert read(out)["tolerance"] == 0.1
    (found,) = read(out)["goodput"]
    rates = [search["rate_rps"] for search in found["searches"]]
    assert (found["min_rps"], found["max_rps"]) == (min(rates), max(rates))
    assert f"{found['median_rps']:,.0f}" in result.stdout
    assert "\nfifs carries " in result.stdout
    assert page.exists()


def test_goodput_can_change_the_scenario(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ("--policy", "fifs", "--seed", 1, "--limit", 0.1, "--tolerance", 0.1, "--jobs", 1, "-o", out)
    assert invoke("goodput", scenario, *arguments, "--set", "workers.0.network={control_ms: 100}").exit_code == 0
    document = read(out)
    assert document["scenario"]["workers"][0]["network"] == {"control_ms": 100}
    assert document["goodput"][0]["median_rps"] == 0, "nobody answers within 60 ms"


def test_sweep_says_in_each_row_what_was_changed(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    grid = ("--set", "arrivals.rate_rps=50,100", "--set", "models.*.slo_ms=30")
    result = invoke("sweep", scenario, *grid, "--policy", "fifs", "-o", out, "--jobs", 1)
    assert result.exit_code == 0, result.output
    totals = [row for row in read(out)["rows"] if row["model"] == "*"]
    assert [row["set"] for row in totals] == [{"arrivals.rate_rps": rate, "models.*.slo_ms": 30} for rate in (50, 100)]
    assert [row["rate_rps"] for row in totals] == [50, 100]
    assert totals[0]["busy_share"] < totals[1]["busy_share"]
    assert f"{totals[1]['busy_share']:.0%}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", "absent.yaml"], "absent.yaml: No such file"),
        (["simulate", "{}", "--policy", "oracle"], "no policy named 'oracle' is installed"),
        (["goodput", "{}", "--policy", "oracle"], "no policy named 'oracle' is installed"),
        (["sweep", "{}", "--set", "seed"], "--set 'seed': give PATH=V1,V2"),
        (["sweep", "{}", "--set", "models.9.slo_ms=1"], "cannot set 'models.9.slo_ms'"),
    ],
)
def test_errors_are_one_line_for_people(scenario: Path, arguments: list[str], message: str) -> None:
    result = invoke(*(str(scenario) if argument == "{}" else argument for argument in arguments))
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("module", ["yaml", "numpy", "joblib"])
def test_without_the_extra_the_remedy_is_named(scenario: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    if module == "numpy":
        for loaded in [name for name in sys.modules if name.startswith("tidegate.sim.")]:
            monkeypatch.delitem(sys.modules, loaded)
    result = invoke("simulate", scenario, "--html", scenario.with_suffix(".html"))
    assert result.exit_code == 1
    assert f"the simulator needs {module}" in result.stderr
    assert 'pip install "tidegate[sim]"' in result.stderr


IDLE = """
duration_s: 30
warmup_s: 0
workers: [{count: 3, gpu: A100}]
models: [{name: m, slo_ms: 50, profile: {alpha_ms: 1, beta_ms: 5, max_batch: 8}}]
arrivals: {rate_rps: 20}
policies: [{name: symphony, options: {advice_every_s: 5}}]
controller: {name: advised-workers, interval_s: 10, dry_run: true, options: {least_workers: 2}}
"""


def test_simulate_says_what_a_controller_does_or_would_do(tmp_path: Path) -> None:
    path, out, page = (tmp_path / name for name in ("idle.yaml", "out.json", "page.html"))
    path.write_text(IDLE)
    dry = invoke("simulate", path, "-o", out)
    assert dry.exit_code == 0, dry.output
    assert "symphony(advice_every_s=5), seed 0:    10.000 s: change 1 proposed (would stop node0/A100-2)" in dry.stdout
    (change,) = read(out)["changes"]
    assert (change["state"], change["stops"], change["gpus"]) == ("proposed", ["node0/A100-2"], 3)

    path.write_text(IDLE.replace("dry_run: true", "dry_run: false"))
    wet = invoke("simulate", path, "-o", out, "--html", page)
    assert "10.000 s: change 1 switched (stop node0/A100-2)" in wet.stdout
    assert [its["state"] for its in read(out)["changes"]] == ["starting", "switched", "done"]
    row = next(row for row in read(out)["rows"] if row["model"] == "*")
    assert row["mean_workers"] == row["mean_gpus"] == pytest.approx(3 - 20 / 30, abs=1e-6)
    assert "Changes of the layout" in page.read_text()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("name: nobody", "no controller named 'nobody' is installed; installed: advised-workers, "),
        ("name: advised-workers, options: {fewest: 1}", "options of controller 'advised-workers': fewest: "),
        ("name: ppipe-replanning", "options of controller 'ppipe-replanning': problem: "),
        ("name: advised-workers, interval_s: 0", "controller.interval_s"),
    ],
)
def test_a_controller_that_cannot_be_used_is_said_in_a_line(tmp_path: Path, given: str, words: str) -> None:
    path = tmp_path / "idle.yaml"
    path.write_text("\n".join([*IDLE.splitlines()[:-1], f"controller: {{{given}}}"]))
    result = invoke("simulate", path)
    assert result.exit_code == 1
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_table_in_a_file_is_as_wide_as_what_is_in_it(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody looks at is neither wrapped nor cut, whatever COLUMNS says."""
    monkeypatch.setenv("COLUMNS", "80")
    label = "the policy whose name is as long as it has to be, " * 5
    scenario.write_text(SCENARIO.replace("{name: fifs}", f"{{name: fifs, label: {label!r}}}"))
    result = invoke("simulate", scenario, "--policy", label, "--jobs", 1)
    assert result.exit_code == 0, result.output
    (row,) = (line for line in result.stdout.splitlines() if line.startswith("│"))
    assert label.strip() in row
    assert "%" in row
    assert "…" not in result.stdout
