"""The benchmark of PPipe's planners runs without the published data, and writes its figures."""

import json
import sys
from pathlib import Path

import pytest

from bench.papers import ppipe_planner


def test_it_runs_on_synthetic_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppipe_planner, "GPUS", (10_000,))
    monkeypatch.setattr(ppipe_planner, "CLASSES", {2: {"L4": 3000, "T4": 7000}})
    monkeypatch.setattr(ppipe_planner, "LIMITS_S", {2: (60.0,)})
    monkeypatch.setattr(sys, "argv", ["ppipe_planner", "--json", str(tmp_path / "figures.json")])
    ppipe_planner.main()
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["published"] == []
    assert [row["classes"] for row in figures["classes"]] == [2]
    by_planner = {row["planner"]: row["objective"] for row in figures["gpus"]}
    assert by_planner["ppipe"] > by_planner["np"] > 0
    assert all(row["gap"] < 0.02 for row in (*figures["gpus"], *figures["classes"]))
