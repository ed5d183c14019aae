"""The benchmark of PARIS and ELSA: what it reads, what it holds against itself, and that it runs."""

import json
import re
from math import sqrt
from pathlib import Path

import pytest

from bench.papers.paris_elsa.__main__ import main
from bench.papers.paris_elsa.design_points import homogeneous, layout_of
from bench.papers.paris_elsa.drifting import LARGE, SMALL, cut, problem_of, sizes_of
from bench.papers.paris_elsa.measured import MIGPERF, PARVAGPU, Case, Curve, read_cases, sizes_of_requests
from bench.papers.paris_elsa.throughput import Cell, measure, scenario_of
from tidegate.workload import draw_requests
from tidegate_paris_elsa.problem import MigProblem

ROWS = (1, 2, 4, 8, 16, 32, 64)
CASE = Case("m", 24, 28, {size: Curve({rows: 4 + 2.0 * rows / size for rows in ROWS}) for size in (1, 2, 3, 4, 7)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files as others publish them, of what a formula says; 64 rows are too many for one GPC."""
    parvagpu = "mobilenetv2 densenet121 densenet169 densenet201 resnet50 resnet101 resnet152 inceptionv3 vgg16 vgg19"
    lines = ["model,gpc,batch,procs,throughput_per_proc_rps,latency_ms"]
    for model in (*parvagpu.split(), "bert-large-seq128"):
        for size in (1, 2, 3, 4, 7):
            for rows in ROWS[: -1 if size == 1 else None]:
                lines += [f"{model},{size},{rows},{procs},1,{procs * (4 + 2 * rows / size)}" for procs in (1, 2)]
    (tmp_path / PARVAGPU).write_text("\n".join(lines) + "\n")
    lines = ["gpu,gpc,model,seq_len,batch,latency_ms,gract"]
    for model, length in (("resnet50", ""), ("vision_transformer", ""), ("bert-base", "64")):
        for size in (1, 2, 3, 7):
            lines += [
                f"{gpu},{size},{model},{length},{rows},{4 + 2 * rows / size},{min(0.9, rows / size / 4)}"
                for gpu in ("A100-40GB", "A100-80GB")
                for rows in ROWS
            ]
    (tmp_path / MIGPERF).write_text("\n".join(lines) + "\n")
    return tmp_path


def test_one_process_on_each_slice_is_read_and_what_ran_out_of_memory_is_missing(folder: Path) -> None:
    cases = {case.title: case for case in read_cases(folder)}
    assert len(cases) == 14
    light = cases["mobilenetv2"]
    assert (light.gpcs, light.whole_gpcs) == (24, 28)
    assert light.curves[2].latency_ms[8] == 12
    assert 64 not in light.curves[1].latency_ms
    assert light.curves[7].utilization is None
    assert cases["bert-base-seq64 (MIGPerf)"].curves[7].utilization == {rows: min(0.9, rows / 28) for rows in ROWS}


def test_the_sizes_of_requests_are_log_normal_about_the_middle_of_their_range() -> None:
    sizes = sizes_of_requests(32)
    assert list(sizes) == list(range(1, 33))
    assert sum(sizes.values()) == pytest.approx(1)
    below = sum(share for rows, share in sizes.items() if rows <= sqrt(32))
    assert below == pytest.approx(0.5, abs=0.06)


def test_what_cannot_be_planned_says_why() -> None:
    small = Case("m", 24, 28, {**CASE.curves, 1: Curve({1: 6.0})})
    found = measure(Cell(small, homogeneous(1), 500))
    assert (found.rate_rps, found.slices) == (None, {})
    assert "measure" in found.why_not


@pytest.mark.slow
def test_it_runs_and_writes_its_figures(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    words = ["--data", str(folder), "--models", "mobilenetv2", "--requests", "200", "--jobs", "1", "--json", str(out)]
    main(words)
    printed = capsys.readouterr().out
    assert "times GPU(7)+FIFS (aim 1.7)" in printed
    found = json.loads(out.read_text())
    assert len(found["throughput"]) == 24
    rates = {(row["planner"], str(row["options"]), row["policy"]): row["rate_rps"] for row in found["throughput"]}
    assert rates["paris", "{}", "FIFS"], "FIFS does not depend on the order in which slices are listed"


@pytest.mark.parametrize(
    ("words", "says"), [(["--data", "absent"], "--data: .*absent"), (["--models", "gpt"], "--models: no 'gpt' among")]
)
def test_what_is_not_there_is_said(
    folder: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--data", str(folder), *words])
    assert re.search(says, capsys.readouterr().err)


def test_sizes_drift_to_others_of_which_all_are_planned_for() -> None:
    means = {name: sum(rows * share for rows, share in sizes_of(name).items()) for name in (SMALL, LARGE)}
    assert means[LARGE] > 2 * means[SMALL]
    for name in (SMALL, LARGE):
        problem = MigProblem.model_validate(problem_of(CASE, sizes_of(name)))
        assert sum(problem.models[0].shares.values()) == pytest.approx(1)
        assert problem.models[0].most_rows == 32


def test_the_requests_after_the_drift_are_those_that_came_then() -> None:
    layout = layout_of(CASE, homogeneous(7), sizes_of(SMALL), 100.0)
    requests = draw_requests(scenario_of(layout, sizes_of(SMALL), 100.0, 10.0), 1)
    half = cut(requests, len(requests) // 2, len(requests))
    assert [request.arrival_ns for request in half] == [request.arrival_ns for request in requests][
        len(requests) // 2 :
    ]
    assert [request.rows for request in half] == [request.rows for request in requests][len(requests) // 2 :]
