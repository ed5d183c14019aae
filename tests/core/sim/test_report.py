"""The reports: what they say and draw is what was measured."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.core.sim.conftest import make_scenario
from tests.pages import bars, chart, check_alone, document, dots, downloads, facets, headings, lines, text_of, verdicts
from tidegate.report import Colors, PageOrigin
from tidegate.report.number_format import rate, share
from tidegate.sim.chart_data import CURVE_POINTS
from tidegate.sim.charts import (
    MAX_COLORED,
    MAX_MARKS,
    MAX_PANELS,
    LoadCurve,
    LoadPoint,
    gantt_charts,
    over_load,
)
from tidegate.sim.document import goodput_document, simulate_document, sweep_document
from tidegate.sim.goodput import GoodputQuery, GoodputSearch, search_goodput, summarize_searches
from tidegate.sim.report import goodput_page, simulate_page
from tidegate.sim.result import RunResult, WorkerAdvice
from tidegate.sim.run import RunSpec, parse_grid, simulate, sweep_runs
from tidegate.sim.sweep_report import sweep_page
from tidegate.sim.tables import MAX_ADVICE
from tidegate.workload import PolicyChoice, Scenario, read_scenario

ODD = PolicyChoice(name="fifs", label="<b>fast</b>")
BUSY = {"arrivals": {"rate_rps": 700}, "duration_s": 2}
"""More than the small world bears: some requests are late."""
ORIGIN = PageOrigin("1.2.3", "2026-01-31 12:00 UTC", "tidegate simulate small.yaml")
ENDED = "How did each model's requests end?"
CURVES = "What fraction of requests is answered within which fraction of the SLO?"
OVER_TIME = "When were requests missed?"
WHERE = "Where does the time go: waiting or executing?"


def simulated(scenario: Scenario, *choices: PolicyChoice, seeds: tuple[int, ...] = (1,)) -> list[RunResult]:
    return [simulate(RunSpec(scenario, choice, seed, gantt_s=0.2)) for choice in choices for seed in seeds]


def page_of(scenario: Scenario, results: list[RunResult]) -> str:
    return simulate_page("small & simple", scenario, results, simulate_document(scenario, results), ORIGIN)


def test_a_simulation_answers_its_questions_for_every_policy() -> None:
    scenario = make_scenario(duration_s=1)
    page = page_of(scenario, simulated(scenario, *scenario.policies, ODD))
    check_alone(page)
    assert "<title>small &amp; simple</title>" in page
    assert headings(page) == [
        ENDED,
        CURVES,
        OVER_TIME,
        WHERE,
        "The figures",
        "The figures of each model",
        "How large are the batches?",
        "How busy was each worker?",
        "What ran where at the start of the window under fifs, seed 1?",
        "What ran where at the start of the window under one by one, seed 1?",
        "What ran where at the start of the window under <b>fast</b>, seed 1?",
    ]
    assert "<b>fast" not in page
    assert "None" not in page


def test_the_verdict_is_in_figures_of_the_results() -> None:
    scenario = make_scenario(**BUSY)
    results = simulated(scenario, *scenario.policies, seeds=(1, 2))
    first, second = verdicts(page_of(scenario, results))
    best, other = results[:2], results[2:]
    mean = sum(result.total.attainment for result in best) / 2
    assert mean > sum(result.total.attainment for result in other) / 2
    offered = sum(result.total.offered_rps for result in best) / 2
    assert first.startswith(f"fifs keeps {share(mean)} of {rate(offered)} requests/s within their SLOs on 2 workers")
    worst = min((sum(result.rows[at].attainment for result in best) / 2, best[0].rows[at].model) for at in (1, 2))
    assert first.endswith(f"; {worst[1]} is the worst, {share(worst[0])}.")
    least, most = sorted(result.total.attainment for result in best)
    assert f"({share(least)} to {share(most)} by seed)" in first
    assert second == f"Then one by one {share(sum(result.total.attainment for result in other) / 2)}."


def test_outcomes_are_the_counts() -> None:
    scenario = make_scenario(**BUSY)
    results = simulated(scenario, *scenario.policies)
    drawn = facets(chart(page_of(scenario, results), ENDED))
    for result in results:
        for row in result.rows[1:]:
            parts = [row.answered - row.late, row.late, sum(row.dropped.values()), row.failed + row.stranded]
            shares = [100 * part / row.accepted for part in parts if part]
            assert bars(drawn[row.policy])[row.model] == pytest.approx(shares, abs=0.011)
    assert any(row.late for result in results for row in result.rows)


def test_the_curve_crosses_the_slo_at_the_attainment() -> None:
    scenario = make_scenario(**BUSY)
    (result,) = simulated(scenario, ODD)
    page = page_of(scenario, [result])
    most = float(re.findall(r'x="100.00%"[^>]*>([\d.]+)</text>', chart(page, CURVES))[-1])
    panels = facets(chart(page, CURVES))
    assert list(panels) == [row.model for row in sorted(result.rows[1:], key=lambda row: row.attainment)]
    for row in result.rows[1:]:
        assert set(lines(panels[row.model])) == {row.model, "all models together"}
        points = lines(panels[row.model])[row.model]
        within = max(up for right, up in points if right * most <= 1 + 1e-3)
        assert within == pytest.approx(row.attainment, abs=1.5 / CURVE_POINTS)
        assert max(up for _, up in points) == pytest.approx(row.answered / row.accepted, abs=1e-3)


def test_under_several_policies_each_model_s_curves_are_told_apart_by_policy() -> None:
    scenario = make_scenario(**BUSY)
    results = simulated(scenario, *scenario.policies)
    drawn = chart(page_of(scenario, results), CURVES)
    names = {result.total.policy for result in results}
    for markup in facets(drawn).values():
        assert set(lines(markup)) == names
    assert "--model-" not in drawn, "no hue stands for a model here"


def test_among_many_models_those_that_missed_most_stand_out() -> None:
    names = [f"m{number:02}" for number in range(MAX_PANELS + 2)]
    models = [
        {"name": name, "slo_ms": 20 + number, "profile": {"alpha_ms": 1, "beta_ms": 2, "max_batch": 8}}
        for number, name in enumerate(names)
    ]
    scenario = make_scenario(**{**BUSY, "models": models, "arrivals": {"rate_rps": 900}})
    (result,) = simulated(scenario, ODD)
    by_missed = [row.model for row in sorted(result.rows[1:], key=lambda row: row.attainment)]
    page = page_of(scenario, [result])
    assert list(facets(chart(page, CURVES))) == by_missed[:MAX_PANELS]
    assert "2 more models are in the data" in chart(page, CURVES)
    over_time = chart(page, OVER_TIME)
    colored = re.findall(r'stroke="var\(--model-\d\)"[^>]*><title>(.*?)</title>', over_time)
    assert set(colored) <= set(by_missed[:MAX_COLORED])
    assert set(lines(over_time)) == {*names, "all models"}
    dashed = re.findall(r'stroke-dasharray="([\d ]+)"[^>]*><title>(.*?)</title>', over_time)
    assert {name for _, name in dashed} == set(by_missed[1:MAX_COLORED]), "hues and dashes"


def test_what_is_missed_when_adds_up() -> None:
    scenario = make_scenario(**BUSY)
    (result,) = simulated(scenario, ODD)
    assert result.detail is not None
    for each, row in zip(result.detail.models, result.rows[1:], strict=True):
        assert (sum(each.accepted_over_time), each.accepted) == (row.accepted, row.accepted)
        assert sum(each.on_time_over_time) == row.answered - row.late
    came, kept = (
        [sum(counts) for counts in zip(*(getattr(each, name) for each in result.detail.models), strict=True)]
        for name in ("accepted_over_time", "on_time_over_time")
    )
    drawn = chart(page_of(scenario, [result]), OVER_TIME)
    least = 1 - float(re.findall(r'x="-8"[^>]*>([\d.]+) %<', drawn)[0]) / 100
    points = lines(drawn)["all models"]
    assert [1 - least * (1 - up) for _, up in points] == pytest.approx(
        [part / whole for part, whole in zip(kept, came, strict=True) if whole], abs=2e-3
    )


def test_waiting_and_executing_are_the_latency() -> None:
    scenario = make_scenario(**BUSY)
    (result,) = simulated(scenario, ODD)
    parts = bars(chart(page_of(scenario, [result]), WHERE))
    assert result.detail is not None
    for row, slo_ms, each in zip(result.rows[1:], (25, 60), result.detail.models, strict=True):
        assert row.mean_waiting_ms is not None
        assert row.mean_executing_ms is not None
        mean_ms = sum(each.latencies_ms) / len(each.latencies_ms)
        assert row.mean_waiting_ms + row.mean_executing_ms == pytest.approx(mean_ms, rel=0.02)
        whole = 100 * row.mean_executing_ms / slo_ms / 1.25
        assert parts[row.model][1] == pytest.approx(min(whole, 100 - parts[row.model][0]), abs=0.02)
    everyone = result.total
    assert everyone.mean_executing_ms == pytest.approx(
        sum(row.answered * (row.mean_executing_ms or 0) for row in result.rows[1:]) / everyone.answered, rel=1e-5
    )


def test_one_request_at_a_time_waits_for_nothing() -> None:
    models = [{"name": "m", "slo_ms": 100, "profile": {"alpha_ms": 2, "beta_ms": 5, "max_batch": 1}}]
    scenario = make_scenario(models=models, arrivals={"process": "uniform", "rate_rps": 10})
    total = simulate(RunSpec(scenario, ODD, 1)).total
    assert (total.mean_waiting_ms, total.mean_executing_ms) == (0, 7)


def test_the_gantt_has_a_lane_for_every_worker_and_every_bar() -> None:
    scenario = make_scenario(workers=[{"count": 9}], arrivals={"rate_rps": 40})
    results = simulated(scenario, *scenario.policies)
    charts = gantt_charts(results, Colors(["resnet", "bert"], ["fifs", "one by one"]))
    untils = set()
    for drawn, result in zip(charts, results, strict=True):
        assert result.detail is not None
        until_us = float(re.findall(r'data-until="([\d.]+)"', drawn.body)[0])
        untils.add(until_us)
        lanes = re.findall(r'<g transform="[^"]*"><rect class="idle"[^>]*/>(.*?)</g>', drawn.body)
        assert len(lanes) == 9
        idle = [worker for worker, busy in result.total.busy_shares.items() if not busy]
        assert all(worker in drawn.body for worker in idle)
        said = Counter(re.findall(r"<title>(\w+: \d+ rows?, [^<]*)</title>", "".join(lanes)))
        assert said.total() == sum(1e6 * bar.start_s < until_us for bar in result.gantt)
        strip = re.findall(r'<path d="([^"]*)"', drawn.body)
        came = [each for each in result.detail.arrivals if each.at_ns < 1000 * until_us]
        assert sum(path.count("M") for path in strip) == 2 * len(came)
        assert all(each.outcome == "on time" for each in came)
    assert len(untils) == 1, "all of a page show the same stretch"


def test_what_is_missed_is_marked_in_the_color_of_how() -> None:
    scenario = make_scenario(**BUSY)
    (result,) = simulated(scenario, PolicyChoice(name="symphony"))
    (drawn,) = gantt_charts([result], Colors(["resnet", "bert"], ["symphony"]))
    assert result.detail is not None
    until_us = float(re.findall(r'data-until="([\d.]+)"', drawn.body)[0])
    ended = Counter(each.outcome for each in result.detail.arrivals if each.at_ns < 1000 * until_us)
    assert ended["dropped"] > 0
    (marks,) = re.findall(r'<path d="([^"]*)" stroke="var\(--dropped\)"', drawn.body)
    assert marks.count("M") == ended["dropped"]


def test_many_requests_make_no_large_page() -> None:
    scenario = read_scenario(
        Path(__file__).parents[3] / "scenarios" / "resnet50.yaml", {"duration_s": 1, "warmup_s": 0.1}
    )
    results = simulated(scenario, *(PolicyChoice(name=name) for name in ("symphony", "triton", "nexus")))
    page = page_of(scenario, results)
    check_alone(page, most=350_000)
    assert page.count("<rect") < MAX_MARKS


def test_the_busiest_worker_is_named_first() -> None:
    results = simulated(make_scenario(duration_s=1), ODD)
    busy = sorted(results[0].total.busy_shares.items(), key=lambda each: -each[1])
    drawn = bars(chart(page_of(make_scenario(duration_s=1), results), "How busy was each worker?"))
    assert len(busy) > 1
    assert list(drawn) == [worker for worker, _ in busy]
    assert [width for (width,) in drawn.values()] == [pytest.approx(100 * value, abs=0.01) for _, value in busy]


def test_the_data_are_in_the_page() -> None:
    scenario = make_scenario(duration_s=1)
    results = simulated(scenario, ODD)
    page = page_of(scenario, results)
    assert document(page, "simulate.json")["rows"] == simulate_document(scenario, results)["rows"]
    head, *rows = downloads(page)["simulate.csv"].splitlines()
    assert [row.split(",")[2] for row in rows] == ["*", "resnet", "bert"]
    assert head.split(",")[:3] == ["policy", "seed", "model"]
    assert {len(row.split(",")) for row in rows} == {len(head.split(","))}


def test_advice_is_a_table_of_each_run_in_page_and_document() -> None:
    scenario = make_scenario(arrivals={"rate_rps": 100})
    advised = PolicyChoice(name="symphony", options={"advice_every_s": 1}, label="<i>advised</i>")
    results = [simulate(RunSpec(scenario, choice, 1)) for choice in (advised, ODD)]
    said = simulate_document(scenario, results)["advice"]
    assert {(each["policy"], each["seed"]) for each in said} == {("<i>advised</i>", 1)}
    assert len(said) == results[0].total.advice["count"] >= 2  # type: ignore[index]
    assert min(each["workers"] for each in said) == -1, "the load needs one of the two"
    page = page_of(scenario, results)
    (heading,) = [each for each in headings(page) if each.startswith("Advice")]
    assert heading == "Advice on the number of workers: <i>advised</i>, seed 1"
    for each in said:
        cells = (f"{each['at_s']:.3f}", f"{each['workers']:+d}", str(each["reason"]))
        assert "".join(cells) in text_of(page)


def test_of_much_advice_the_page_shows_the_first() -> None:
    scenario = make_scenario(duration_s=1)
    result = simulate(RunSpec(scenario, ODD, 1))
    result.advice.extend(WorkerAdvice(number / 1000, 1, "more") for number in range(MAX_ADVICE + 1234))
    page = page_of(scenario, [result])
    assert page.count(">more</td>") == MAX_ADVICE
    assert "and 1,234 more" in page


def test_equal_results_give_equal_pages() -> None:
    scenario = make_scenario(duration_s=1)
    assert len({page_of(scenario, simulated(scenario, ODD)) for _ in range(2)}) == 1


@pytest.fixture(scope="module")
def short() -> Scenario:
    return make_scenario(duration_s=1)


@pytest.fixture(scope="module")
def quick(short: Scenario) -> list[GoodputSearch]:
    """Searches whose runs end as soon as too many requests were missed."""
    return searched(short, whole=False)


@pytest.fixture(scope="module")
def whole(short: Scenario) -> list[GoodputSearch]:
    """The same with every run to its end."""
    return searched(short, whole=True)


def searched(scenario: Scenario, *, whole: bool) -> list[GoodputSearch]:
    runs = [RunSpec(scenario, choice, seed) for choice in (*scenario.policies, ODD) for seed in (1, 2)]
    return [search_goodput(GoodputQuery(run, limit=0.1, tolerance=0.4, whole=whole)) for run in runs]


def goodput_shown(scenario: Scenario, searches: list[GoodputSearch], limit: float = 0.1) -> str:
    found = summarize_searches(searches)
    written = goodput_document(scenario, found, limit=limit, tolerance=0.4)
    return goodput_page("small", found, limit, written, ORIGIN)


@pytest.mark.slow
def test_a_search_shows_all_rates_that_were_tried_through_the_limit(
    short: Scenario, whole: list[GoodputSearch]
) -> None:
    page = goodput_shown(short, whole)
    check_alone(page)
    drawn = dots(chart(page, "At which load does the worst model miss too many deadlines?"))
    probes = [probe for search in whole for probe in search.probes]
    assert len(drawn) == len(probes)
    assert all(probe.worst_bad_rate is not None for probe in probes)
    for search in whole:
        assert any(probe.good for probe in search.probes)
        assert any(not probe.good for probe in search.probes), "every one is seen to fail"
    assert len(downloads(page)["goodput.csv"].splitlines()) == 1 + len(probes)


def test_the_verdict_of_a_search_is_what_was_found(short: Scenario, quick: list[GoodputSearch]) -> None:
    best, *others = sorted(summarize_searches(quick), key=lambda each: -each.median_rps)
    first, second = verdicts(goodput_shown(short, quick))
    assert first.startswith(
        f"{best.policy} carries {rate(best.median_rps)} requests/s with at most 10 % of every model's"
    )
    assert (f"({rate(best.min_rps)} to {rate(best.max_rps)} by seed)" in first) == (best.min_rps < best.max_rps)
    for other in others:
        assert (
            f"{other.policy} {rate(other.median_rps)} ({share(other.median_rps / best.median_rps)} of that)" in second
        )


def test_to_run_failures_to_their_end_finds_the_same(quick: list[GoodputSearch], whole: list[GoodputSearch]) -> None:
    for one, other in zip(quick, whole, strict=True):
        assert (other.rate_rps, other.bounded, other.best and other.best.rows) == (
            one.rate_rps,
            one.bounded,
            one.best and one.best.rows,
        )
        assert [probe.rate_rps for probe in other.probes][: len(one.probes)] == [probe.rate_rps for probe in one.probes]


def test_a_search_that_found_nothing_has_a_page_too() -> None:
    models = [{"name": "m", "slo_ms": 1, "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 1}}]
    scenario = make_scenario(models=models, arrivals={"rate_rps": 5})
    page = goodput_shown(scenario, [search_goodput(GoodputQuery(RunSpec(scenario, ODD, 1)))], 0.01)
    check_alone(page)
    assert verdicts(page)[0].startswith("No policy carries any rate that was tried with at most 1 % of")


def sweep_shown(path: Path, *grid: str) -> tuple[list[RunSpec], list[RunResult], str]:
    runs = sweep_runs(path, parse_grid(grid), policies=["fifs"])
    results = [simulate(run) for run in runs]
    return runs, results, sweep_page("small", runs, results, sweep_document(read_scenario(path), runs, results), ORIGIN)


def test_a_sweep_of_one_field_draws_a_curve(scenario_file: Path) -> None:
    runs, results, page = sweep_shown(scenario_file, "arrivals.rate_rps=50,100", "duration_s=1")
    title = "How does goodput change with arrivals.rate_rps?"
    drawn = lines(chart(page, title))
    top = float(re.findall(r'x="-8"[^>]*>([\d.,]+)<', chart(page, title))[-1])
    (curve,) = drawn.values()
    assert [run.changes["arrivals.rate_rps"] for run in runs] == [50, 100]
    assert [up * top for _, up in curve] == pytest.approx([result.total.goodput_rps for result in results], rel=0.01)


def test_a_sweep_of_two_fields_draws_heat_maps(scenario_file: Path) -> None:
    runs, results, page = sweep_shown(scenario_file, "arrivals.rate_rps=50,900", "workers.0.count=1,2", "duration_s=1")
    check_alone(page)
    drawn = chart(page, "How does the worst model's attainment change with arrivals.rate_rps and workers.0.count?")
    cells = {
        tuple(map(int, found[:2])): found[2:]
        for found in re.findall(
            r'<td( class="kept")? style="background:([^"]*)" title="fifs, arrivals.rate_rps=(\d+), '
            r'workers.0.count=(\d+): [^"]*">([^<]*)</td>',
            drawn,
        )
        for found in [(found[2], found[3], found[0], found[1], found[4])]
    }
    attained = {
        (run.changes["arrivals.rate_rps"], run.changes["workers.0.count"]): 1 - result.total.worst_bad_rate
        for run, result in zip(runs, results, strict=True)
    }
    assert len(cells) == len(attained) == 4
    for at, value in attained.items():
        kept, _, shown = cells[at]
        assert f"{shown} %" == share(value)
        assert bool(kept) == (value >= 0.99), "what keeps the limit is marked without color, too"
    worst, best = min(attained, key=attained.__getitem__), max(attained, key=attained.__getitem__)
    assert "--heat-high) 100%" in cells[best][1]
    assert "--heat-middle) 0%" in cells[worst][1]
    head, *rows = downloads(page)["sweep.csv"].splitlines()
    assert head.startswith("arrivals.rate_rps,workers.0.count,duration_s,policy,seed,model")
    assert len(rows) == len(runs) * 3


def test_a_sweep_says_at_which_values_the_promise_is_kept(scenario_file: Path) -> None:
    _runs, results, page = sweep_shown(scenario_file, "arrivals.rate_rps=50,900", "duration_s=1")
    assert [result.total.worst_bad_rate <= 0.01 for result in results] == [True, False]
    assert verdicts(page) == ["fifs keeps 99 % of every model's requests on time at arrivals.rate_rps = 50."]


def test_values_that_are_no_numbers_are_named(scenario_file: Path) -> None:
    *_, page = sweep_shown(scenario_file, "policies.0.options={max_rows: 1},{max_rows: 4}", "duration_s=1")
    drawn = chart(page, "How does goodput change with policies.0.options?")
    assert "{&#x27;max_rows&#x27;: 4}" in drawn


@pytest.mark.parametrize("policy", ["drops everything"])
def test_no_answers_are_no_error(policy: str) -> None:
    models = [{"name": "m", "slo_ms": 1, "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 1}}]
    scenario = make_scenario(models=models, duration_s=1, simulation={"learn": False})  # or it would be tried
    results = simulated(scenario, PolicyChoice(name="symphony", label=policy))
    assert results[0].total.answered == 0
    assert results[0].total.p50_ms is None
    page = page_of(scenario, results)
    check_alone(page)
    first, second = verdicts(page)
    assert first.startswith("drops everything keeps 0.0 % of")
    assert second == "The SLO of m, 1 ms, is shorter than one row takes by its profile, 6 ms."


def test_without_slos_nothing_is_promised() -> None:
    models = [{"name": "m", "profile": {"alpha_ms": 1, "beta_ms": 5, "max_batch": 4}}]
    scenario = make_scenario(models=models, duration_s=1)
    page = page_of(scenario, simulated(scenario, ODD))
    assert "answered (no model has an SLO)" in verdicts(page)[0]
    assert CURVES not in headings(page)


def test_labels_of_near_rates_stand_one_above_the_other() -> None:
    curves = [
        LoadCurve(name, [LoadPoint(900, 1, 1, 5), LoadPoint(1000, 0.5, 1, 9)], at)
        for name, at in (("a", 992), ("b", 916))
    ]
    drawn = over_load(curves, 0.01, Colors((), ["a", "b"])).html()
    (of_b,), (of_a,) = (re.findall(rf'y="([\d.]+)"[^>]*>{rate}</text>', drawn) for rate in (916, 992))
    assert float(of_b) - float(of_a) == 15
