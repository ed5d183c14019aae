"""The workloads of the Orloj paper: what it gives of them is kept, and the benchmark says what it found."""

import json
from pathlib import Path

import pytest

from bench.papers.orloj import COMPARED, Cell, bench_insertion, main, run_cell
from bench.papers.orloj_features import BOTH, FEATURES, NAMES, NOTHING, TUNED_CASES, FeatureCell, as_said, cells_of
from bench.papers.orloj_features import CASES as FEATURE_CASES
from bench.papers.orloj_paper import SYSTEMS, published
from bench.papers.orloj_workloads import CASES, MOMENTS_MS, SLOS, SPREADS, Workload, times_of
from tidegate.sim.build import setup_of
from tidegate.workload import PolicyChoice
from tidegate.workload.distributions import ValueTable


def test_every_cell_of_the_paper_has_a_workload_and_the_other_way_round() -> None:
    paper = published()
    assert set(paper) == set(CASES)
    assert all(len(cells) == len(SLOS) and set(cell) == set(SYSTEMS) for cells in paper.values() for cell in cells)
    assert paper["bart-cnn"][1] == {"clipper": 0.36, "nexus": 0.36, "clockwork": 0.46, "orloj": 0.71}
    assert paper["skipnet-imagenet"][4]["orloj"] == 0.89


@pytest.mark.parametrize("case", MOMENTS_MS)
def test_times_have_the_moments_that_the_paper_gives(case: str) -> None:
    values = [value for half in times_of(case) for value in ValueTable.model_validate(half).values]
    mean_ms, p99_ms = MOMENTS_MS[case]
    assert sum(values) / len(values) == pytest.approx(mean_ms, rel=0.01)
    assert sorted(values)[int(0.99 * len(values))] == pytest.approx(p99_ms, rel=0.02)


@pytest.mark.parametrize("case", SPREADS)
def test_each_mode_is_an_application_that_policies_are_told_of(case: str) -> None:
    setup = setup_of(Workload(case, 2).scenario(PolicyChoice(name="orloj")), 0)
    assert len(setup.latency_distributions) == len(SPREADS[case])
    means_ms = [times.mean_ns / 1e6 for times in setup.latency_distributions]
    assert means_ms == sorted(means_ms)


def test_a_batch_of_one_takes_the_mean_time_on_average() -> None:
    setup = setup_of(Workload("three-modal", 2).scenario(PolicyChoice(name="nexus")), 0)
    assert setup.profiles[0].expected_ns(1) / 1e6 == pytest.approx(105, rel=0.01)
    told = setup.latency_distributions
    mean_ns = sum(times.fixed_ns + times.scale * times.mean_ns for times in told) / len(told)
    assert mean_ns == pytest.approx(setup.profiles[0].expected_ns(1), rel=0.01)


def test_orloj_finishes_more_than_those_that_know_the_mean_only() -> None:
    rates = {
        choice.title: run_cell(Cell(Workload("two-modal", 2, requests=600), choice)).finish_rate for choice in COMPARED
    }
    assert rates["orloj"] == max(rates.values())
    assert rates["clipper"] == min(rates.values())


@pytest.mark.slow
def test_tables_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "orloj.json"
    chosen = ["--only", "tables", "--cases", "resnet-imagenet", "--requests", "200", "--jobs", "1"]
    main([*chosen, "--json", str(path)])
    rows = json.loads(path.read_text())["tables"]
    assert len(rows) == len(SLOS) * len(COMPARED)
    assert {row["published"] for row in rows if row["policy"] == "symphony"} == {None}
    assert "cells in which Orloj is below the paper's" in capsys.readouterr().out


def test_an_insertion_takes_less_time_than_a_choice() -> None:
    row = bench_insertion(500, 50)
    assert 0 < row["insertion_p50_ms"] < row["choice_p50_ms"]


def test_features_are_compared_on_the_same_requests() -> None:
    cells = cells_of(FEATURE_CASES, (1, 2), 200, 1.0)
    assert len(set(cells)) == len(cells)
    assert not {case for case, _ in FEATURE_CASES} & {case for case, _ in TUNED_CASES[:2]}, "held out"
    drawn = {
        said: list(
            as_said(
                Workload("two-modal", 2, requests=200, known=False).requests_of(
                    FeatureCell("two-modal", 2, said, 0.7, "orloj", 1, 200, 0.05).scenario, 1
                ),
                said,
            )
        )
        for said in (NOTHING, NAMES, FEATURES, BOTH)
    }
    instants = {said: [request.arrival_ns for request in requests] for said, requests in drawn.items()}
    assert len(set(map(tuple, instants.values()))) == 1
    named = {said: any(request.app for request in requests) for said, requests in drawn.items()}
    featured = {said: any(request.feature for request in requests) for said, requests in drawn.items()}
    assert named == {NOTHING: False, NAMES: True, FEATURES: False, BOTH: True}
    assert featured == {NOTHING: False, NAMES: False, FEATURES: True, BOTH: True}
