"""Rolling figures: what happened in the last seconds, and no more."""

from tests.proxy.live_page.moments import MS
from tidegate.api import NEVER, Batch, Leg, Request, Worker
from tidegate.engine import StartLeg
from tidegate.observation.reducer import SentLeg
from tidegate_proxy.live_page.figures import MOST_SHAPES, SHOWN_WORST, WINDOW_NS, Figures
from tidegate_proxy.live_page.recent import Recent

S = 1_000_000_000


def ran(recent: Recent, batch: int, *ids: int, at_ns: int, took_ms: int = 10, shape: str = "") -> None:
    """A batch whose requests came 20 ms before it began."""
    leg = Leg(0, "m", at_ns, 10 * MS)
    begun = StartLeg(Batch(batch, "m", ids, (leg,)), 0, len(ids), shape)
    ended_ns = at_ns + took_ms * MS
    recent.leg_ran(begun, at_ns, ended_ns)
    came_ns = at_ns - 20 * MS
    requests = [Request(each, "m", 1, came_ns, came_ns + 50 * MS, shape=shape) for each in ids]
    recent.answered(begun.batch, requests, ended_ns)


def test_rates_shares_and_percentiles_of_the_window() -> None:
    figures, recent = Figures(0), Recent()
    ran(recent, 0, 0, 1, at_ns=1 * S)
    ran(recent, 1, 2, at_ns=1 * S + 500 * MS, took_ms=40)
    recent.dropped(1 * S, Request(3, "m", 1, 0), "deadline")
    recent.cancelled(1 * S, Request(4, "m", 1, 0))
    legs = figures.take(recent, 2 * S)
    assert [(bar.start_us, bar.took_us, bar.planned_us, bar.requests, bar.first_request) for bar in legs.bars] == [
        (1_000_000, 10_000, 10_000, 2, 0),
        (1_500_000, 40_000, 10_000, 1, 2),
    ]
    assert (legs.names, legs.more) == (["m"], 0)
    rows, _ = figures.models({"m": 50.0, "idle": None}, {"m": 7})
    idle, m = rows
    assert (idle.name, idle.rate_rps, idle.in_time, idle.p50_ms) == ("idle", 0.0, None, None)
    assert (m.rate_rps, m.in_time, m.late, m.dropped, m.waiting, m.sizes) == (2.5, 0.5, 1, 1, 7, {1: 1, 2: 1})
    assert (m.p50_ms, m.p99_ms, m.mean_rows) == (30.0, 59.4, 1.5)
    figures.take(recent, 2 * S + WINDOW_NS + 1)
    assert figures.models({}, {}) == ([], 0)


def test_workers_are_busy_with_what_ran_and_with_what_runs() -> None:
    figures, recent = Figures(0), Recent()
    ran(recent, 0, 0, at_ns=1 * S, took_ms=500)
    figures.take(recent, 2 * S)
    running = SentLeg(StartLeg(Batch(1, "m", (1,), (Leg(1, "m", 0, 1),)), 0, 1), 1 * S)
    workers = [(Worker(0, "w0", ("m",)), "up"), (Worker(1, "w1", ("m",)), "away")]
    rows, more = figures.workers(workers, {1: running})
    assert [(row.name, row.state, row.busy, row.running) for row in rows] == [
        ("w0", "up", 0.25, 0),
        ("w1", "away", 0.5, 1),
    ]
    assert more == 0


def test_a_worker_keeps_its_lane_and_its_figures_though_a_plan_gives_it_another_number() -> None:
    figures, recent = Figures(0), Recent()
    figures.know([Worker(0, "gpu/0", ("m",))])
    ran(recent, 0, 0, at_ns=1 * S, took_ms=500)
    assert [bar.worker for bar in figures.take(recent, 2 * S).bars] == [0]
    after = Worker(7, "gpu/0", ("m", "loaded"))
    figures.know([after])
    recent.leg_ran(StartLeg(Batch(1, "m", (1,), (Leg(7, "m", 0, 1),)), 0, 1), 3 * S, 4 * S)
    assert [bar.worker for bar in figures.take(recent, 4 * S).bars] == [0]
    (row,), _ = figures.workers([(after, "up")], {})
    assert (row.id, row.name, row.busy) == (0, "gpu/0", 1.5 / 4)


def test_planned_against_actual_and_shapes_are_bounded() -> None:
    figures, recent = Figures(0), Recent()
    for number in range(MOST_SHAPES + 50):  # clients choose them
        ran(recent, number, number, at_ns=1 * S, shape=f"x:{number}")
    for number in range(3):
        ran(recent, 1000 + number, 1000 + number, at_ns=1 * S, took_ms=15, shape="x:0")
    figures.take(recent, 2 * S)
    shapes = figures.shapes()
    most = max(shapes, key=lambda shape: shape.legs)
    assert (most.shape, most.legs, most.planned_ms, most.took_ms, most.over) == ("x:0", 4, 10.0, 13.75, 0.75)
    assert len(figures._shapes[0][1]) == MOST_SHAPES


def test_the_worst_come_first_and_are_few() -> None:
    figures, recent = Figures(0), Recent()
    for number in range(2 * SHOWN_WORST):
        ran(recent, number, number, at_ns=1 * S, took_ms=10 + number)
    recent.dropped(1 * S, Request(900, "m", 1, 0, 5 * MS), "deadline")
    recent.failed(1 * S, Request(901, "m", 1, 0, NEVER), "no worker")
    figures.take(recent, 2 * S)
    worst = figures.worst()
    assert len(worst) == SHOWN_WORST
    assert [(bad.id, bad.outcome) for bad in worst[:3]] == [(901, "failed"), (900, "dropped"), (39, "late")]
    assert worst[2].late_ms == 19.0
    figures.take(recent, 100 * S)
    assert figures.worst() == []
