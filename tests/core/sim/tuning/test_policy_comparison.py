"""Policies compared on the same requests, and the CPU time that this may take."""

from hypothesis import given
from hypothesis import strategies as st

from tests.core.sim.tuning.windows import SETUP, S, arrivals
from tidegate.host import Plugins
from tidegate.observation import EngineSettings
from tidegate.sim.tuning.candidates import PolicyCandidate, candidates_of, first_candidate
from tidegate.sim.tuning.policy_comparison import GAIN_BLOCKS, ComparisonJob, compare
from tidegate.sim.tuning.traffic_window import fingerprint_of
from tidegate.sim.tuning.tuner import BURST_NS, CpuBudget
from tidegate.sim.what_if import WhatIfQuestion

PLUGINS = Plugins.installed()
PRESENT = PolicyCandidate("symphony")
REQUESTS = arrivals(1000 * S, 1001 * S, 440)


def job(*candidates: PolicyCandidate) -> ComparisonJob:
    question = WhatIfQuestion(SETUP, "", {}, EngineSettings(learn=True, max_tries=2), REQUESTS, (0.8, 1.2))
    return ComparisonJob(question, [number % 2 == 0 for number in range(440)], candidates, 1, 0.4)


def test_all_are_compared_on_the_same_requests() -> None:
    fast, slow = PolicyCandidate("eager"), PolicyCandidate("fifs", {"max_rows": 1})
    found = compare(job(PRESENT, fast, slow), PLUGINS)
    assert found == compare(job(PRESENT, fast, slow), PLUGINS)
    assert (sum(found.requests), sum(found.measured)) == (400, 200), "the first of eleven parts does not count"
    present, eager, fifs = found.outcomes
    assert present.on_time > fifs.on_time < eager.on_time
    assert present.models == {"m": present.on_time / 400}
    assert found.simulated_requests == 3 * 440


def test_who_cannot_be_simulated_is_named_and_who_is_behind_is_eliminated() -> None:
    broken = PolicyCandidate("symphony", {"deferral": "never"})
    crowd = [PolicyCandidate("timeout", {"timeout_ms": float(number)}) for number in range(10, 100, 10)]
    found = compare(job(PRESENT, broken, *crowd), PLUGINS)
    assert "deferral" in found.outcomes[1].why
    assert len([each for each in found.outcomes if each.blocks]) == 1 + 3
    assert len(found.outcomes[0].blocks) == GAIN_BLOCKS, "the present policy is never eliminated"
    assert found.simulated_requests == 10 * 150 + 8 * 300 + 4 * 440, "few requests would decide by chance"


def test_a_simulation_that_takes_too_long_is_stopped() -> None:
    found = compare(job(PRESENT), PLUGINS, lambda: True)
    assert found.outcomes[0].why == "it took too long to simulate"


def test_candidates_are_what_policies_name_and_triton_tuned() -> None:
    names = [each.title for each in candidates_of(SETUP, PLUGINS)]
    assert {"symphony", "eager", "triton (delay 20%, timeout 50%)"} <= set(names)
    assert not {"auto", "by-model"} & set(names)
    assert first_candidate(PLUGINS, "auto", {"dry_run": True, "deferral": "frontrun"}) == PolicyCandidate(
        "symphony", {"deferral": "frontrun"}
    )


@given(st.floats(0.01, 1), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_a_budget_is_kept(fraction: float, spent_ns: list[int]) -> None:
    budget, now_ns, total_ns = CpuBudget(fraction, 0), 0, 0
    for cpu_ns in spent_ns:
        now_ns += cpu_ns
        total_ns += cpu_ns
        now_ns += budget.spend(now_ns, cpu_ns)
        assert total_ns <= fraction * now_ns + BURST_NS + 1


def test_loads_are_told_apart_by_rate_and_mix_and_bursts() -> None:
    usual = fingerprint_of(arrivals(0, 10 * S, 100), 0, 10 * S, (0,))
    assert usual.is_like(fingerprint_of(arrivals(50 * S, 60 * S, 105), 50 * S, 60 * S, (0,)))
    assert not usual.is_like(fingerprint_of(arrivals(0, 10 * S, 150), 0, 10 * S, (0,)))
    assert not usual.is_like(fingerprint_of(arrivals(0, 10 * S, 100), 0, 10 * S, (0, 1)))
    bursts = [each for each in arrivals(0, 10 * S, 1.6) for _ in range(62)]
    assert not usual.is_like(fingerprint_of(bursts, 0, 10 * S, (0,)))
