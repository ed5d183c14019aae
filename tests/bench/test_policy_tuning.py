"""Cost and safety of the tuner: loads are drawn alike, and wrong changes and late ones are counted."""

import io

import pytest
from rich.console import Console

from bench import policy_tuning
from bench.policy_tuning import Task, draw_scenario, measure


def test_a_short_hour_and_a_short_step_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_tuning, "HOUR_S", 2.0)
    monkeypatch.setattr(policy_tuning, "candidates_of", lambda setup, plugins: [])
    for name, at_s in (("STEP_AT_S", 1.0), ("FALL_AT_S", 2.0), ("REPEAT_AT_S", 3.0), ("END_S", 4.0)):
        monkeypatch.setattr(policy_tuning, name, at_s)
    assert draw_scenario(Task(2, 0, is_step=False)) == draw_scenario(Task(2, 0, is_step=False))
    hour, step = (measure(Task(2, 0, is_step=is_step)) for is_step in (False, True))
    assert (hour["changes"], hour["wrong"]) == ([], [])
    assert hour["auto"] == hour["default"]
    assert step["best"] == "symphony"
    assert {each["good_after_s"] for each in step["steps"].values()} == {0.0}
    out = io.StringIO()
    policy_tuning.show(Console(file=out, width=200), [hour, {**hour, "wrong": ["eager"]}], [step])
    assert "0 changes in 2 h, 1 wrong" in out.getvalue()
    assert "first step: good within 30 s 1 of 1, never 0" in out.getvalue()
