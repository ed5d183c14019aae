"""The learning curve of the networks that are shipped, as a page."""

import json
from importlib.resources import files

import pytest

pytest.importorskip("numpy", reason="needs numpy, the extra `planner` of tidegate-inss")

from tests.pages import check_alone, document, headings, verdicts
from tidegate_inss.training.page import page
from tidegate_inss.training.training_record import TrainingRecord


def test_it_says_whether_the_networks_are_better_and_draws_all_that_was_judged() -> None:
    text = files("tidegate_inss").joinpath("learned/shipped/inss/record.json").read_text("utf-8")
    record = TrainingRecord.model_validate_json(text)
    shown = page(record, "2026-01-31 12:00 UTC")
    check_alone(shown, most=40_000)
    better = "better" if record.last["reward"] > record.rules["reward"] else "worse"
    assert f"the networks are {better} than rules of thumb" in verdicts(shown)[0]
    assert all(title.endswith("?") for title in headings(shown))
    assert shown.count("<path") == 9, "networks and rules in four charts, and once what they learn from"
    assert document(shown, "record.json") == json.loads(text)
