"""The table of hazards: what it takes in, and that what breaks is told as what does not hold."""

import re
from pathlib import Path

import pytest
from rich.console import Console

import bench.fault_injection
from bench.fault_injection import NAMES, hazards
from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.rig import Rig
from bench.faults import bench_faults


def test_every_hazard_of_the_package_is_in_the_table() -> None:
    folder = Path(bench.fault_injection.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if re.search(r"^HAZARD = ", path.read_text(), re.MULTILINE)}
    assert files == set(NAMES)
    assert [hazard.name for hazard in hazards()] == list(NAMES)
    assert all(hazard.what and hazard.aim for hazard in hazards())


@pytest.mark.parametrize("error", [ValueError("why"), SystemExit("why")])
def test_one_that_breaks_does_not_hold_and_the_next_one_runs(error: BaseException) -> None:
    def broken(_: Rig) -> Result:
        raise error

    chosen = [
        Hazard("a", "what", "aim", broken),
        Hazard("b", "what", "aim", lambda rig: Result(str(rig.quick), holds=True)),
    ]
    reports = bench_faults(Console(quiet=True), chosen, quick=True)
    assert {name: report["holds"] for name, report in reports.items()} == {"a": False, "b": True}
    assert "why" in reports["a"]["after"]
    assert reports["b"]["after"] == "True"
