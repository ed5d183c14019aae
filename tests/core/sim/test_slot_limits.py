"""`slots: auto` of a scenario: the concurrency limit is found in a simulation as by the proxy."""

import io
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.api import Batch, BatchFailed, Stage, StageFinished
from tidegate.control.concurrency_limit import CONCURRENCY_LEVELS, INITIAL_LIMIT, ConcurrencyLimit
from tidegate.engine import ClockAdvanced, FirstResponse, StartStage, TopologyChanged
from tidegate.host import Plugins
from tidegate.observation import Recorder, read_log
from tidegate.sim.build import setup_of
from tidegate.sim.replay import replay
from tidegate.sim.run import RunSpec, simulate
from tidegate.sim.slot_limits import SimulatedSlotLimits
from tidegate.workload import PolicyChoice, Scenario, draw_requests

GAP_MS = 20
FIFS = PolicyChoice(name="fifs")
LLM: dict[str, Any] = {
    "name": "llm",
    "profile": {"points_ms": {1: 5 * GAP_MS}, "max_batch": 1},
    "streaming": {"responses": {"distribution": "lognormal", "mean": 60, "cv": 1}, "gap_ms": GAP_MS},
}


def scenario_of(rate_rps: float, *, count: int = 1, slo_gap_ms: float | None = None, **changes: Any) -> Scenario:
    """Each further stream slows all others of its server down by 5 %: the knee is at 19 streams."""
    document = {
        "warmup_s": 60,
        "duration_s": 60,
        "workers": [{"count": count, "slots": "auto"}],
        "models": [LLM | {"streaming": LLM["streaming"] | {"slo_gap_ms": slo_gap_ms}}],
        "simulation": {"slot_slowdown": 0.05},
        "arrivals": {"rate_rps": rate_rps},
    }
    return Scenario.model_validate(document | changes)


def test_under_load_each_server_finds_the_knee() -> None:
    total = simulate(RunSpec(scenario_of(22, count=2), FIFS, 1)).total
    assert total.mean_workers is not None
    assert 2 * 19 / 1.3 <= total.mean_workers <= 2 * 19 * 1.3
    assert total.failed == total.stranded == 0
    assert total.busy_share > 0.95, "of the slots that there were"
    assert total.gap_p50_ms is not None
    assert 1.35 * GAP_MS < total.gap_p50_ms < 2.3 * GAP_MS, "longer than with 8 slots"


def test_a_limit_for_the_time_between_responses_is_kept() -> None:
    total = simulate(RunSpec(scenario_of(11, slo_gap_ms=1.6 * GAP_MS), FIFS, 1)).total
    assert total.mean_workers == pytest.approx(10, abs=0.6)


def test_at_light_load_nothing_is_tried() -> None:
    total = simulate(RunSpec(scenario_of(1, warmup_s=0, duration_s=60), FIFS, 1)).total
    assert total.mean_workers == INITIAL_LIMIT
    assert total.touched_workers is not None
    assert total.touched_workers <= INITIAL_LIMIT


def test_the_policy_sees_the_changes_and_the_log_has_them() -> None:
    scenario = scenario_of(11, warmup_s=0, duration_s=60)
    choice, log = PolicyChoice(name="symphony"), io.BytesIO()
    simulate(RunSpec(scenario, choice, 1), observers=[Recorder(log)])
    header, entries = read_log(log.getvalue().splitlines())
    found = list(entries)
    sizes = [len(entry.event.workers) for entry in found if isinstance(entry.event, TopologyChanged)]
    assert len(sizes) > 2
    assert set(sizes) <= set(CONCURRENCY_LEVELS)
    ran = {entry.event.worker_id for entry in found if isinstance(entry.event, StageFinished)}
    assert max(ran) >= INITIAL_LIMIT, "new slots are used"
    policy = Plugins.installed().make_policy("symphony", setup_of(scenario, 1), {})
    assert replay(header, found, policy).difference is None


def test_a_preempted_stream_gives_no_further_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    responses_ns: list[int] = []

    def respond(_: ConcurrencyLimit, now_ns: int) -> bool:
        responses_ns.append(now_ns)
        return False

    monkeypatch.setattr(ConcurrencyLimit, "respond", respond)
    scenario = scenario_of(1)
    requests = draw_requests(scenario, 1)
    assert requests.responses is not None
    assert requests.responses[0] > 2
    cluster: Any = SimpleNamespace(left_ns=lambda *_: None)
    unused: Any = None
    limits = SimulatedSlotLimits(scenario, setup_of(scenario, 1), requests, cluster, unused, unused)
    batch = Batch(0, "llm", (0,), (Stage(0, "llm", 0, 1),))
    limits.handled(ClockAdvanced(0), [StartStage(batch, 0, 1)])
    limits.handled(FirstResponse(10, 0, 0, 0, 0), [])
    limits.handled(BatchFailed(20, 0, 0, 0, "preempted", retry=True), [])
    assert responses_ns == [10]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workers": [{"count": 1, "slots": "many"}]}, "workers.0.slots"),
        ({"workers": [{"count": 1, "slots": 0}]}, "workers.0.slots"),
        ({"workers": [{"count": 2, "slots": "auto", "per_gpu": 2}]}, "slots: auto is for workers with a GPU each"),
        ({"models": [LLM, LLM | {"name": "other"}]}, "is the limit of one model, and these workers host llm, other"),
        ({"models": [LLM | {"streaming": None}]}, "workers.0.slots: 'llm' has no `streaming`"),
        ({"simulation": {"events": [{"at_s": 1, "lost": 0}]}}, "slots: auto and simulation.events both change"),
        ({"network": {"gbps": 1}}, "slots: auto and network both change"),
    ],
)
def test_where_a_limit_cannot_be_found(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        scenario_of(1, **changes)
