"""What is run to learn how models disturb each other; and that it is learned, of emulated GPUs whose truth is known."""

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command_line import invoke
from tests.loadtest.interference.synthetic import co_runs, solo_runs
from tidegate.schemas import InterferenceModel, Tenant, read_document
from tidegate.workload import PolicyChoice, Scenario
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.emulated import emulated_cluster
from tidegate_loadtest.interference.measure import groups
from tidegate_loadtest.interference.runs import read_co_runs, read_solo, write_co_runs, write_solo


@given(
    st.lists(st.sampled_from([20.0, 40.0, 50.0, 60.0, 80.0]), min_size=3, max_size=6),
    st.integers(1, 4),
    st.integers(2, 3),
    st.integers(0, 9),
)
def test_every_model_is_in_as_many_groups_as_asked_for(
    percents: list[float], number: int, size: int, seed: int
) -> None:
    models = {"a": (1, 8), "b": (2,), "c": (4, 16)}
    planned = groups(models, percents, number=number, size=size, seed=seed)
    assert planned == groups(models, percents, number=number, size=size, seed=seed)
    seen = Counter(name for group in planned for name in {tenant.partition for tenant, _ in group})
    assert len(planned) == 3 * number
    assert min(seen[name] for name in models) >= number
    for group in planned:
        tritons = [triton for _, triton in group]
        assert len(set(tritons)) == size
        assert all(tenant.percent == percents[triton] for tenant, triton in group)
        assert all(tenant.rows in models[tenant.partition] for tenant, _ in group)
        if sum(sorted(percents)[:size]) <= 100:
            assert sum(tenant.percent for tenant, _ in group) <= 100


def test_groups_larger_than_there_are_tritons_are_refused() -> None:
    with pytest.raises(LoadTestError, match="3 models beside each other need 3 Tritons"):
        groups({"a": (1,)}, [20, 80], number=1, size=3, seed=0)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    solo, together = solo_runs(0)[:9], co_runs(0, 5, tenants=3)
    write_solo(tmp_path / "solo.csv", "V100", solo)
    write_co_runs(tmp_path / "co_runs.csv", "V100", together)
    alone, beside = read_solo(tmp_path / "solo.csv", "V100"), read_co_runs(tmp_path / "co_runs.csv", "V100")
    assert [(run.model, run.rows, run.percent) for run in alone] == [(run.model, run.rows, run.percent) for run in solo]
    assert [run.taken_ms for run in alone] == pytest.approx([run.taken_ms for run in solo], abs=1e-6)
    assert [run.tenants for run in beside] == [run.tenants for run in together]
    for run, written in zip(beside, together, strict=True):
        assert run.taken_ms == pytest.approx(written.taken_ms, abs=1e-6)
    with pytest.raises(FileExistsError):
        write_solo(tmp_path / "solo.csv", "V100", solo)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"--triton": "localhost:8001"}, "is no PERCENT=HOST:PORT"),
        ({"--triton": "140=localhost:8001"}, "is no PERCENT=HOST:PORT"),
        ({"--triton": "40=localhost:1"}, "localhost:1"),
        ({"--rows": "1,x"}, "not a list of positive numbers"),
        ({"--solo": "there/is/none.csv"}, "there is no folder there/is"),
        ({"--co-runs": __file__}, "it exists already"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, changes: dict[str, str], what: str) -> None:
    options = {"--gpu": "V100", "--triton": "40=localhost:1", "--solo": str(tmp_path / "solo.csv")}
    options |= {"--co-runs": str(tmp_path / "co_runs.csv"), **changes}
    done = invoke("profile-shares", "m", *(word for option in options.items() for word in option))
    assert done.exit_code != 0
    assert what in " ".join(done.output.replace("│", " ").split())


def sharing(cache: float, minds: float) -> dict[str, Any]:
    """A model of which a row takes 5 ms on half of the GPU, and 20 ms whatever its batch."""
    taken = [[(20 + 5 * rows) * 50 / percent for percent in (40, 60)] for rows in (1, 4)]
    return {
        "gpu_ms": {"rows": [1, 4], "percents": [40, 60], "taken_ms": taken},
        "cache_percent": {"base": cache},
        "sensitivity": {"cache": minds},
    }


TRUTH = {"gpu": "V100", "models": {"gentle": sharing(20, 0.015), "rude": sharing(50, 0.005)}}


def emulated() -> Scenario:
    """Both models on two shares of one emulated GPU."""
    model = InterferenceModel.model_validate(TRUTH)
    kinds = {f"V100/mps-{percent}": percent for percent in (40, 60)}
    models = [
        {
            "name": name,
            "max_batch": 4,
            "profiles": {
                kind: {"points_ms": {rows: model.alone(Tenant(name, rows, percent)).taken_ms for rows in (1, 4)}}
                for kind, percent in kinds.items()
            },
        }
        for name in TRUTH["models"]
    ]
    return Scenario.model_validate(
        {
            "duration_s": 1,
            "workers": [{"count": 1, "gpu": "V100", "device": 0, "percent": percent} for percent in kinds.values()],
            "models": models,
            "arrivals": {"rate_rps": 1},
            "simulation": {"interference": TRUTH},
        }
    )


@pytest.mark.slow
@pytest.mark.usefixtures("start_triton")
def test_emulated_gpus_are_measured_and_fitted(tmp_path: Path) -> None:
    """Nobody tells who uses the cache: beside either, `gentle` takes 30 or 75 % longer, `rude` 10 or 25."""
    solo, together, output = tmp_path / "solo.csv", tmp_path / "co_runs.csv", tmp_path / "fitted.json"
    (tmp_path / "work").mkdir()
    with emulated_cluster(emulated(), PolicyChoice(name="fifs"), 1, tmp_path / "work") as cluster:
        tritons = [
            word
            for percent, address in zip((40, 60), cluster.tritons, strict=True)
            for word in ("--triton", f"{percent}={address}")
        ]
        files = ("--gpu", "V100", "--solo", solo, "--co-runs", together)
        runs = ("--rows", "1,4", "--groups", "10", "--window-s", "0.8", "--warmup-s", "0.2")
        measured = invoke("profile-shares", "gentle", "rude", *tritons, *files, *runs)
        assert measured.exit_code == 0, measured.output
        assert "8 runs alone" in measured.output
    done = invoke("fit-interference", *files, "--hold-out", "0", "-o", output)
    assert done.exit_code == 0, done.output
    truth, found = InterferenceModel.model_validate(TRUTH), read_document(output, InterferenceModel)
    for name in truth.models:
        for rows, percent in ((1, 40), (4, 60)):
            tenant = Tenant(name, rows, percent)
            # Never faster than it can be; how much slower is a matter of how busy the machine is.
            assert found.alone(tenant).taken_ms > truth.alone(tenant).taken_ms * 0.98
    for name, beside in product(truth.models, repeat=2):
        mine, neighbor = Tenant(name, 4, 40), [Tenant(beside, 4, 60)]
        assert found.slowdown(mine, neighbor) >= 1
