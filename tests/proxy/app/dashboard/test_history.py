"""History of the dashboard: what an hour of it holds, and on which side of the SLO its p99 lies."""

import math
from bisect import bisect_left

import pytest

from tests.proxy.app.dashboard.event_buffers import MS
from tidegate.api import Model, Setup, Worker
from tidegate.observation import ClockAdvanced, LogEntry, Reducer
from tidegate_proxy.app.dashboard import history
from tidegate_proxy.app.dashboard.history import SHOWN_MODELS, HistoryReader, HistoryRing, quantile_ms
from tidegate_proxy.observability.metrics import LATENCY_BOUNDS_NS, Metrics

SETUP = Setup(
    (Model("m", 8, slo_ns=60 * MS), Model("idle", 8, slo_ns=60 * MS)),
    (Worker(0, "gpu-0", ("m",)), Worker(1, "gpu-1", ("m",))),
    (),
)


def buckets(*latencies_ms: float) -> list[int]:
    counts = [0] * (len(LATENCY_BOUNDS_NS) + 1)
    for latency_ms in latencies_ms:
        counts[bisect_left(LATENCY_BOUNDS_NS, round(latency_ms * MS))] += 1
    return counts


class Clock:
    """Instants that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s = 1_000.0
        monkeypatch.setattr("tidegate_proxy.app.dashboard.history.time.monotonic_ns", lambda: round(self.s * 1e9))
        monkeypatch.setattr("tidegate_proxy.app.dashboard.history.time.time", lambda: self.s)


def end(metrics: Metrics, *latencies_ms: float, late: int = 0, model: str = "m") -> None:
    """Count answered requests."""
    counts = metrics._of(model)
    for latency_ms in latencies_ms:
        counts.answered.add(round(latency_ms * MS))
    counts.late += late
    counts.on_time += len(latencies_ms) - late


def test_points_are_differences_of_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, metrics = Clock(monkeypatch), Metrics(SETUP, Reducer())
    end(metrics, *[10.0] * 7)
    ring = HistoryRing(metrics)
    ring.sample()
    clock.s += 5
    end(metrics, *[10.0] * 9, 80.0, late=1)
    metrics._of("m").dropped["deadline_unreachable"] += 5
    metrics.counts.workers[1].busy_ns += 4_000 * MS
    ring.sample()
    clock.s += 10  # the event loop was held up
    metrics.counts.workers[0].busy_ns += 20_000 * MS  # a stage that began before
    ring.sample()
    told = ring.history(0)
    assert told.at_s == [1_000.0, 1_005.0, 1_015.0]
    assert list(told.models) == ["m"], "one that was never asked has no curve"
    m = told.models["m"]
    assert m.on_time[1:] == pytest.approx([9 / 5, 0])
    assert m.late[1:] == pytest.approx([1 / 5, 0])
    assert m.dropped[1:] == pytest.approx([1, 0])
    assert 75 <= m.p99_ms[1] <= 100
    assert math.isnan(m.p99_ms[2])
    assert told.busiest[1:] == [0.8, 1.0], "never more than all of the time"
    assert told.busiest_worker[1:] == ["gpu-1", "gpu-0"]
    assert told.busy[1:] == [0.4, 0.5]


def test_what_bypasses_the_scheduler_has_a_rate_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, metrics = Clock(monkeypatch), Metrics(SETUP, Reducer())
    ring = HistoryRing(metrics)
    clock.s += 2
    metrics.counts.bypassed["only Triton's", "answered"] += 6
    metrics.counts.bypassed["only Triton's", "failed"] += 2
    ring.sample()
    told = ring.history(0)
    assert told.models["only Triton's"].bypassed == told.total.bypassed == [4.0]
    assert told.total.on_time == [0.0]


def test_it_holds_an_hour_and_gives_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_POINTS", 4)
    clock, metrics = Clock(monkeypatch), Metrics(SETUP, Reducer())
    ring = HistoryRing(metrics)
    for number in range(6):
        clock.s += 1
        end(metrics, *[1.0] * number)
        ring.sample()
    told = ring.history(0)
    assert (told.first, told.total.on_time) == (2, [2, 3, 4, 5])
    assert told.models["m"].on_time == [2, 3, 4, 5]
    new = ring.history(5)
    assert (new.first, new.total.on_time, new.at_s) == (5, [5], [1_006.0])
    assert ring.history(6).at_s == []
    assert ring.history(99).first == 2, "a page of a proxy that was started again gets all"


def test_a_model_that_comes_later_had_no_requests_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, metrics = Clock(monkeypatch), Metrics(SETUP, Reducer())
    ring = HistoryRing(metrics)
    for _ in range(2):
        clock.s += 1
        ring.sample()
    end(metrics, 1.0, model="new")
    clock.s += 1
    ring.sample()
    assert ring.history(0).models["new"].on_time == [0, 0, 1]


def test_many_models_count_in_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, metrics = Clock(monkeypatch), Metrics(SETUP, Reducer())
    ring = HistoryRing(metrics)
    clock.s += 1
    for number in range(SHOWN_MODELS + 3):
        end(metrics, *[1.0] * (number + 1), model=f"m{number}")
    ring.sample()
    told = ring.history(0)
    assert (len(told.models), told.more_models) == (SHOWN_MODELS, 3)
    assert "m2" not in told.models
    assert told.total.on_time == [sum(range(SHOWN_MODELS + 4))]


@pytest.mark.parametrize(
    ("latencies_ms", "on_time", "low", "high"),
    [
        ([10.0] * 100, 100, 7.5, 10),
        ([10.0] * 98 + [58.0] * 2, 100, 50, 60),  # in the bucket of the SLO, from 50 to 75 ms, but within it
        ([10.0] * 98 + [62.0] * 2, 98, 60, 75),
        ([10.0] * 98 + [30_000.0] * 2, 98, 10_000, 10_000),
    ],
)
def test_p99_is_on_the_right_side_of_the_slo(latencies_ms: list[float], on_time: int, low: float, high: float) -> None:
    assert low <= quantile_ms(buckets(*latencies_ms), (60 * MS, on_time)) <= high


def test_p99_of_nothing_and_beyond_all_bounds() -> None:
    assert math.isnan(quantile_ms(buckets()))
    assert quantile_ms(buckets(20_000.0), (30_000 * MS, 1)) <= 30_000


def test_the_intervals_of_a_log_divide_it_evenly() -> None:
    """A shorter last interval would end the curves with less load than there was."""
    first_ns, length_ns = 5, 2_400_000_000
    reader = HistoryReader(first_ns, first_ns + length_ns, {})
    reader.take(LogEntry(ClockAdvanced(first_ns + length_ns)))
    assert reader.history().at_s == pytest.approx([1.2, 2.4])
