"""How a run is judged: plain arithmetic over its rows."""

import numpy as np

from tidegate_loadtest.result import RunResult

MS = 1_000_000


def result(rows: list[tuple[float, float, float, str]], *, window_ms: float = 1000) -> RunResult:
    """A run of rows (scheduled, issued, finished in ms, status)."""
    scheduled, issued, finished, status = zip(*rows, strict=True)
    scheduled_ns, issued_ns, finished_ns = (np.array(column) * MS for column in (scheduled, issued, finished))
    return RunResult(
        window_ns=int(window_ms * MS),
        began_ns=0,
        scheduled_ns=scheduled_ns.astype(np.int64),
        issued_ns=issued_ns.astype(np.int64),
        finished_ns=finished_ns.astype(np.int64),
        status=np.array(status),
    )


def test_failures_and_late_answers_miss_the_slo() -> None:
    run = result(
        [
            (0, 0, 10, "OK"),
            (100, 100, 150, "OK"),  # exactly on time
            (200, 200, 251, "OK"),  # late
            (300, 300, 301, "UNAVAILABLE"),  # quick, but no answer
            (400, 400, 401, "UNAVAILABLE"),
            (500, 500, 900, "CLIENT_TIMEOUT"),
            (600, 600, 610, "OK"),
            (980, 980, 1010, "OK"),  # on time, but after the window
        ],
        window_ms=1000,
    )
    summary = run.summary(slo_ms=50)
    assert summary.issued == 8
    assert summary.offered_rps == 8
    assert summary.failed == {"UNAVAILABLE": 2, "CLIENT_TIMEOUT": 1}
    assert summary.attainment == 4 / 8
    assert summary.goodput_rps == 4


def test_goodput_is_per_second_of_the_window() -> None:
    assert result([(0, 0, 1, "OK"), (1, 1, 2, "OK")], window_ms=500).summary(slo_ms=5).goodput_rps == 4


def test_latency_counts_from_the_schedule_even_where_the_generator_was_late() -> None:
    late = result([(0, 40, 41, "OK")])
    assert (late.latency_ns.tolist(), late.lateness_ns.tolist()) == ([41 * MS], [40 * MS])
    assert late.summary(slo_ms=10).attainment == 0


def test_a_run_says_that_its_generator_fell_behind() -> None:
    on_time = [(float(at), at + 1.0, at + 2.0, "OK") for at in range(95)]
    late = [(float(at), at + 20.0, at + 21.0, "OK") for at in range(95, 100)]
    assert not result(on_time).fell_behind
    assert result(on_time + late).fell_behind
