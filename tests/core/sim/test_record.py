"""The record of a run: one byte says how a request ended."""

from tidegate.sim.record import FIRST_DROP, MAX_REASONS, OTHER_REASONS, RunRecord
from tidegate.workload import draw_requests
from tidegate.workload.scenario import Scenario


def test_a_policy_that_invents_reasons_is_cut_short() -> None:
    line = {"alpha_ms": 1, "beta_ms": 1, "max_batch": 4}
    document = {
        "warmup_s": 0,
        "duration_s": 1,
        "workers": [{"count": 1}],
        "models": [{"name": "m", "profile": line}],
        "arrivals": {"process": "uniform", "rate_rps": 400},
    }
    record = RunRecord(draw_requests(Scenario.model_validate(document), seed=0))
    for number in range(400):
        record.drop(number, 0, f"request {number} is late")
    assert len(record.reasons) == MAX_REASONS + 1
    assert record.reasons[record.outcome[0] - FIRST_DROP] == "request 0 is late"
    assert record.reasons[record.outcome[399] - FIRST_DROP] == OTHER_REASONS
    record.drop(399, 0, "request 7 is late")
    assert record.reasons[record.outcome[399] - FIRST_DROP] == "request 7 is late"
