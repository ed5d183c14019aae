"""One live run, told by everybody who keeps figures: they are equal, because all of them read one reducer."""

import urllib.request
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.clients import infer_all, tensors
from tidegate.api import NEVER_NS, Advise, Batch, Request, RequestArrived, Setup
from tidegate.engine import OutcomeCounts, StartStage
from tidegate.host import Plugins
from tidegate.observation import (
    LogEntry,
    Observer,
    ObserverOptions,
    OutcomeListener,
    Reducer,
    TimelineRecorder,
    read_log,
)
from tidegate.sim.record import RunRecord
from tidegate.sim.replay import replay
from tidegate.sim.result import RunResult, summarize
from tidegate.workload import RequestSequence, Scenario
from tidegate.workload.arrivals import NS_PER_S
from tidegate_loadtest.live import LiveObservations
from tidegate_loadtest.result import RunResult as Sent
from tidegate_loadtest.slo_evaluation import judge
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
MODEL = "echo"


class Page:
    """The metrics as a client sees them."""

    def __init__(self, address: str) -> None:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        self._samples = [sample for family in families for sample in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        return sum(
            sample.value for sample in self._samples if sample.name == name and labels.items() <= sample.labels.items()
        )

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        return {
            sample.labels[label]: sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items() and sample.value
        }


class Shifted(OutcomeListener):
    """Enters a live run in a simulator's record: its instants begin with the first arrival."""

    def __init__(self, record: RunRecord, origin_ns: int) -> None:
        self._record = record
        self._origin_ns = origin_ns

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        self._record.stage_ran(effect, started_ns - self._origin_ns, ended_ns - self._origin_ns)

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        self._record.answered(batch, [self._moved(request) for request in requests], ended_ns - self._origin_ns)

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        self._record.dropped(now_ns - self._origin_ns, request, reason)

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        self._record.failed(now_ns - self._origin_ns, request, reason)

    def advised(self, now_ns: int, advice: Advise) -> None:
        self._record.advised(now_ns - self._origin_ns, advice)

    def _moved(self, request: Request) -> Request:
        due_ns = request.deadline_ns if request.deadline_ns == NEVER_NS else request.deadline_ns - self._origin_ns
        return Request(request.id, request.model, request.rows, request.arrival_ns - self._origin_ns, due_ns)


class Log:
    """What was recorded, read by others than the proxy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as lines:
            header, entries = read_log(lines)
            self.entries: list[LogEntry] = list(entries)
        self.header = header
        self.setup: Setup = header.setup
        arrivals = [entry.event.request for entry in self.entries if isinstance(entry.event, RequestArrived)]
        assert [request.id for request in arrivals] == list(range(len(arrivals))), "positions are ids"
        names = tuple(model.name for model in self.setup.models)
        self.origin_ns = min(request.arrival_ns for request in arrivals)
        self.requests = RequestSequence(
            models=names,
            slos_ns=(NEVER_NS,) * len(names),
            at_ns=array("q", [request.arrival_ns - self.origin_ns for request in arrivals]),
            model=array("q", [names.index(request.model) for request in arrivals]),
            rows=array("q", [request.rows for request in arrivals]),
            shapes=None,
            apps=None,
            times_ms=None,
        )
        self.duration_s = (self.entries[-1].event.now_ns - self.origin_ns) / NS_PER_S + 1

    def simulated(self) -> RunResult:
        """As the simulator would show it."""
        record = RunRecord(self.requests)
        reducer = Reducer(Shifted(record, self.origin_ns))
        for entry in self.entries:
            reducer.handled(entry.event, entry.effects)
        return summarize(
            record, self.requests, self.setup, policy="p", seed=0, rate_rps=1, warmup_s=0, duration_s=self.duration_s
        )

    def judged(self, monkeypatch: pytest.MonkeyPatch) -> RunResult:
        """As the load test has the stages of a live run; its clients are not asked here."""
        scenario = Scenario.model_validate(
            {
                "warmup_s": 0,
                "duration_s": self.duration_s,
                "workers": [{"count": len(self.setup.workers)}],
                "models": [
                    {"name": name, "profile": {"alpha_ms": 1, "beta_ms": 1, "max_batch": 8}}
                    for name in self.requests.models
                ],
                "arrivals": {"process": "uniform", "rate_rps": 1},
            }
        )
        monkeypatch.setattr("tidegate_loadtest.slo_evaluation.setup_of", lambda scenario, seed: self.setup)
        none = np.zeros(0, np.int64)
        sent = Sent(1, self.origin_ns, none, none, none, np.array([], dtype=str))
        seen = LiveObservations(sent, len(self.requests), {})
        return judge(scenario, self.requests, seen, policy="p", seed=0, event_log=self.path)


class Told(Observer, OutcomeListener):
    """One who watches the replay."""

    def __init__(self) -> None:
        super().__init__(ObserverOptions())
        self.reducer = Reducer(self)
        self.rows: Counter[int] = Counter()

    def handled(self, event: Any, commands: Any, effects: Any) -> None:
        self.reducer.handled(event, effects)

    def joined(self, now_ns: int, effect: StartStage, requests: Sequence[Request]) -> None:
        self.rows[effect.rows] += 1


@pytest.fixture
def run(
    triton: EmbeddedTriton, serve_here: Make, connect: Make, start_call: Make, gate: Any, tmp_path: Path
) -> SimpleNamespace:
    """Requests that are answered, on time and late, that are dropped, and whose clients leave."""
    path = tmp_path / "log"
    listen = {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
    models = {MODEL: {"slo_ms": 40.0}, "mixer": {"slo_ms": 1000.0}}
    proxy = serve_here([triton], policy="symphony", event_log=path, models=models, listen=listen)
    client = connect(proxy)
    passed = _successes(client)  # what other tests asked of models that pass, as their Triton tells

    def asked(rows: int, count: int) -> list[dict[str, Any]]:
        return [{"inputs": tensors({"X": np.full((rows, 3), index, np.float32)})} for index in range(count)]

    for _ in range(3):
        infer_all(client, MODEL, asked(1, 60))
        infer_all(client, MODEL, asked(2, 20))
        infer_all(client, "picky", asked(1, 10))
    before = proxy.engine.tally.accepted
    request = request_of("gated", {"X": np.ones((1, 3), np.float32)})
    _running = start_call(proxy, "ModelInfer", request)
    eventually(gate.somebody_waits, "the model to run")
    waiting = [start_call(proxy, "ModelInfer", request) for _ in range(7)]
    eventually(lambda: proxy.engine.tally.accepted == before + 8, "all of them to arrive")
    for call in waiting[-3:]:
        call.cancel()
    eventually(lambda: proxy.engine.tally.cancelled == 3, "them to leave")
    gate.open()
    eventually(lambda: proxy.engine.tally.accepted == proxy.engine.tally.ended, "every request to have ended")
    answered = proxy.engine.tally.answered
    eventually(lambda: _successes(client) - passed == answered, "clients to have their answers")
    page = Page(proxy.serving.metrics_address)
    statistics = {model.name: model for model in client.get_inference_statistics().model_stats}
    tally: OutcomeCounts = proxy.stop()
    return SimpleNamespace(tally=tally, page=page, statistics=statistics, log=Log(path))


def _successes(client: Any) -> int:
    return sum(model.inference_stats.success.count for model in client.get_inference_statistics().model_stats)


def test_figures_of_one_run_are_equal(run: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    tally, page, log = run.tally, run.page, run.log
    # The metrics.
    of = Counter(dict.fromkeys(("on_time", "late", "failed", "cancelled", "dropped"), 0.0))
    for outcome in of:
        of[outcome] = page.sum("tidegate_requests_total", outcome=outcome)
    assert of["on_time"] + of["late"] == tally.answered > 10
    assert (of["late"], of["failed"], of["cancelled"]) == (tally.late, tally.failed, tally.cancelled)
    assert of["dropped"] == tally.dropped.total()
    assert tally.cancelled == 3
    assert page.sum("tidegate_request_duration_seconds_count") == tally.answered

    # The log, replayed: what the engine and its policy make of it once more.
    told = Told()
    policy = Plugins.installed().make_policy(log.header.policy, log.header.setup, log.header.options)
    timelines = TimelineRecorder()
    assert replay(log.header, log.entries, policy, observers=[told], timelines=timelines).difference is None
    assert told.reducer.tally == tally
    outcomes = Counter(timeline.outcome for timeline in timelines)
    assert (outcomes["on time"] + outcomes["late"], outcomes["late"]) == (tally.answered, tally.late)
    assert (outcomes["dropped"], outcomes["cancelled"]) == (tally.dropped.total(), tally.cancelled)

    # The simulator's columns, and those of the load test.
    simulated, judged = log.simulated(), log.judged(monkeypatch)
    total = simulated.total
    assert (total.accepted, total.answered, total.late) == (tally.accepted, tally.answered, tally.late)
    assert (total.dropped, total.failed) == (dict(tally.dropped), tally.failed)
    assert total.stranded == tally.cancelled, "the simulator has no clients who leave"
    assert total.batches == page.sum("tidegate_batch_rows_count") == told.rows.total()
    assert total.batch_rows == {str(rows): count for rows, count in sorted(told.rows.items())}
    assert page.sum("tidegate_batch_rows_sum") == sum(rows * count for rows, count in told.rows.items())
    busy_s = {name: share * log.duration_s for name, share in total.busy_shares.items() if share}
    assert busy_s == pytest.approx(page.by("worker", "tidegate_worker_busy_seconds_total"), rel=1e-3)
    for ours, theirs in zip(simulated.rows, judged.rows, strict=True):
        assert (ours.batches, ours.batch_rows, ours.busy_shares, ours.touched_workers, ours.advice) == (
            *(theirs.batches, theirs.batch_rows, theirs.busy_shares, theirs.touched_workers, theirs.advice),
        )

    # Triton's own statistics, as Tidegate gives them.
    for row in simulated.rows[1:]:
        counted = run.statistics[row.model]
        stats = counted.inference_stats
        assert stats.success.count == row.answered
        assert counted.execution_count == row.batches
        if row.answered == row.accepted:  # else what was queued, and not answered, is in one of them only
            queued_s = page.sum("tidegate_queue_duration_seconds_sum", model=row.model)
            latency_s = page.sum("tidegate_request_duration_seconds_sum", model=row.model)
            assert stats.queue.ns / NS_PER_S == pytest.approx(queued_s, abs=1e-9)
            assert (stats.queue.ns + stats.compute_infer.ns) / NS_PER_S == pytest.approx(latency_s, abs=1e-9)
    assert run.statistics["picky"].inference_stats.success.count == 30
