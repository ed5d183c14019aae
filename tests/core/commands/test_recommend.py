"""`tidegate recommend`, as a person asks it."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command_line import invoke
from tidegate.observation import Recorder
from tidegate.schemas import read_profiles
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, read_scenario

BUSY: dict[str, Any] = {
    "warmup_s": 0.5,
    "duration_s": 1,
    "workers": [{"count": 2, "gpu": "T4"}],
    "models": [{"name": "m", "slo_ms": 40, "profile": {"alpha_ms": 1, "beta_ms": 12, "max_batch": 16}}],
    "arrivals": {"process": "gamma", "shape": 0.4, "rate_rps": 700},
}


def ask(*arguments: str | Path) -> tuple[int, str]:
    result = invoke("recommend", *arguments, "--jobs", "1", "--requests", "300")
    return result.exit_code, result.output


def written(folder: Path, scenario: dict[str, Any]) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario))
    return path


@pytest.mark.slow
def test_it_answers_first_in_words_and_writes_what_it_takes(tmp_path: Path) -> None:
    quick = {"name": "quick", "slo_ms": 25, "profile": {"alpha_ms": 1, "beta_ms": 4, "max_batch": 16}}
    models = [BUSY["models"][0] | {"slo_ms": 150.0, "weight": 4}, quick]
    half = {"workers": [{"count": 1, "gpu": "T4"}], "arrivals": BUSY["arrivals"] | {"rate_rps": 350}}
    scenario = written(tmp_path, BUSY | half | {"models": models, "duration_s": 2})
    files = tmp_path / "files"
    outputs: list[str | Path] = [
        "-o",
        tmp_path / "answer.json",
        "--html",
        tmp_path / "answer.html",
        "--apply",
        files,
    ]
    code, output = ask(scenario, "--policy", "eager", "--policy", "symphony", *outputs)
    assert code == 0, output
    answer = json.loads((tmp_path / "answer.json").read_text())
    (assessed,) = answer["assessed"]
    assert output.startswith(answer["words"][0])
    assert answer["verdict"] == "run"
    assert assessed["gain"]["low"] > 0
    assert assessed["candidate"]["attainment"]["mean"] > assessed["triton"]["attainment"]["mean"]
    assert [each["change"] for each in assessed["changes"]][:2] == ["10 % more load", "SLOs 10 % shorter"]
    assert assessed["triton_unmodified"]["options"] == {}
    assert "Triton's own batcher, unmodified, answers" in output
    assert "not tried: planner shares, planner paris" not in output
    assert "not tried: planner paris" in output
    assert "tidegate fit-interference" in output  # the remedy
    config = yaml.safe_load((files / "tidegate.yaml").read_text())
    assert config["policy"]["name"] == answer["run"]["policy"]
    assert config["models"] == {"m": {"slo_ms": 150.0}, "quick": {"slo_ms": 25.0}}
    (profile,) = read_profiles(files / "profiles.json").profiles_of("m", "T4", 16)
    assert profile.expected_ns(16) == 28_000_000
    tried = read_scenario(files / "scenario.yaml")
    assert tried.policies[0].name == answer["run"]["policy"]
    batching = assessed["triton"]["dynamic_batching"]
    assert set(batching) == {"m", "quick"}
    text = (files / "dynamic_batching.pbtxt").read_text()
    assert ("# m\n" in text) == (batching["m"] != batching["quick"])
    page = (tmp_path / "answer.html").read_text()
    by_model = "models" in assessed["triton"]["options"]
    assert (
        by_model
        == ("How is Triton&#x27;s own batcher tuned?" in page)
        == ("- quick: with" in (files / "README.md").read_text())
    )
    assert page.index(f"Run policy {answer['run']['policy']}") < page.index("What fraction of each model")


def test_where_nothing_is_missed_it_says_to_change_nothing_and_up_to_which_load(tmp_path: Path) -> None:
    """One GPU, one request at a time, no batches: there is nothing to gain."""
    model = {"name": "m", "slo_ms": 400, "profile": {"alpha_ms": 10, "beta_ms": 0, "max_batch": 1}}
    light = BUSY | {"models": [model], "arrivals": {"rate_rps": 30}, "workers": [{"count": 1, "gpu": "T4"}]}
    code, output = ask(written(tmp_path, light), "--policy", "fifs", "--apply", tmp_path / "files")
    assert code == 0, output
    assert output.startswith(
        "Change nothing: Triton's own batcher, unmodified, on 1xT4 answers 100.0 % of the requests"
    )
    assert "This holds up to " in output
    assert "delay" not in output
    assert {path.name for path in (tmp_path / "files").iterdir()} == {"README.md", "scenario.yaml"}


@pytest.mark.parametrize(("gpus", "fastest_ms"), [("1xT4,1xH100", None), ("2xT4", 6)])
def test_an_slo_is_impossible_by_the_gpus_that_are_offered(tmp_path: Path, gpus: str, fastest_ms: int | None) -> None:
    profiles = {gpu: {"alpha_ms": 1, "beta_ms": beta_ms, "max_batch": 1} for gpu, beta_ms in (("T4", 5), ("H100", 1))}
    light = {"models": [{"name": "m", "slo_ms": 5, "profiles": profiles}], "arrivals": {"rate_rps": 30}}
    code, output = ask(written(tmp_path, BUSY | light), "--policy", "fifs", "--gpus", gpus)
    assert code == 0, output
    said = f"The SLO of m, 5 ms, is shorter than one row takes by its profile, {fastest_ms} ms."
    assert [line for line in output.splitlines() if "shorter than" in line] == ([said] if fastest_ms else [])


@pytest.mark.slow
def test_the_cheapest_of_what_could_be_bought(tmp_path: Path) -> None:
    """The quick GPUs are twice as quick and cost four times as much."""
    profiles = {
        "slow": {"alpha_ms": 2, "beta_ms": 10, "max_batch": 8},
        "quick": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 8},
    }
    scenario = BUSY | {
        "workers": [{"count": 1, "gpu": "slow"}],
        "models": [{"name": "m", "slo_ms": 100.0, "profiles": profiles}],
        "arrivals": {"rate_rps": 500},
        "duration_s": 0.6,
        "warmup_s": 0.2,
    }
    offers = ["--any-of", "quick=4", "--any-of", "slow=1"]
    code, output = ask(written(tmp_path, scenario), *offers, "--policy", "eager", "-o", tmp_path / "answer.json")
    assert code == 0, output
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["hardware"].endswith("xslow")
    (assessed,) = answer["assessed"]
    assert answer["cost"] == assessed["least_cost"] >= 2
    (dearer,) = (each for each in answer["unfit"] if each["names"] == ["1xquick"])
    assert "99 % of every model on time" in dearer["why"] or "can be had for" in dearer["why"]


@pytest.mark.slow
def test_a_recording_is_judged_by_the_windows_that_did_not_choose(tmp_path: Path) -> None:
    served = Scenario.model_validate(BUSY | {"duration_s": 8, "warmup_s": 0})
    log = BytesIO()
    simulate(RunSpec(served, PolicyChoice(name="fifs"), seed=1), observers=[Recorder(log)])
    path = tmp_path / "run.jsonl"
    path.write_bytes(log.getvalue()[:-9])  # its Tidegate was killed
    code, output = ask(path, "--policy", "eager", "--set", "models.*.slo_ms=60", "-o", tmp_path / "answer.json")
    assert code == 0, output
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["question"]["recorded"]
    assert answer["assessed"][0]["current"]["policy"] == "fifs"
    assert answer["assessed"][0]["triton_unmodified"]["options"] == {}
    assert "current policy, fifs," in output
    (model,) = answer["scenario"]["models"]
    assert model["slo_ms"] == 60
    assert answer["scenario"]["workers"] == [{"count": 2, "gpu": "T4"}]
    assert answer["scenario"]["arrivals"]["rate_rps"] == pytest.approx(700, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "arguments", "said"),
    [
        ({"models": [{**BUSY["models"][0], "slo_ms": None}]}, [], "no model has an SLO"),
        ({}, ["--gpus", "8yT4=2"], "is not of the form 8xT4,2xA100"),
        ({}, ["--any-of", "T4=free"], "is no price"),
        ({}, ["--gpus", "2xT4", "--any-of", "T4"], "give one of the two"),
        ({}, ["--blocks", "m"], "give MODEL=FILE"),
        ({}, ["--blocks", "n=blocks.json"], "no such model; there are: m"),
        (
            {"models": [{"name": "m", "slo_ms": 40, "profiles": {"T4": BUSY["models"][0]["profile"]}}]},
            ["--gpus", "2xT40"],
            "no profile of 'm' on it; did you mean 'T4'?",
        ),
        ({}, ["--policy", "eagr"], "eager"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    changes: dict[str, Any], arguments: list[str], said: str, tmp_path: Path
) -> None:
    code, output = ask(written(tmp_path, BUSY | changes), *arguments)
    assert code == 1
    assert said in output
    assert "Traceback" not in output
