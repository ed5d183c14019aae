"""What a recording says of how long its models take."""

from io import BytesIO
from typing import Any

import pytest

from tidegate.observation import Recorder, read_log
from tidegate.recommend.query import RecommendQuery
from tidegate.recommend.recommendation import recommend
from tidegate.recommend.recording import RecordedTraffic, read_recording, scenario_of_recording
from tidegate.recommend.simulation_runs import SimulationRuns
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate.workload.distributions import Constant

GUESS = {"alpha_ms": 0.05, "beta_ms": 0.5, "max_batch": 8}
"""What a Tidegate plans with where nobody profiled."""
TRUE_MS = {rows: 4.0 + 2 * rows for rows in range(1, 9)}


def recorded(*, stalls: dict[str, float] | None = None, **changes: Any) -> tuple[RecordedTraffic, Scenario]:
    model = {"name": "m", "slo_ms": 60, "profile": GUESS, **changes}
    served = Scenario.model_validate(
        {
            "warmup_s": 0,
            "duration_s": 6,
            "workers": [{"count": 2, "gpu": "T4"}],
            "models": [model],
            "arrivals": {"process": "gamma", "shape": 0.4, "rate_rps": 400},
            "simulation": {
                "service": {"m": {"profile": {"points_ms": TRUE_MS}}},
                **({"stalls": stalls} if stalls else {}),
            },
        }
    )
    log = BytesIO()
    simulate(RunSpec(served, PolicyChoice(name="fifs"), seed=1), observers=[Recorder(log)])
    header, entries = read_log(log.getvalue().splitlines(keepends=True))
    recording, given = read_recording(header.setup, entries)
    return recording, scenario_of_recording(given, "recorded")


def test_what_was_observed_counts_more_than_a_guess() -> None:
    _, scenario = recorded()
    table = scenario.models[0].profiles["T4"].points_ms
    assert table is not None
    assert table == {rows: pytest.approx(TRUE_MS[rows], abs=0.01) for rows in table}
    assert {1, 8} <= table.keys()
    assert scenario.models[0].slo_ms == 60


def test_the_attainment_is_the_recorded_one() -> None:
    assert recorded()[0].attainment == 1
    assert recorded(slo_ms=14)[0].attainment == pytest.approx(0.53, abs=0.03)


def test_stalls_are_recorded() -> None:
    """Without them a policy that leaves no time for them looks better than the one that served."""
    assert recorded()[1].simulation.stalls is None
    scenario = recorded(stalls={"probability": 0.03, "factor": 10})[1]
    assert Scenario.model_validate(scenario.model_dump(mode="json", exclude_defaults=True)) == scenario
    found = scenario.simulation.stalls
    assert found is not None
    assert found.probability == pytest.approx(0.03, abs=0.012)
    assert isinstance(found.factor, Constant)
    assert found.factor.value == pytest.approx(10, rel=0.1)


def test_what_ran_in_one_size_grows_with_its_rows_as_a_similar_shape_does() -> None:
    """Width 16 came so rarely that it never shared a batch."""
    shapes = [
        {"shape": "x:8", "weight": 100},
        {"shape": "x:16", "weight": 4, "latency_factor": 2, "known_to_policy": False},
    ]
    _, scenario = recorded(shapes=shapes, slo_ms=40)
    rare = next(shape for shape in scenario.models[0].shapes if shape.shape == "x:16").profiles["T4"].points_ms or {}
    assert rare[1] == pytest.approx(2 * TRUE_MS[1], abs=0.01)
    assert rare[max(rare)] == pytest.approx(2 * TRUE_MS[max(rare)], rel=0.02)


def test_shapes_are_recorded_with_their_times() -> None:
    """Nobody was told of the second shape; the third is too rare to have been measured."""
    shapes = [
        {"shape": "x:8", "weight": 60},
        {"shape": "x:16", "weight": 40, "latency_factor": 2, "known_to_policy": False},
        {"shape": "x:17", "weight": 0.2, "latency_factor": 2, "known_to_policy": False},
    ]
    recording, scenario = recorded(shapes=shapes)
    (model,) = scenario.models
    measured = {shape.shape: shape.profiles["T4"].points_ms or {} for shape in model.shapes}
    assert measured["x:8"][4] == pytest.approx(TRUE_MS[4], abs=0.01)
    assert measured["x:16"][4] == pytest.approx(2 * TRUE_MS[4], abs=0.01)
    assert measured["x:17"] == measured["x:16"]
    question = RecommendQuery(scenario, recording, only=("eager",), requests=300)
    found = recommend(question, SimulationRuns(jobs=1))
    assert found.chosen.ours.attainment.mean > 0.5
