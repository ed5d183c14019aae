"""Graphs in the simulator: one outcome for each of their requests, stages in order, and one deadline."""

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from tidegate.api import AnyCommand, Request, RequestArrived, RequestCancelled
from tidegate.engine import AnyEffect, AnyStimulus
from tidegate.observation import EngineSettings, Observer, ObserverOptions
from tidegate.sim.result import RunResult
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario

MS = 1_000_000
STAGES: list[dict[str, Any]] = [
    {"model": "a"},
    {"model": "b", "after": ["a"]},
    {"name": "c1", "model": "c", "after": ["a"]},
    {"name": "c2", "model": "c", "after": ["b", "c1"]},
]


def scenario_of(slo_ms: float = 100.0, rate_rps: float = 50.0, **changes: Any) -> Scenario:
    models = [
        {"name": name, "weight": weight, "slo_ms": 50, "profile": {"alpha_ms": 1, "beta_ms": beta_ms, "max_batch": 8}}
        for name, weight, beta_ms in (("a", 0.0, 2), ("b", 1.0, 8), ("c", 0.0, 4))
    ]
    document: dict[str, Any] = {
        "duration_s": 2,
        "warmup_s": 0.5,
        "workers": [{"count": 2}],
        "models": models,
        "graphs": [{"name": "g", "slo_ms": slo_ms, "stages": STAGES}],
        "arrivals": {"rate_rps": rate_rps},
    }
    return Scenario.model_validate(document | changes)


class Seen(Observer):
    """An observer that keeps the stimuli."""

    def __init__(self) -> None:
        super().__init__(ObserverOptions())
        self.events: list[AnyStimulus] = []

    def started(self, policy: str, options: dict[str, Any], setup: object, settings: EngineSettings) -> None:
        """Nothing."""

    def handled(self, event: AnyStimulus, commands: Sequence[AnyCommand], effects: Sequence[AnyEffect]) -> None:
        self.events.append(event)

    @property
    def requests(self) -> list[Request]:
        return [event.request for event in self.events if isinstance(event, RequestArrived)]


def run(scenario: Scenario, policy: str = "symphony") -> tuple[RunResult, Seen]:
    seen = Seen()
    return simulate(RunSpec(scenario, PolicyChoice(name=policy), 1), observers=[seen]), seen


def test_each_request_of_a_graph_ends_once_with_its_stages_in_order() -> None:
    result, seen = run(scenario_of())
    rows = {row.model: row for row in result.rows}
    assert (rows["g"].accepted, rows["g"].attainment) == (rows["g"].answered, 1.0)
    assert rows["a"].accepted == rows["c"].accepted == 0, "stages are no requests of clients"
    assert rows["b"].accepted > 10, "direct requests are"
    assert rows["g"].p50_ms is not None
    assert rows["g"].p50_ms >= 3 + 9 + 5, "the longest path"
    again, _ = run(scenario_of())
    assert again.rows == result.rows
    by_model = [sum(request.model == name for request in seen.requests) for name in "abc"]
    direct = by_model[1] - by_model[0]
    assert direct > 10
    assert by_model[2] == 2 * by_model[0], "both stages of one model"


def test_stages_share_the_deadline_of_their_graph() -> None:
    _, seen = run(scenario_of(slo_ms=100))
    first = next(request for request in seen.requests if request.model == "a")
    assert 55 * MS < first.deadline_ns - first.arrival_ns < 58 * MS, "midway between 27 and 86"
    assert first.late_until_ns == first.arrival_ns + 100 * MS - (9 + 5) * MS, "the longest path after it, alone"
    ends = [request for request in seen.requests if request.model == "c"]
    starts = [request.arrival_ns for request in seen.requests if request.model == "a"]
    last = max(ends, key=lambda request: request.deadline_ns)
    assert last.deadline_ns in {start_ns + 100 * MS for start_ns in starts}, "the last stage has all that is left"


def test_stages_are_worker_time_of_the_tenant_of_their_graph() -> None:
    tenants = [{"name": "graphs", "models": ["g"]}, {"name": "direct", "models": ["b"]}]
    result, _ = run(scenario_of(tenants=tenants))
    graphs, direct = result.tenants
    assert graphs.worker_s is not None
    assert direct.worker_s is not None
    assert graphs.worker_s > direct.worker_s > 0, "four stages to one"
    busy = result.total.busy_share * 2 * 2
    assert graphs.worker_s + direct.worker_s == pytest.approx(busy, rel=0.5), "that of the warm-up is in it"


def test_a_stage_that_is_dropped_ends_its_graph_and_cancels_the_other_branch() -> None:
    result, seen = run(scenario_of(slo_ms=20, rate_rps=900))
    row = next(row for row in result.rows if row.model == "g")
    assert row.accepted == row.answered + sum(row.dropped.values())
    assert sum(row.dropped.values()) > 100
    assert any(isinstance(event, RequestCancelled) for event in seen.events)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([{"model": "z"}], "has a stage of 'z', no model of the scenario"),
        ([{"model": "g"}], "'g' has a stage of the graph 'g': write the stages of that graph in its place"),
        ([{"model": "a"}, {"model": "a"}], "stages: 'a' is listed twice: give one of them a name"),
        ([{"model": "a", "after": ["z"]}], "'a' is after 'z', which is no stage of the graph"),
        ([{"model": "a", "after": ["b"]}, {"model": "b", "after": ["a"]}], "they form a cycle ("),
    ],
)
def test_graphs_that_are_none(stages: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValidationError) as raised:
        scenario_of(graphs=[{"name": "g", "stages": stages}])
    assert words in str(raised.value)
