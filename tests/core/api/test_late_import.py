"""What is imported late is missed late, by name, and with what to install."""

import sys
from pathlib import Path

import pytest

from tidegate.api import PlanningError
from tidegate.api.late_import import imported_late, load


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin with planners that need nothing, a library, and a module of its own that is not there."""
    folder = tmp_path / "tidal"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "simple.py").write_text("def plan(problem, *, limit): return problem + limit\n")
    (folder / "heavy.py").write_text("import no_such_solver\n")
    (folder / "broken.py").write_text("import tidal.gone\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("simple", "heavy", "broken"):
        monkeypatch.delitem(sys.modules, f"tidal.{name}", raising=False)
    monkeypatch.delitem(sys.modules, "tidal", raising=False)


def test_nothing_is_imported_before_the_call() -> None:
    plan = imported_late("tidal.simple:plan", "tidal[planner]")
    assert "tidal" not in sys.modules
    assert plan(2, limit=3) == 5


def test_a_missing_library_is_named_with_what_to_install() -> None:
    with pytest.raises(PlanningError, match=r'needs no_such_solver: pip install "tidal\[planner\]"'):
        imported_late("tidal.heavy:plan", "tidal[planner]")()


def test_a_module_of_its_own_that_is_missing_is_a_fault() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"tidal\.gone"):
        imported_late("tidal.broken:plan", "tidal[planner]")()


def test_what_is_loaded_first_takes_no_time_of_the_call() -> None:
    """What is not imported late needs nothing."""
    plan = imported_late("tidal.simple:plan", "tidal[planner]")
    load(plan)
    assert "tidal.simple" in sys.modules
    load(print)
    with pytest.raises(PlanningError, match="needs no_such_solver"):
        load(imported_late("tidal.heavy:plan", "tidal[planner]"))
