"""`tidegate plan ppipe`: plan, layout, errors."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.command_line import invoke
from tests.plugins.ppipe.problems import two_classes
from tidegate.schemas import Layout, read_document, write_document
from tidegate_ppipe.plan import PpipePlan

PLANNERS = ["ppipe", "np", "dart-r"]


def plan(*arguments: object) -> Result:
    return invoke("plan", *arguments)


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    write_document(path, two_classes())
    return path


@pytest.mark.parametrize("planner", PLANNERS)
def test_plan_and_layout_are_written_and_shown(planner: str, problem: Path, tmp_path: Path) -> None:
    result = plan(planner, problem, "-o", tmp_path / "plan.json", "--layout", tmp_path / "layout.json")
    assert result.exit_code == 0, result.output
    found = read_document(tmp_path / "plan.json", PpipePlan)
    assert f"m {found.models[0].rate_rps:,.0f}/s" in result.stdout
    assert f"objective {found.objective:.6g}, gap to the best possible: " in result.stdout
    layout = read_document(tmp_path / "layout.json", Layout)
    assert layout.models[0].rate_rps == found.models[0].rate_rps
    assert "layout.json" in result.stdout


def test_a_saved_or_edited_plan_becomes_a_layout_and_is_not_searched_for_again(
    problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, layout = tmp_path / "plan.json", tmp_path / "layout.json"
    assert plan("ppipe", problem, "-o", saved, "--layout", layout).exit_code == 0
    first = read_document(layout, Layout)
    monkeypatch.setattr("tidegate_ppipe.planners.plan_ppipe", lambda *_, **__: pytest.fail("it was searched for"))
    assert plan("ppipe", problem, "--from", saved, "--layout", layout).exit_code == 0
    assert read_document(layout, Layout) == first
    document = json.loads(saved.read_text())
    part = document["models"][0]["pipelines"][0]["partitions"][0]
    part["workers"] -= 1
    saved.write_text(json.dumps(document))
    result = plan("ppipe", problem, "--from", saved, "--layout", layout)
    assert len(read_document(layout, Layout).workers) == len(first.workers) - 1, result.output
    part["gpu"] = "T4"
    saved.write_text(json.dumps(document))
    result = plan("ppipe", problem, "--from", saved, "--layout", layout)
    assert result.exit_code == 1
    assert "it has no class 'T4' of GPUs" in result.stderr


def test_a_profile_may_be_a_file(tmp_path: Path) -> None:
    given = two_classes()
    profile = tmp_path / "profile.json"
    write_document(profile, given.models[0].blocks)
    model = given.models[0].model_copy(update={"profile": str(profile)})
    write_document(tmp_path / "problem.json", given.model_copy(update={"models": (model,)}))
    result = plan("ppipe", tmp_path / "problem.json", "--json")
    assert json.loads(result.stdout)["kind"] == "ppipe_plan"
    profile.unlink()
    result = plan("ppipe", tmp_path / "problem.json")
    assert result.exit_code == 1
    assert "profile.json" in result.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"margin": 0.99, "whole_margin": 0.99}, "model 'm': its SLO of 50 ms less the margin of 99% leaves 0.5 ms"),
        ({"models": []}, "models: "),
        ({"objective": "cost"}, "models: 'm' needs a rate_rps: the objective is least cost"),
        ({"gpus": 3}, "gpus: there is no such field"),
    ],
)
def test_errors_are_one_message_and_exit_status_1(problem: Path, changes: dict[str, Any], said: str) -> None:
    problem.write_text(json.dumps({**json.loads(problem.read_text()), **changes}))
    result = plan("ppipe", problem)
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stdout == ""


def test_a_plan_that_was_altered_is_refused(problem: Path, tmp_path: Path) -> None:
    written = json.loads(plan("ppipe", problem, "--json").stdout)
    part = written["models"][0]["pipelines"][0]["partitions"][0]
    part["blocks"] = [1, part["blocks"][1]]
    (tmp_path / "plan.json").write_text(json.dumps(written))
    with pytest.raises(Exception, match=r"do not follow each other from 0"):
        read_document(tmp_path / "plan.json", PpipePlan)


def test_without_the_solver_the_extra_is_named(problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tidegate_ppipe.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    result = plan("ppipe", problem)
    assert result.exit_code == 1
    assert 'the planner needs scipy.optimize: pip install "tidegate-ppipe[planner]"' in result.stderr


def test_the_readmes_problem_has_a_plan(tmp_path: Path) -> None:
    readme = Path(__file__).parents[3] / "plugins/ppipe/README.md"
    found = re.search(r"```yaml\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    (tmp_path / "problem.yaml").write_text(found[1])
    whole = json.loads(plan("np", tmp_path / "problem.yaml", "--json").stdout)
    split = json.loads(plan("ppipe", tmp_path / "problem.yaml", "--json").stdout)
    assert whole["gpus"] == {"L4": 2, "P4": 0}
    assert split["gpus"] == {"L4": 2, "P4": 6}
    assert split["objective"] > whole["objective"]
    slow = [
        part["blocks"]
        for pipeline in split["models"][0]["pipelines"]
        for part in pipeline["partitions"]
        if part["gpu"] == "P4"
    ]
    assert all(first == 0 and end < 3 for first, end in slow)
