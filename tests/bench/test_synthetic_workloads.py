"""The synthetic workloads of the Symphony paper: the grid, the sample, and two small members searched to their end."""

import json
from collections import Counter
from pathlib import Path

import pytest

from bench.papers.synthetic_workloads import (
    MIXED,
    MODELS,
    MOST_WORKERS,
    POLICIES,
    SHAPES,
    Workload,
    compare,
    draw_sample,
    grid,
    main,
    mixed_grid,
    scenario_of,
    summarize,
)


def test_the_grid_has_as_many_members_as_the_paper_says() -> None:
    members = grid()
    assert len(members) == len(set(members)) == 5880
    assert max(member.workers for member in members) == MOST_WORKERS
    assert {member.model for member in members if member.slo_ms == 20} == set(MODELS) - {"DenseNet121", "InceptionV3"}


def test_mixed_workloads_have_the_35_models_of_table_3_with_their_own_slos() -> None:
    members = mixed_grid()
    assert len(members) == 42
    assert {member.models for member in members} == {35}
    scenario = scenario_of(members[0], rate_rps=100, duration_s=1)
    slos_ms = {model.name.partition("-")[0]: model.slo_ms for model in scenario.models}
    assert len(scenario.models) == 35
    assert slos_ms["BERT"] == 56
    assert slos_ms["DenseNet121"] == 29


def test_a_sample_represents_every_model_and_burstiness_alike() -> None:
    members = grid()
    sample = draw_sample(members, 200, seed=3)
    assert len(set(sample)) == 200
    assert set(sample) <= set(members)
    for field, values in (("model", MODELS), ("shape", SHAPES)):
        drawn = Counter(getattr(member, field) for member in sample)
        everywhere = Counter(getattr(member, field) for member in members)
        for value in values:
            assert drawn[value] == pytest.approx(200 * everywhere[value] / 5880, rel=0.35)


def test_a_sample_depends_on_its_seed_only() -> None:
    members = grid()
    assert draw_sample(members, 50, seed=1) == draw_sample(members, 50, seed=1)
    assert draw_sample(members, 50, seed=1) != draw_sample(members, 50, seed=2)
    assert sorted(map(repr, draw_sample(members, 5880, seed=1))) == sorted(map(repr, members))
    assert draw_sample(members, 0, seed=1) == []


@pytest.mark.parametrize("count", [-1, 5881])
def test_a_sample_larger_than_the_grid_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="5880"):
        draw_sample(grid(), count, seed=1)


def test_equal_models_differ_in_nothing_but_their_names() -> None:
    scenario = scenario_of(Workload("VGG16", 30, 0.3, 3, 5), rate_rps=100, duration_s=1)
    assert len({model.name for model in scenario.models}) == 3
    assert len({model.model_copy(update={"name": ""}).model_dump_json() for model in scenario.models}) == 1
    assert sum(pool.count for pool in scenario.workers) == 5


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    """Of two workloads with few workers, searched with few requests."""
    workloads = [Workload("DenseNet121", 30, 1.0, 2, 4), Workload("BERT", 25, 0.5, 2, 2)]
    return [compare(workload, requests_per_model=60) for workload in workloads]


@pytest.mark.slow
def test_every_policy_is_searched_and_compared(rows: list[dict[str, dict[str, float]]]) -> None:
    for row in rows:
        goodput = row["goodput_rps"]
        assert list(goodput) == [choice.title for choice in POLICIES]
        # No policy can do better than workers that are busy with full batches all the time.
        assert 0 < min(goodput.values()) <= max(goodput.values()) < 4 * 64 / (64 * 1.061 + 10.312) * 1000
        assert row["ratios"]["frontrun / eager"] == goodput["frontrun"] / goodput["eager"]
        assert row["ratios"]["symphony / better eager"] == goodput["symphony"] / max(
            goodput["eager"], goodput["eager window"]
        )


@pytest.mark.slow
def test_where_batches_pay_deferral_makes_larger_ones(rows: list[dict[str, dict[str, float]]]) -> None:
    batches = rows[0]["mean_batch_rows"]
    assert batches["frontrun"] > batches["eager"] > 1


@pytest.mark.slow
def test_the_distribution_is_summarized() -> None:
    given = [{"ratios": {"r": value}} for value in (0.9, 0.96, 1.2, 1.6, 2.5, None)]
    assert summarize(given, "r") == {
        "at least 0.95": 0.8,
        "at least 1": 0.6,
        "at least 1.5": 0.4,
        "at least 2": 0.2,
        "least": 0.9,
        "quartile 1": 0.96,
        "median": 1.2,
        "quartile 3": 1.6,
        "most": 2.5,
    }


def test_the_command_refuses_an_impossible_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--sample", "6000", "--json", str(tmp_path / "f.json")])
    assert "ask for 0 to 5880" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_writes_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rows: list[dict[str, object]]
) -> None:
    """The search itself is replaced: a member of the grid takes seconds."""
    monkeypatch.setattr(
        "bench.papers.synthetic_workloads.compare", lambda workload: rows[0] | {"model": workload.model}
    )
    main(["--sample", "2", "--mixed", "1", "--jobs", "1", "--json", str(tmp_path / "f.json")])
    written = json.loads((tmp_path / "f.json").read_text())["workloads"]
    assert [row["model"] == MIXED for row in written] == [True, False, False]
    assert "2 workloads, equal models" in capsys.readouterr().out
