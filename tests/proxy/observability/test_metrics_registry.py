"""The numbers as Prometheus reads them."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.proxy.observability.followed import Followed
from tidegate.api import Advise, Batch, Drop, Model, Request, RequestArrived, Setup, Stage, StageFinished, Worker
from tidegate.engine import ClockAdvanced, EngineRestarted, StartStage
from tidegate.observation import ChangeProgressed
from tidegate_proxy.observability.metrics import Metrics
from tidegate_proxy.observability.metrics_registry import ADVICE_HOLDS_S, CHANGE_STATES, registry_of
from tidegate_proxy.transport.client_bounds import ClientBounds

MS, S = 1_000_000, 1_000_000_000
SETUP = Setup((Model("m", 4), Model('odd "name"\\', 4)), (Worker(0, "a:1/0", ("m",)),), ())


def _page(metrics: Metrics, now_ns: int = 0) -> str:
    return generate_latest(registry_of(metrics.snapshot(), "fifs", now_ns, {}, ClientBounds())).decode()


def _samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "no series twice"
    return found


def _value(page: str, name: str, **labels: str) -> float:
    return _samples(page)[name, frozenset(labels.items())]


def _busy_metrics() -> Metrics:
    metrics = Followed(SETUP)
    for number in range(3):
        metrics.handled(RequestArrived(0, Request(number, "m", 1, 0, 20 * MS)), [], 4000)
    start = StartStage(Batch(0, "m", (0, 1), (Stage(0, "m", 0, MS),)), 0, 2)
    metrics.handled(ClockAdvanced(6 * MS), [start, Drop(2, "deadline_unreachable")], 40_000)
    metrics.handled(StageFinished(9 * MS, 0, 0, 0, 6 * MS, 9 * MS), [Advise(-3)], 4000)
    return metrics


def test_what_happened_is_on_the_page() -> None:
    page = _page(_busy_metrics())
    assert _value(page, "tidegate_requests_total", model="m", outcome="on_time", reason="") == 2
    assert _value(page, "tidegate_requests_total", model="m", outcome="dropped", reason="deadline_unreachable") == 1
    assert _value(page, "tidegate_queue_duration_seconds_bucket", model="m", le="0.005") == 0
    assert _value(page, "tidegate_queue_duration_seconds_bucket", model="m", le="0.0075") == 2
    assert _value(page, "tidegate_queue_duration_seconds_sum", model="m") == 0.012
    assert _value(page, "tidegate_request_duration_seconds_count", model="m") == 2
    assert _value(page, "tidegate_batch_rows_bucket", model="m", le="1") == 0
    assert _value(page, "tidegate_batch_rows_bucket", model="m", le="2") == 1
    assert _value(page, "tidegate_batch_requests_sum", model="m") == 2
    assert _value(page, "tidegate_queue_length", model="m") == 0
    assert _value(page, "tidegate_worker_busy_seconds_total", worker="a:1/0") == 0.003
    assert _value(page, "tidegate_worker_up", worker="a:1/0") == 1
    assert _value(page, "tidegate_scheduling_duration_seconds_bucket", le="5e-06") == 4
    assert _value(page, "tidegate_scheduling_duration_seconds_bucket", le="5e-05") == 5
    assert _value(page, "tidegate_policy_fallbacks_total") == 0


def test_advice_stands_for_a_while() -> None:
    metrics = _busy_metrics()
    while_it_stands, later = _page(metrics), _page(metrics, 10 * MS + round(ADVICE_HOLDS_S * 1e9))
    assert _value(while_it_stands, "tidegate_worker_recommendation", direction="down") == 3
    assert _value(while_it_stands, "tidegate_worker_recommendation", direction="up") == 0
    assert _value(later, "tidegate_worker_recommendation", direction="down") == 0


def test_names_are_escaped() -> None:
    assert _value(_page(Followed(SETUP)), "tidegate_queue_length", model='odd "name"\\') == 0


def test_what_is_written_out_is_what_was_when_it_was_copied() -> None:
    metrics = Followed(SETUP)
    registry = registry_of(metrics.snapshot(), "fifs", 0, {}, ClientBounds())
    metrics.handled(ClockAdvanced(0), [EngineRestarted("fifs", "a test")], 0)
    assert _value(generate_latest(registry).decode(), "tidegate_engine_restarts_total") == 0


def test_changes_of_the_layout_are_counted_and_timed() -> None:
    metrics = Followed(SETUP)
    assert "tidegate_layout" not in _page(metrics)  # nothing changes it
    metrics.counts.layout_gpus = 2.0
    assert _value(_page(metrics), "tidegate_layout_gpus") == 2
    for event in (
        ChangeProgressed(1 * S, 1, "starting", gpus=2.0),
        ChangeProgressed(3 * S, 1, "switched", gpus=1.5),
        ChangeProgressed(4 * S, 1, "done", gpus=1.5),
        ChangeProgressed(5 * S, 2, "starting", gpus=1.5),
        ChangeProgressed(7 * S, 2, "undone", gpus=1.5, reason="out of memory"),
        ChangeProgressed(8 * S, 0, "refused", gpus=1.5, reason="no gain"),
    ):
        metrics.handled(event, [], 0)
    page = _page(metrics)
    changes = {state: _value(page, "tidegate_layout_changes_total", state=state) for state in CHANGE_STATES}
    assert changes == {"starting": 2, "switched": 1, "done": 1, "undone": 1, "proposed": 0, "refused": 1}
    assert _value(page, "tidegate_layout_change_duration_seconds_sum", outcome="done") == 3
    assert _value(page, "tidegate_layout_change_duration_seconds_sum", outcome="undone") == 2
    assert _value(page, "tidegate_layout_gpus") == 1.5
