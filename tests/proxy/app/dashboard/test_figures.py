"""Rolling figures: what happened in the last seconds, and no more."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.proxy.app.dashboard.event_buffers import MS
from tidegate.api import NEVER_NS, Batch, Request, Stage, Worker
from tidegate.engine import StartStage
from tidegate.observation.reducer import SentStage
from tidegate_proxy.app.dashboard.figures import MAX_SHAPES, SHOWN_WORST, WINDOW_NS, RollingFigures
from tidegate_proxy.app.dashboard.tick_buffer import TickBuffer

S = 1_000_000_000
OUTCOMES = ("answered", "dropped", "failed", "cancelled")
requests = st.builds(
    lambda number, model, outcome, came_ms, slo_ms, took_ms: (number, model, outcome, came_ms, slo_ms, took_ms),
    st.integers(0, 2**40),
    st.sampled_from("abc"),
    st.sampled_from(OUTCOMES),
    st.integers(0, 1000),
    st.none() | st.integers(1, 100),
    st.integers(0, 200),
)


def ran(recent: TickBuffer, batch: int, *ids: int, at_ns: int, took_ms: int = 10, shape: str = "") -> None:
    """A batch whose requests came 20 ms before it began."""
    stage = Stage(0, "m", at_ns, 10 * MS)
    begun = StartStage(Batch(batch, "m", ids, (stage,)), 0, len(ids), shape)
    ended_ns = at_ns + took_ms * MS
    recent.stage_ran(begun, at_ns, ended_ns)
    came_ns = at_ns - 20 * MS
    requests = [Request(each, "m", 1, came_ns, came_ns + 50 * MS, shape=shape) for each in ids]
    recent.answered(begun.batch, requests, ended_ns)


def test_rates_shares_and_percentiles_of_the_window() -> None:
    figures, recent = RollingFigures(0), TickBuffer()
    ran(recent, 0, 0, 1, at_ns=1 * S)
    ran(recent, 1, 2, at_ns=1 * S + 500 * MS, took_ms=40)
    recent.dropped(1 * S, Request(3, "m", 1, 0), "deadline_unreachable")
    recent.cancelled(1 * S, Request(4, "m", 1, 0))
    stages = figures.take(recent.take(), 2 * S)
    assert [(bar.start_us, bar.took_us, bar.upper_us, bar.requests, bar.first_request) for bar in stages.bars] == [
        (1_000_000, 10_000, 10_000, 2, 0),
        (1_500_000, 40_000, 10_000, 1, 2),
    ]
    assert (stages.names, stages.more) == (["m"], 0)
    rows, _ = figures.models({"m": 50.0, "idle": None}, {"m": 7})
    idle, m = rows
    assert (idle.name, idle.rate_rps, idle.on_time, idle.p50_ms) == ("idle", 0.0, None, None)
    assert (m.rate_rps, m.on_time, m.late, m.dropped, m.waiting, m.sizes) == (2.5, 0.5, 1, 1, 7, {1: 1, 2: 1})
    assert (m.p50_ms, m.p99_ms, m.mean_rows) == (30.0, 59.4, 1.5)
    figures.take(recent.take(), 2 * S + WINDOW_NS + 1)
    assert figures.models({}, {}) == ([], 0)


def test_workers_are_busy_with_what_ran_and_with_what_runs() -> None:
    figures, recent = RollingFigures(0), TickBuffer()
    ran(recent, 0, 0, at_ns=1 * S, took_ms=500)
    figures.take(recent.take(), 2 * S)
    running = SentStage(StartStage(Batch(1, "m", (1,), (Stage(1, "m", 0, 1),)), 0, 1), 1 * S)
    workers = [(Worker(0, "w0", ("m",)), "up"), (Worker(1, "w1", ("m",)), "away")]
    rows, more = figures.workers(workers, {1: running})
    assert [(row.name, row.state, row.busy, row.running) for row in rows] == [
        ("w0", "up", 0.25, 0),
        ("w1", "away", 0.5, 1),
    ]
    assert more == 0


def test_a_worker_keeps_its_lane_and_its_figures_though_a_plan_gives_it_another_number() -> None:
    figures, recent = RollingFigures(0), TickBuffer()
    figures.know([Worker(0, "gpu/0", ("m",))])
    ran(recent, 0, 0, at_ns=1 * S, took_ms=500)
    assert [bar.worker for bar in figures.take(recent.take(), 2 * S).bars] == [0]
    after = Worker(7, "gpu/0", ("m", "loaded"))
    figures.know([after])
    recent.stage_ran(StartStage(Batch(1, "m", (1,), (Stage(7, "m", 0, 1),)), 0, 1), 3 * S, 4 * S)
    assert [bar.worker for bar in figures.take(recent.take(), 4 * S).bars] == [0]
    (row,), _ = figures.workers([(after, "up")], {})
    assert (row.id, row.name, row.busy) == (0, "gpu/0", 1.5 / 4)


def test_planned_against_actual_and_shapes_are_bounded() -> None:
    figures, recent = RollingFigures(0), TickBuffer()
    for number in range(MAX_SHAPES + 50):  # clients choose them
        ran(recent, number, number, at_ns=1 * S, shape=f"x:{number}")
    for number in range(3):
        ran(recent, 1000 + number, 1000 + number, at_ns=1 * S, took_ms=15, shape="x:0")
    figures.take(recent.take(), 2 * S)
    shapes = figures.shapes()
    most = max(shapes, key=lambda shape: shape.stages)
    assert (most.shape, most.stages, most.upper_ms, most.took_ms, most.over) == ("x:0", 4, 10.0, 13.75, 0.75)
    assert len(figures._shapes[0][1]) == MAX_SHAPES


def test_the_worst_come_first_and_are_few() -> None:
    figures, recent = RollingFigures(0), TickBuffer()
    for number in range(2 * SHOWN_WORST):
        ran(recent, number, number, at_ns=1 * S, took_ms=10 + number)
    recent.dropped(1 * S, Request(900, "m", 1, 0, 5 * MS), "deadline_unreachable")
    recent.failed(1 * S, Request(901, "m", 1, 0, NEVER_NS), "no worker")
    figures.take(recent.take(), 2 * S)
    worst = figures.worst()
    assert len(worst) == SHOWN_WORST
    assert [(bad.id, bad.outcome) for bad in worst[:3]] == [(901, "failed"), (900, "dropped"), (39, "late")]
    assert worst[2].late_ms == 19.0
    figures.take(recent.take(), 100 * S)
    assert figures.worst() == []


@given(st.lists(requests, max_size=60, unique_by=lambda each: each[0]))
def test_each_request_is_counted_once_and_none_is_worse_than_those_that_are_shown(
    drawn: list[tuple[int, str, str, int, int | None, int]],
) -> None:
    figures, recent = RollingFigures(0), TickBuffer()
    ended: dict[str, Counter[str]] = {}
    latencies: dict[str, list[int]] = {}
    shown: list[tuple[int, float, int]] = []
    for number, model, outcome, came_ms, slo_ms, took_ms in drawn:
        came_ns, ended_ns = came_ms * MS, (came_ms + took_ms) * MS
        request = Request(number, model, 1, came_ns, NEVER_NS if slo_ms is None else came_ns + slo_ms * MS)
        how = outcome
        match outcome:
            case "answered":
                how = "on time" if slo_ms is None or took_ms <= slo_ms else "late"
                latencies.setdefault(model, []).append(took_ms)
                recent.answered(Batch(number, model, (number,), (Stage(0, model, 0, 1),)), [request], ended_ns)
            case "dropped":
                recent.dropped(ended_ns, request, "deadline_unreachable")
            case "failed":
                recent.failed(ended_ns, request, "no worker")
            case _:
                recent.cancelled(ended_ns, request)
        ended.setdefault(model, Counter())[how] += 1
        if how != "cancelled":
            allowed_ms = 60_000 if slo_ms is None else slo_ms
            severity = ("on time", "late", "dropped", "failed").index(how)
            shown.append((severity, took_ms / max(1e-6, took_ms + allowed_ms), number))
    figures.take(recent.take(), 2 * S)
    rows, _ = figures.models({}, {})
    assert [row.name for row in rows] == sorted(ended)
    for row in rows:
        of = ended[row.name]
        assert (row.late, row.dropped, row.failed) == (of["late"], of["dropped"], of["failed"])
        assert row.rate_rps == of.total() / 2
        timed = of.total() - of["cancelled"]
        assert row.on_time == (of["on time"] / timed if timed else None)
        took = sorted(latencies.get(row.name, []))
        assert row.p50_ms == ((took[(len(took) - 1) // 2] + took[len(took) // 2]) / 2 if took else None)
    worst = figures.worst()
    assert len(worst) == min(SHOWN_WORST, len(shown))
    by_badness = sorted((each[:2] for each in shown), reverse=True)[:SHOWN_WORST]
    of_number = {number: each for *each, number in shown}
    assert [tuple(of_number[bad.id]) for bad in worst] == by_badness


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(1, 4), st.integers(0, 99)), max_size=40)
)
def test_each_stage_is_counted_once(drawn: list[tuple[str, int, int, int]]) -> None:
    figures, recent = RollingFigures(0), TickBuffer()
    busy: Counter[int] = Counter()
    sizes: dict[str, Counter[int]] = {}
    for number, (model, worker_id, rows, took_ms) in enumerate(drawn):
        batch = Batch(number, model, (number,), (Stage(worker_id, model, 0, 50 * MS),))
        recent.stage_ran(StartStage(batch, 0, rows), S, S + took_ms * MS)
        busy[worker_id] += took_ms
        sizes.setdefault(model, Counter())[rows] += 1
    stages = figures.take(recent.take(), 2 * S)
    assert [(stages.names[bar.model], bar.worker, bar.rows, bar.took_us // 1000, bar.batch) for bar in stages.bars] == [
        (model, worker_id, rows, took_ms, number) for number, (model, worker_id, rows, took_ms) in enumerate(drawn)
    ]
    assert {row.name: Counter(row.sizes) for row in figures.models({}, {})[0]} == sizes
    workers = [(Worker(number, f"w{number}", ("m",)), "up") for number in range(3)]
    assert [row.busy for row in figures.workers(workers, {})[0]] == [
        round(min(1.0, busy[number] / 2000), 4) for number in range(3)
    ]
    shapes = figures.shapes()
    assert sum(shape.stages for shape in shapes) == len(drawn)
    assert round(sum(shape.over * shape.stages for shape in shapes)) == sum(took_ms > 50 for *_, took_ms in drawn)
