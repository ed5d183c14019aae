"""`tidegate plan`: its table, its files, its errors."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rich.progress
import yaml
from rich.console import Console
from typer.testing import Result

from tests.command_line import invoke
from tests.conftest import eventually
from tidegate.api import Plan, PlannerSpec, PlanningError, Progress, VersionedDocument
from tidegate.api.late_import import imported_late
from tidegate.commands.common import print_table
from tidegate.commands.plan import _columns, run_under_bar
from tidegate.host import Plugins
from tidegate_symphony.subclusters_plan import SubclusterPlan

PROBLEM = {
    "subclusters": 2,
    "max_rate_rps": 200,
    "max_memory_mib": 1000,
    "models": [
        {"name": "resnet", "rate_rps": 100, "static_mib": 98},
        {"name": "bert", "rate_rps": 60, "static_mib": 420, "dynamic_mib": 100},
        {"name": "vgg", "rate_rps": 40, "static_mib": 528},
    ],
}


def plan(*arguments: object) -> Result:
    return invoke("plan", *arguments)


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.yaml"
    path.write_text(yaml.safe_dump(PROBLEM))
    return path


def test_the_plan_is_shown_and_written(problem: Path, tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    result = plan("subclusters", problem, "-o", output, "--time-limit-s", 5)
    assert result.exit_code == 0, result.output
    assert "sub-cluster" in result.stdout
    assert "gap to the best possible: none" in result.stdout
    written = json.loads(output.read_text())
    assert set(written["assignment"]) == {"resnet", "bert", "vgg"}
    assert written["assignment"]["resnet"] == written["assignment"]["vgg"] != written["assignment"]["bert"]


def test_json_prints_the_plan_and_nothing_else(problem: Path) -> None:
    result = plan("subclusters-random", problem, "--time-limit-s", 0.2, "--json")
    assert json.loads(result.stdout)["bound"] is None


def test_a_plan_is_the_previous_one_of_the_next_problem(problem: Path, tmp_path: Path) -> None:
    previous = json.loads(plan("subclusters", problem, "--json").stdout)["assignment"]
    again = tmp_path / "again.json"
    again.write_text(json.dumps({**PROBLEM, "previous": previous, "max_move_cost": 0}))
    result = json.loads(plan("subclusters", again, "--json").stdout)
    assert result["assignment"] == previous
    assert result["move_cost"] == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_rate_rps": 90}, "max_rate_rps 90 is too little, 140 would do"),
        ({"subclusters": 0}, "subclusters: must be at least 1"),
        ({"max_move_cost": 3}, "max_move_cost: it bounds the change from `previous`, which is missing"),
        ({"models": PROBLEM["models"][:1] * 2}, "'resnet' is listed twice"),  # type: ignore[index]
    ],
)
def test_errors_are_one_message_and_exit_status_1(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**PROBLEM, **changes}))
    result = plan("subclusters", path)
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stdout == ""


def test_the_readmes_problem_has_a_plan(tmp_path: Path) -> None:
    readme = Path(__file__).parents[3] / "plugins/symphony/README.md"
    found = re.search(r"```yaml\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    (tmp_path / "problem.yaml").write_text(found[1])
    result = plan("subclusters", tmp_path / "problem.yaml")
    assert "cost of the change 2" in result.stdout


def test_a_planner_that_is_not_installed(problem: Path) -> None:
    result = plan("wishes", problem)
    assert result.exit_code == 1
    installed = ", ".join(sorted(Plugins.installed().planners))
    assert f"no planner named 'wishes' is installed; installed: {installed}" in result.stderr


def test_a_plan_that_cannot_be_written(problem: Path, tmp_path: Path) -> None:
    result = plan("subclusters-random", problem, "--time-limit-s", 0.2, "-o", tmp_path / "none" / "plan.json")
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr


def test_a_planner_without_layouts_says_so_before_it_plans(problem: Path, tmp_path: Path) -> None:
    result = plan("subclusters", problem, "-o", tmp_path / "plan.json", "--layout", tmp_path / "layout.json")
    assert result.exit_code == 1
    assert "--layout: plans of 'subclusters' say nothing of partitions and workers: leave it out" in result.stderr
    assert not (tmp_path / "plan.json").exists()


def test_what_a_solver_prints_does_not_come_between_a_machine_and_its_plan(problem: Path) -> None:
    """Solvers are libraries in C, which print past Python, and late."""
    program = """
import ctypes, sys
from tidegate.cli import main
from tidegate_symphony import plugin
run = plugin.plan_randomly
def chatter(*args, **options):
    ctypes.CDLL(None).puts(b"what a solver prints")
    return run(*args, **options)
plugin.plan_randomly = chatter
main()
"""
    command = [
        sys.executable,
        "-c",
        program,
        "plan",
        "subclusters-random",
        str(problem),
        "--time-limit-s",
        "0.2",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["bound"] is None
    assert "what a solver prints" in done.stderr


class Terminal(io.StringIO):
    """Remembers what is shown."""

    def isatty(self) -> bool:
        return True


def test_the_bar_tells_the_gap_and_the_time_left() -> None:
    """Of the best plan so far, while the planner runs."""
    shown = Terminal()

    def run(problem: VersionedDocument, /, *, time_limit_s: float, progress: Progress) -> Plan:
        progress(objective=100.0)
        eventually(lambda: "slow: 100, gap unknown" in shown.getvalue(), "a plan without a bound is shown")
        progress(objective=100.0, bound=125.0)
        eventually(lambda: "slow: 100, gap at most 25.0%" in shown.getvalue(), "its gap is shown")
        raise PlanningError("enough")

    console = Console(file=shown, force_terminal=True, width=120, color_system=None)
    with pytest.raises(PlanningError, match="enough"):
        run_under_bar(
            PlannerSpec("slow", "", VersionedDocument, SubclusterPlan, run), VersionedDocument(), 600.0, console
        )
    assert re.search(r"\d+ s left", shown.getvalue())


def test_what_a_planner_imports_takes_none_of_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second that a solver takes to be imported would else be half of what `tidegate recommend` gives a planner."""
    (tmp_path / "heavy_solver.py").write_text("def plan(problem, /, *, time_limit_s, progress): return progress()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "heavy_solver", raising=False)
    begun: list[bool] = []
    monkeypatch.setattr(rich.progress.Progress, "start", lambda _: begun.append("heavy_solver" in sys.modules))
    planner = PlannerSpec(
        "heavy", "", VersionedDocument, SubclusterPlan, imported_late("heavy_solver:plan", "heavy[planner]")
    )
    run_under_bar(planner, VersionedDocument(), 1.0, Console(file=io.StringIO()))
    assert begun == [True]


def test_a_plan_that_does_not_fit_loses_columns_of_one_value_first(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"model": f"detector-{number}", "batch": "1", "blocks": f"0-{number}", "rate /s": f"{number}00"}
        for number in (1, 2)
    ]
    console = Console(width=34)
    print_table(console, _columns(rows), rows)
    said = capsys.readouterr().out
    assert "Not shown at 34 columns: batch." in said.replace("\n", " ")
    assert "detector-2" in said
    assert "rate /s" in said
