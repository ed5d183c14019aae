"""The policy is tuned in virtual time: `tidegate simulate` shows what `auto` would do."""

import io
from typing import Any

from tests.core.sim.conftest import make_scenario
from tidegate.host import Plugins
from tidegate.observation import PolicyChanged, PolicyTuned, Recorder, read_log
from tidegate.sim.replay import replay
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario

PLUGINS = Plugins.installed()
STEP: dict[str, Any] = {
    "warmup_s": 0,
    "duration_s": 35,
    "workers": [{"count": 1}],
    "models": [
        {"name": "quick", "slo_ms": 150, "weight": 0.7, "profile": {"alpha_ms": 2, "beta_ms": 12, "max_batch": 16}},
        {"name": "slow", "slo_ms": 900, "weight": 0.3, "profile": {"alpha_ms": 8, "beta_ms": 120, "max_batch": 16}},
    ],
    "arrivals": {"process": "poisson", "rate_rps": [{"from_s": 0, "rate_rps": 8}, {"from_s": 10, "rate_rps": 100}]},
}
"""Under the paper's deferral the only worker idles too long after the step."""
FRONTRUN = {"deferral": "frontrun"}


def tuned(scenario: Scenario, **options: Any) -> tuple[Any, list[Any], bytes]:
    """The result, the events of the tuner, and the event log."""
    log = io.BytesIO()
    result = simulate(
        RunSpec(scenario, PolicyChoice(name="auto", options=FRONTRUN | options), 1), observers=[Recorder(log)]
    )
    _, entries = read_log(log.getvalue().splitlines(keepends=True))
    events = [entry.event for entry in entries if isinstance(entry.event, PolicyTuned | PolicyChanged)]
    return result, events, log.getvalue()


def test_a_step_of_the_load_is_answered_within_30_s() -> None:
    scenario = make_scenario(**STEP)
    result, events, log = tuned(scenario)
    (changed,) = [event for event in events if isinstance(event, PolicyChanged)]
    assert 10e9 < changed.now_ns < 40e9
    before = simulate(RunSpec(scenario, PolicyChoice(name="symphony", options=FRONTRUN), 1))
    assert result.total.attainment > before.total.attainment
    assert result.total.failed == result.total.stranded == 0
    header, entries = read_log(log.splitlines(keepends=True))
    policy = PLUGINS.make_policy(header.policy, header.setup, header.options)
    assert replay(header, entries, policy, policies=PLUGINS.make_policy).difference is None


def test_workers_that_go_stop_it() -> None:
    lost = [
        {"at_s": at_s + (0.0 if number % 2 else 1.0), "lost" if number % 2 else "joined": 1}
        for at_s in range(12, 34, 2)
        for number in (1, 2)
    ]
    scenario = make_scenario(**{**STEP, "workers": [{"count": 2}], "simulation": {"events": lost}})
    _, events, _ = tuned(scenario)
    assert not any(isinstance(event, PolicyChanged) for event in events)
