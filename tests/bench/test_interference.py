"""The benchmark of the interference model, on a GPU whose truth is known."""

import csv
from pathlib import Path

import pytest

from bench.interference import main
from tests.loadtest.interference.synthetic import co_runs, solo_runs
from tidegate_loadtest.interference.runs import write_co_runs, write_solo


@pytest.mark.slow
def test_it_judges_every_division(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files without utilizations: of models that were seen together it is still foretold better than by nothing."""
    solo = solo_runs(0)
    write_solo(tmp_path / "igniter_v100_solo.csv", "V100", solo)
    write_co_runs(tmp_path / "igniter_v100_pairs.csv", "V100", co_runs(0, 120))
    with (tmp_path / "igniter_v100_grid3x3.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "batch", "share_pct", "gpu_latency_ms"])
        writer.writerows([run.model, run.rows, run.percent, run.gpu_ms] for run in solo if run.percent == 50)
    main([str(tmp_path)])
    printed = capsys.readouterr().out
    for title in ("70 % of the co-runs, ten seeds", "three co-runs of each", "each of 6 pairs of models"):
        assert title in printed
    lines = [line.split("│") for line in printed.splitlines() if line.startswith("│")]
    means = {
        way: [float(cells[2].split("%")[0]) for cells in lines if cells[1].strip() == way]
        for way in ("model", "no interference")
    }
    assert [len(each) for each in means.values()] == [4, 4]
    *seen, _never = zip(*means.values(), strict=True)
    assert all(fitted < none for fitted, none in seen)
