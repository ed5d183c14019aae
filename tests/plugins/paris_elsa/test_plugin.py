"""`tidegate plan` with the planners of slices: plan, layout, errors, and what the README shows."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from tests.command_line import invoke
from tests.plugins.paris_elsa.problems import problem
from tidegate.schemas import Layout, Mig, RequestSizes, read_document, write_document
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, read_scenario, sizes_of
from tidegate_paris_elsa.change_plan import Reconfiguration
from tidegate_paris_elsa.plan import MigPlan

README = (Path(__file__).parents[3] / "plugins/paris_elsa/README.md").read_text(encoding="utf-8")
SCENARIOS = Path(__file__).parents[3] / "scenarios"


def plan(*arguments: object) -> Result:
    return invoke("plan", *arguments)


@pytest.fixture
def shown(tmp_path: Path) -> dict[str, Any]:
    """The problem that the README shows, in a file beside it."""
    text = next(block for block in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "mig_problem" in block)
    (tmp_path / "problem.yaml").write_text(text)
    given = yaml.safe_load(text)
    assert isinstance(given, dict)
    return given


def laid_out(tmp_path: Path, planner: str, given: dict[str, Any], name: str = "layout") -> Path:
    (tmp_path / f"{name}-problem.json").write_text(json.dumps(given))
    result = plan(planner, tmp_path / f"{name}-problem.json", "--layout", tmp_path / f"{name}.json")
    assert result.exit_code == 0, result.output
    return tmp_path / f"{name}.json"


@pytest.mark.parametrize("planner", ["paris", "homogeneous", "homogeneous-max", "heterogeneous-random"])
def test_the_readmes_problem_has_plans(planner: str, shown: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "problem.json").write_text(json.dumps({**shown, "size": 3}))
    saved, layout = tmp_path / "plan.json", tmp_path / "layout.json"
    result = plan(planner, tmp_path / "problem.json", "-o", saved, "--layout", layout)
    assert result.exit_code == 0, result.output
    found = read_document(saved, MigPlan)
    assert found.gpcs == 24
    assert f"resnet50 {found.models[0].rate_rps:,.0f}/s; 24 GPCs in" in result.stdout
    first = read_document(layout, Layout)
    assert sum(int(worker.slice.profile[0]) for worker in first.workers if isinstance(worker.slice, Mig)) == 24
    again = plan(planner, tmp_path / "problem.json", "--from", saved, "--layout", layout)
    assert again.exit_code == 0, again.output
    assert read_document(layout, Layout) == first


def test_a_plan_says_how_its_segments_were_found(shown: dict[str, Any], tmp_path: Path) -> None:
    assert shown["models"][0]["name"] == "resnet50"
    result = plan("paris", tmp_path / "problem.yaml")
    assert "by slo" in result.stdout
    (tmp_path / "problem.json").write_text(json.dumps({**shown, "segments": "knees"}))
    result = plan("paris", tmp_path / "problem.json")
    assert "1 by utilization" in result.stdout
    assert "by latency" in result.stdout


def test_sizes_and_profiles_may_be_files(tmp_path: Path) -> None:
    given = problem().model_dump(mode="json")
    write_document(tmp_path / "sizes.json", RequestSizes(models={"m": {1: 5.0, 8: 1.0}}))
    points = [{"rows": rows, "median_ms": 2.0 + rows, "p95_ms": 3.0 + rows, "samples": 9} for rows in (1, 8)]
    kinds = [f"A100-40GB/{name}" for name in ("1g.5gb", "7g.40gb")]
    listed = [
        {"model": "m", "device_class": kind, "alpha_ms": 1, "beta_ms": 2, "points": points} for kind in [*kinds, "T4"]
    ]
    (tmp_path / "profiles.json").write_text(json.dumps({"version": 1, "profiles": listed}))
    files = {"sizes": str(tmp_path / "sizes.json"), "profiles": str(tmp_path / "profiles.json")}
    layout = laid_out(tmp_path, "paris", {**given, "models": [{"name": "m", **files}]})
    (part,) = read_document(layout, Layout).partitions
    assert set(part.latency_ms) <= set(kinds)
    assert len(next(iter(part.latency_ms.values()))) == 8
    write_document(tmp_path / "sizes.json", RequestSizes(models={"other": {1: 5.0}}))
    (tmp_path / "problem.json").write_text(json.dumps({**given, "models": [{"name": "m", **files}]}))
    result = plan("paris", tmp_path / "problem.json")
    assert "knows nothing of model 'm', but of other" in result.stderr


def test_a_model_of_which_only_shapes_were_measured_is_as_slow_as_in_the_slowest(tmp_path: Path) -> None:
    given = problem().model_dump(mode="json")
    kind = "A100-40GB/7g.40gb"

    def listed(shape: str, *medians: tuple[int, float]) -> dict[str, Any]:
        points = [{"rows": rows, "median_ms": ms, "p95_ms": 2 * ms, "samples": 9} for rows, ms in medians]
        return {"model": "m", "device_class": kind, "shape": shape, "alpha_ms": 1, "beta_ms": 2, "points": points}

    shapes = [listed("x:8", (4, 9.0), (1, 3.0)), listed("x:16", (1, 2.0), (2, 4.0), (4, 12.0))]
    (tmp_path / "profiles.json").write_text(json.dumps({"version": 1, "profiles": shapes}))
    m = {"name": "m", "sizes": {"1": 1, "4": 1}, "profiles": str(tmp_path / "profiles.json")}
    layout = laid_out(tmp_path, "paris", {**given, "models": [m]})
    assert read_document(layout, Layout).partitions[0].latency_ms == {kind: (3.0, 6.0, 9.0, 12.0)}


def test_an_edited_plan_that_no_gpu_can_have_is_refused(shown: dict[str, Any], tmp_path: Path) -> None:
    assert shown
    saved = tmp_path / "plan.json"
    assert plan("paris", tmp_path / "problem.yaml", "-o", saved).exit_code == 0
    document = json.loads(saved.read_text())
    for change, said in (
        ({"profile": "3g.20gb", "start": 2, "model": "resnet50"}, "3g.20gb begins at memory slice 0, 4, not at 2"),
        ({"profile": "1g.5gb", "start": 0, "model": "other"}, "it has no model 'other'"),
        ({"profile": "1g.10gb", "start": 0, "model": "resnet50"}, "does not say how fast it is on A100-40GB/1g.10gb"),
    ):
        edited = {**document, "gpus": [{**document["gpus"][0], "slices": [change]}, *document["gpus"][1:]]}
        saved.write_text(json.dumps(edited))
        result = plan("paris", tmp_path / "problem.yaml", "--from", saved, "--layout", tmp_path / "layout.json")
        assert result.exit_code == 1
        assert said in result.stderr
        assert not (tmp_path / "layout.json").exists()


def test_a_layout_is_simulated(shown: dict[str, Any], tmp_path: Path) -> None:
    laid_out(tmp_path, "paris", shown)
    rows = {"distribution": "table", "values": [1, 4, 16], "weights": [6, 3, 1]}
    scenario = {
        "layout": "layout.json",
        "duration_s": 2,
        "arrivals": {"rate_rps": 200},
        "models": [{"name": "resnet50", "rows": rows}],
    }
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    result = simulate(RunSpec(read_scenario(tmp_path / "scenario.json"), PolicyChoice(name="elsa"), seed=1))
    assert result.total.accepted > 300
    assert result.total.attainment > 0.95


def test_a_change_is_planned_and_laid_out(shown: dict[str, Any], tmp_path: Path) -> None:
    laid_out(tmp_path, "homogeneous", {**shown, "size": 7, "gpcs": 28}, "layout")
    planned = laid_out(tmp_path, "paris", shown, "tomorrow")
    text = next(block for block in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "reconfiguration" in block)
    change = yaml.safe_load(text)
    for field in ("present", "planned"):
        change[field] = str(tmp_path / change[field])
    (tmp_path / "change.json").write_text(json.dumps(change))
    result = plan(
        "reconfigure", tmp_path / "change.json", "-o", tmp_path / "steps.json", "--layout", tmp_path / "new.json"
    )
    assert result.exit_code == 0, result.output
    steps = read_document(tmp_path / "steps.json", Reconfiguration)
    assert steps.cost.kept >= 0.5 - 1e-9
    new, wanted = read_document(tmp_path / "new.json", Layout), read_document(planned, Layout)
    assert sorted(worker.speed for worker in new.workers) == sorted(worker.speed for worker in wanted.workers)
    assert "worth" in result.stdout


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"gpus": [{"product": "A100", "count": 1}]},
            "'A100' may be A100-40GB or A100-80GB: say which, or give memory",
        ),
        ({"gpus": [{"product": "T4", "count": 1}]}, "the MIG geometry of 'T4' is not known; known are A30-24GB, A100"),
        ({"gpcs": 99}, "no legal layout of 4 A100-40GB spends 99 GPCs"),
        ({"models": [{"name": "m", "sizes": {"1": 0}, "profiles": []}]}, "sizes: those of 'm' sum to nothing"),
        ({"models": [{"name": "m", "sizes": {"1": 1}, "profiles": []}]}, "was not measured on any slice of these GPUs"),
        ({"size": 5}, "size: "),
    ],
)
def test_errors_are_one_message_and_exit_status_1(
    changes: dict[str, Any], said: str, shown: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "problem.json").write_text(json.dumps({**shown, **changes}))
    result = plan("paris", tmp_path / "problem.json", "-o", tmp_path / "plan.json")
    assert result.exit_code == 1
    assert said in result.stderr
    assert not (tmp_path / "plan.json").exists()


def test_without_the_solver_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_document(tmp_path / "problem.json", problem())
    for name in [name for name in sys.modules if name.startswith("tidegate_paris_elsa.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    result = plan("paris", tmp_path / "problem.json")
    assert result.exit_code == 1
    assert 'the planner needs scipy.optimize: pip install "tidegate-paris-elsa[planner]"' in result.stderr


def test_the_example_scenario_has_the_layout_of_the_readmes_problem_and_elsa_is_best(
    shown: dict[str, Any], tmp_path: Path
) -> None:
    example = SCENARIOS / "sliced_a100.yaml"
    planned = read_document(laid_out(tmp_path, "paris", shown), Layout)
    assert read_document(SCENARIOS / "sliced_a100_layout.json", Layout) == planned
    scenario = read_scenario(example)
    assert sizes_of(scenario)["resnet50"] == {rows: share / 100 for rows, share in shown["models"][0]["sizes"].items()}
    shorter = scenario.model_copy(update={"duration_s": 8.0})
    elsa, fifs = (simulate(RunSpec(shorter, scenario.policies[number], seed=1)) for number in (0, 2))
    assert elsa.total.bad_rate < 0.01 < fifs.total.bad_rate
