"""The report: complete, offline, and safe with what people call their policies."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.sim.document import simulate_document
from tidegate.sim.goodput import Question, search_goodput, summarise_searches
from tidegate.sim.report import MOST_ADVICE, goodput_page, simulate_page, sweep_page
from tidegate.sim.result import Advice
from tidegate.sim.run import Run, simulate
from tidegate.sim.sweep import parse_grid, sweep_runs
from tidegate.workload import PolicyChoice, Scenario

MakeScenario = Callable[..., Scenario]
ODD = PolicyChoice(name="fifs", label="<b>fast</b>")


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def check_offline(page: str) -> None:
    """One copy of the library inside, every chart drawn, nothing loaded from elsewhere."""
    assert page.startswith("<!doctype html>")
    assert page.count("plotly.js v") == 1
    assert page.count("Plotly.newPlot(") >= len(headings(page))
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page)


def test_a_simulation_shows_every_policy_and_its_workers(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(duration_s=1)
    results = [simulate(Run(scenario, choice, 1, gantt_s=0.2)) for choice in (*scenario.policies, ODD)]
    page = simulate_page("small & simple", results)
    check_offline(page)
    assert "<title>small &amp; simple</title>" in page
    assert headings(page) == [
        "Goodput and attainment",
        "Latency of the answered",
        "Bad rate of each model",
        "Batch sizes",
        "Busy share of the workers",
        "Workers at the start of the window: fifs, seed 1",
        "Workers at the start of the window: one by one, seed 1",
        "Workers at the start of the window: &lt;b&gt;fast&lt;/b&gt;, seed 1",
    ]
    assert "<td><b>fast" not in page


def test_advice_is_a_table_of_each_run_in_page_and_document(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(arrivals={"rate_rps": 100})
    advised = PolicyChoice(name="symphony", options={"advice_every_s": 1}, label="<i>advised</i>")
    results = [simulate(Run(scenario, choice, 1)) for choice in (advised, ODD)]
    said = simulate_document(scenario, results)["advice"]
    assert {(each["policy"], each["seed"]) for each in said} == {("<i>advised</i>", 1)}
    assert len(said) == results[0].total.advice["count"] >= 2  # type: ignore[index]
    assert min(each["workers"] for each in said) == -1, "the load needs one of the two"
    page = simulate_page("small", results)
    (heading,) = [each for each in headings(page) if each.startswith("Advice")]
    assert heading == "Advice on the number of workers: &lt;i&gt;advised&lt;/i&gt;, seed 1"
    for each in said:
        assert f"<td>{each['at_s']:.3f}</td><td>{each['workers']:+d}</td><td>{each['reason']}</td>" in page


def test_of_much_advice_the_page_shows_the_first(make_scenario: MakeScenario) -> None:
    result = simulate(Run(make_scenario(duration_s=1), ODD, 1))
    result.advice.extend(Advice(number / 1000, 1, "more") for number in range(MOST_ADVICE + 1234))
    page = simulate_page("small", [result])
    assert page.count("<td>more</td>") == MOST_ADVICE
    assert "and 1,234 more" in page


def test_equal_results_give_equal_pages(make_scenario: MakeScenario) -> None:
    pages = {simulate_page("small", [simulate(Run(make_scenario(duration_s=1), ODD, 1))]) for _ in range(2)}
    assert len(pages) == 1


def test_a_search_shows_what_was_found_and_tried(make_scenario: MakeScenario) -> None:
    question = Question(Run(make_scenario(duration_s=1), ODD, 1), limit=0.1, precision=0.2)
    page = goodput_page("small", summarise_searches([search_goodput(question)]), 0.1)
    check_offline(page)
    assert headings(page)[:2] == [
        "Goodput at a bad rate of at most 0.1: median, least and most",
        "Bad rate over the rate",
    ]


def test_a_search_that_found_nothing_has_a_page_too(make_scenario: MakeScenario) -> None:
    models = [{"name": "m", "slo_ms": 1, "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 1}}]
    search = search_goodput(Question(Run(make_scenario(models=models, arrivals={"rate_rps": 5}), ODD, 1)))
    check_offline(goodput_page("small", summarise_searches([search]), 0.01))


def test_a_sweep_draws_a_curve_for_every_other_combination(scenario_file: Path) -> None:
    grid = parse_grid(["arrivals.rate_rps=50,100", "workers.0.count=1,2", "duration_s=1"])
    runs = sweep_runs(scenario_file, grid, policies=["fifs"])
    page = sweep_page("small", runs, [simulate(run) for run in runs])
    check_offline(page)
    assert headings(page)[0] == "Goodput over arrivals.rate_rps"
    names = set(re.findall(r'"name":("fifs[^"]*")', page))
    assert {json.loads(name) for name in names} == {f"fifs workers.0.count={count}, duration_s=1" for count in (1, 2)}


@pytest.mark.parametrize("policy", ["drops everything"])
def test_no_answers_are_no_error(make_scenario: MakeScenario, policy: str) -> None:
    models = [{"name": "m", "slo_ms": 1, "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 1}}]
    scenario = make_scenario(models=models, duration_s=1, simulation={"learn": False})  # or it would be tried
    result = simulate(Run(scenario, PolicyChoice(name="symphony", label=policy), 1))
    assert result.total.answered == 0
    assert result.total.p50_ms is None
    check_offline(simulate_page("small", [result]))
