"""The benchmark of the planners of slices runs without measured data, and writes its figures."""

import json
from pathlib import Path

import pytest

from bench import mig_planner


@pytest.mark.slow
def test_it_runs_on_synthetic_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mig_planner, "GPUS", (8,))
    monkeypatch.setattr(mig_planner, "TOGETHER_GPUS", (6,))
    monkeypatch.setattr(mig_planner, "GROUPS", ((0, 1), (0, 1, 2)))
    mig_planner.main(["--json", str(tmp_path / "figures.json")])
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [row["gpcs"] for row in figures["time"]] == [56, 56, 56]
    assert all(row["gap"] <= 0.001 for row in figures["time"])
    assert all(row["together"] >= row["one at a time"] * 0.999 for row in figures["together"])
    assert all(row["ours away_s"] <= row["naive away_s"] for row in figures["change"])


def test_measured_slices_are_read(tmp_path: Path) -> None:
    data = tmp_path / "slices.csv"
    data.write_text(
        "model,gpc,batch,procs,throughput_per_proc_rps,latency_ms\n"
        "resnet50,1,1,1,200,5\nresnet50,1,1,2,100,9\nresnet50,1,64,1,100,640\nother,1,1,1,1,1\n"
    )
    assert mig_planner.read_curves(data)["resnet50"] == {1: {1: 5.0}}
