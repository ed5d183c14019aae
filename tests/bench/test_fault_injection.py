"""A hazard that breaks is one that does not hold."""

import pytest
from rich.console import Console

from bench.fault_injection.hazards import Hazard, Result
from bench.fault_injection.rig import Rig
from bench.faults import bench_faults


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
