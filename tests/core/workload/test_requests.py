"""The requests of a scenario: as many as asked for, as described, and each figure from a stream of its own."""

from pathlib import Path
from typing import Any

import pytest

from tidegate.api import NEVER_NS, Request
from tidegate.workload import RequestSequence, Scenario, TraceError, draw_requests, mean_rate_rps, read_trace

MS, S = 1_000_000, 1_000_000_000
LINE = {"alpha_ms": 1, "beta_ms": 5, "max_batch": 16}


def scenario(folder: Path = Path(), **changes: Any) -> Scenario:
    document = {
        "warmup_s": 1,
        "duration_s": 9,
        "workers": [{"count": 1}],
        "models": [{"name": "a", "slo_ms": 25, "profile": LINE}, {"name": "b", "profile": LINE}],
        "arrivals": {"rate_rps": 400},
        **changes,
    }
    return Scenario.model_validate(document, context={"folder": folder})


def models(**changes: Any) -> list[dict[str, Any]]:
    return [{"name": "a", "profile": LINE, **changes}, {"name": "b", "profile": LINE}]


def of(sequence: RequestSequence, model: str) -> list[Request]:
    return [request for request in sequence if request.model == model]


def test_requests_come_in_order_numbered_through_with_their_deadlines() -> None:
    sequence = draw_requests(scenario(), seed=1)
    requests = list(sequence)
    assert len(requests) == len(sequence) == pytest.approx(4000, rel=0.05)
    assert [request.id for request in requests] == list(range(len(requests)))
    instants = [request.arrival_ns for request in requests]
    assert instants == sorted(instants)
    assert 9.9 * S < instants[-1] < 10 * S
    assert {request.deadline_ns - request.arrival_ns for request in requests if request.model == "a"} == {25 * MS}
    assert {request.deadline_ns for request in requests if request.model == "b"} == {NEVER_NS}
    assert {(request.rows, request.app) for request in requests} == {(1, "")}


def test_arrivals_divide_by_share_and_popularity() -> None:
    sequence = draw_requests(scenario(models=models(weight=3)), seed=1)
    assert len(of(sequence, "a")) == pytest.approx(3000, rel=0.06)
    sequence = draw_requests(scenario(popularity={"law": "zipf", "exponent": 2}), seed=1)
    assert len(of(sequence, "a")) == pytest.approx(3200, rel=0.06)
    assert not of(draw_requests(scenario(models=models(weight=0)), seed=1), "a")


def test_the_load_compresses_time_and_changes_nothing_else() -> None:
    slow, fast = draw_requests(scenario(), 1), draw_requests(scenario(), 1, load=2.0)
    assert len(fast) == pytest.approx(2 * len(slow), rel=0.05)
    halved = [request.arrival_ns / 2 for request in of(slow, "a")]
    assert [request.arrival_ns for request in of(fast, "a")[: len(halved)]] == pytest.approx(halved, abs=1)


@pytest.mark.parametrize(("correlation", "share"), [(1, 1.0), (-1, 0.0), (0, 0.5), (0.7, 0.75)])
def test_features_go_with_latency_by_rank(correlation: float, share: float) -> None:
    """Of two requests, the one that takes longer has the larger feature as often as the correlation says."""
    times = {"distribution": "lognormal", "mean": 5, "cv": 2}
    feature = {"values": {"distribution": "lognormal", "mean": 300, "cv": 1}, "correlation": correlation}
    sequence = draw_requests(scenario(models=models(time_ms=times, feature=feature)), seed=1)
    plain = draw_requests(scenario(models=models(time_ms=times)), seed=1)
    assert sequence.times_ms == plain.times_ms, "the feature changes nothing else"
    assert sequence.times_ms is not None
    pairs = [(sequence.times_ms[request.id], request.feature) for request in of(sequence, "a")]
    assert sum(value for _, value in pairs) / len(pairs) == pytest.approx(300, rel=0.1)
    one, other = pairs[::2], pairs[1::2]
    agree = [(a[0] < b[0]) == (a[1] < b[1]) for a, b in zip(one, other, strict=False)]
    assert sum(agree) / len(agree) == pytest.approx(share, abs=0.05)
    assert {request.feature for request in of(sequence, "b")} == {0.0}
    assert {request.feature for request in plain} == {0.0}


def test_features_of_constant_times_are_drawn_all_the_same() -> None:
    feature = {"values": {"distribution": "table", "values": [1, 2, 3]}}
    sequence = draw_requests(scenario(models=models(feature=feature)), seed=1)
    assert {request.feature for request in of(sequence, "a")} == {1.0, 2.0, 3.0}


def test_rows_times_and_applications_are_as_described() -> None:
    apps = [
        {"name": "short", "weight": 3, "rows": 2, "time_ms": 7},
        {"name": "long", "rows": {"distribution": "lognormal", "mean": 8, "cv": 2}},
    ]
    sequence = draw_requests(scenario(models=models(apps=apps, time_ms=1)), seed=1)
    assert sequence.times_ms is not None
    own = of(sequence, "a")
    short = [request for request in own if request.app == "short"]
    assert len(short) == pytest.approx(0.75 * len(own), rel=0.06)
    assert {(request.rows, sequence.times_ms[request.id]) for request in short} == {(2, 7.0)}
    long = [request for request in own if request.app == "long"]
    assert {sequence.times_ms[request.id] for request in long} == {1.0}
    assert min(request.rows for request in long) == 1
    assert max(request.rows for request in long) == 16, "never more than fits a batch"
    assert {(request.rows, request.app, sequence.times_ms[request.id]) for request in of(sequence, "b")} == {
        (1, "", 0.0)
    }


def test_streams_do_not_move_each_other() -> None:
    plain = draw_requests(scenario(), seed=1)
    rows = {"distribution": "table", "values": [1, 2, 3]}
    sized = draw_requests(scenario(models=models(rows=rows)), seed=1)
    timed = draw_requests(
        scenario(models=models(rows=rows, time_ms={"distribution": "lognormal", "mean": 1, "cv": 1})), 1
    )
    other = draw_requests(scenario(models=models(rows=rows)), seed=2)
    assert plain.at_ns == sized.at_ns == timed.at_ns != other.at_ns
    assert sized.rows == timed.rows
    busier_b = draw_requests(
        scenario(models=[*models()[:1], {**models()[1], "weight": 1.0}], arrivals={"rate_rps": 400}), 1
    )
    assert [r.arrival_ns for r in of(busier_b, "a")] == [r.arrival_ns for r in of(plain, "a")]


def test_steps_count_from_the_start_of_the_window() -> None:
    steps = [{"from_s": 0, "rate_rps": 100}, {"from_s": 4, "rate_rps": 1000}]
    changed = scenario(arrivals={"rate_rps": steps})
    instants = draw_requests(changed, seed=1).at_ns
    assert sum(at_ns < 5 * S for at_ns in instants) == pytest.approx(500, rel=0.15)
    assert sum(at_ns >= 5 * S for at_ns in instants) == pytest.approx(5000, rel=0.06)
    assert mean_rate_rps(changed, load=2) == pytest.approx(2 * (4 * 100 + 5 * 1000) / 9)


def trace(tmp_path: Path, text: str, **options: object) -> Scenario:
    (tmp_path / "arrivals.txt").write_text(text)
    read_trace.cache_clear()
    return scenario(tmp_path, arrivals={"process": "trace", "file": "arrivals.txt", **options})


def test_a_trace_begins_again_when_it_ends(tmp_path: Path) -> None:
    repeated = trace(tmp_path, "100 a\n101 b\n103 a\n")  # lasts 4.5 s: its mean gap is 1.5 s
    sequence = draw_requests(repeated, seed=1)
    assert [at_ns / S for at_ns in sequence.at_ns] == [0, 1, 3, 4.5, 5.5, 7.5, 9.0]
    assert [request.model for request in sequence] == list("abaabaa")
    assert mean_rate_rps(repeated) == pytest.approx(3 / 4.5)


def test_a_trace_is_scaled_and_begun_where_asked(tmp_path: Path) -> None:
    sequence = draw_requests(trace(tmp_path, "100 a\n101 b\n103 a\n", scale=2, start_s=1), seed=1, load=0.5)
    assert [at_ns / S for at_ns in sequence.at_ns][:4] == [0, 2, 3.5, 4.5]
    assert draw_requests(trace(tmp_path, "0\n1\n", scale=2), seed=1).at_ns[1] == S // 2


def test_arrivals_without_a_model_divide_by_popularity(tmp_path: Path) -> None:
    lines = "\n".join(str(number / 500) for number in range(5000))
    sequence = draw_requests(trace(tmp_path, lines), seed=1)
    assert len(of(sequence, "a")) == pytest.approx(2500, rel=0.06)


def test_functions_of_azure_go_round_the_models(tmp_path: Path) -> None:
    rows = ["app,func,end_timestamp,duration"]
    rows += [f"x,often,{at},0" for at in range(6)] + [f"x,sometimes,{at}.1,0" for at in range(3)] + ["x,rarely,1.2,0"]
    sequence = draw_requests(trace(tmp_path, "\n".join(rows), format="azure-functions-2021"), seed=1)
    first_round = list(sequence)[:10]
    assert [request.model for request in first_round].count("a") == 7, "the first and the third function"


def test_an_unknown_model_in_a_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"arrivals\.txt: 'c' is no model of the scenario \(it has a, b\)"):
        draw_requests(trace(tmp_path, "1 a\n2 c\n"), seed=1)
