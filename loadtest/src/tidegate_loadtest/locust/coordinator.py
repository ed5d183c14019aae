"""Coordinator of a Locust test, alone or as the master of workers: splits the load, gathers the outcomes."""

import logging
import time
from dataclasses import dataclass
from typing import Any

import gevent
import numpy as np
from gevent.event import AsyncResult
from locust.env import Environment
from locust.exception import StopTest
from locust.rpc import Message
from locust.runners import MasterRunner
from numpy.typing import NDArray

from tidegate.host import PluginError
from tidegate.workload import ScenarioError, TraceError
from tidegate.workload.arrivals import NS_PER_S
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.locust.load import Load, LoadShare
from tidegate_loadtest.locust.options import Options, target_of
from tidegate_loadtest.locust.triton import TritonConnection, connect, finished
from tidegate_loadtest.locust.worker import DONE, FAILED, GO, LISTENS, READY, ROWS, SHARE, OutcomeRows
from tidegate_loadtest.scenario_requests import ScenarioRequests
from tidegate_loadtest.server_stats import ServerUsage, StatsSnapshot, count_instances, snapshot_of

USER_ERRORS = (LoadTestError, ScenarioError, TraceError, PluginError, OSError)
"""Errors that a user can remedy."""
LOCAL_WORKER = "local"
"""Locust's name for the only worker of a test without workers."""
READY_WITHIN_S = 60.0
BEGIN_IN_S = 0.5
"""Delay in seconds from the start message to the first request: the message must reach every worker before."""
logger = logging.getLogger(__name__)
Column = NDArray[np.int64]


@dataclass(frozen=True)
class GatheredRows:
    """Outcomes of the requests that have ended, one row each, in no order."""

    columns: dict[str, Column]
    """Columns of `OutcomeRows`."""
    senders: list[str]
    """Worker that sent each request."""
    statuses: list[str]
    """Texts that the column `status` refers to by index."""
    messages: dict[str, str]
    """First message of each status."""


class Coordinator:
    """Coordinator for the lifetime of a Locust process; a web page may run many tests."""

    def __init__(self, environment: Environment, options: Options) -> None:
        """Register with Locust; send nothing before a test is started."""
        self.environment = environment
        self.options = options
        self.load: Load | None = None
        self.target = ""
        self.running = False
        self.failed = ""
        """Reason why the test could not begin; "" if it did."""
        self.stopped_ns: int | None = None
        """Instant at which it was stopped, in nanoseconds of the measured window; None: it ran to its end."""
        self.usage: dict[str, ServerUsage] = {}
        """Server's usage in the measured window, by model; empty if it keeps no statistics."""
        self._connection: TritonConnection | None = None
        self._ready: AsyncResult[bool] = AsyncResult()
        self._listening: set[str] = set()
        self._shares: dict[str, LoadShare] = {}
        """Shares not sent yet, by worker, which may not listen yet."""
        self._to_be_ready: set[str] = set()
        self._sending: set[str] = set()
        self._window_unix_ns = 0
        self._chunks: list[tuple[str, dict[str, Any]]] = []
        self._greenlets: list[gevent.Greenlet] = []
        runner = environment.runner
        assert runner is not None
        if not isinstance(runner, MasterRunner):
            self._listening.add(LOCAL_WORKER)
        runner.register_message(LISTENS, self._on_listens)
        runner.register_message(READY, self._on_ready)
        runner.register_message(FAILED, self._on_failed)
        runner.register_message(ROWS, self._on_rows)
        runner.register_message(DONE, self._on_done)
        environment.events.test_start.add_listener(self._on_test_start)
        environment.events.test_stop.add_listener(self._on_test_stop)

    def check(self) -> None:
        """Validate the test before any load is sent: read files, connect, draw requests. Raises one of USER_ERRORS."""
        self.load = Load.asked_for(self.options)
        self.target = target_of(self.environment.host)
        sending = self.options.sending()
        self._connection = connect(self.target, self.options.protocol, timeout_s=sending.timeout_s, channels=1)
        requests, seed = self.load.requests, self.load.seed
        finished(
            ScenarioRequests.drawn(self._connection, requests, shapes=sending.shapes, seed=seed, inputs=sending.inputs)
        )

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the measured window began."""
        return time.time_ns() - self._window_unix_ns

    @property
    def workers(self) -> list[str]:
        """Ids of the workers that can send."""
        runner = self.environment.runner
        if isinstance(runner, MasterRunner):
            return [node.id for node in runner.clients.ready + runner.clients.running + runner.clients.spawning]
        return [LOCAL_WORKER]

    @property
    def ended(self) -> bool:
        """Whether an open loop has sent all requests, or its remaining ones are lost with their workers."""
        return self.running and (bool(self.failed) or not self._sending & {*self.workers})

    def rows(self) -> "GatheredRows":
        """Return the outcomes of the requests that have ended so far."""
        names: list[str] = []
        messages: dict[str, str] = {}
        columns: dict[str, list[Column]] = {name: [np.empty(0, np.int64)] for name in OutcomeRows.COLUMNS}
        senders: list[str] = []
        for sender, chunk in self._chunks:
            names += [status for status in chunk["statuses"] if status not in names]
            for status, message in chunk["messages"].items():
                messages.setdefault(status, message)
            positions = np.array([names.index(status) for status in chunk["statuses"]], np.int64)
            for name in OutcomeRows.COLUMNS:
                column = np.frombuffer(chunk[name], np.int64)
                columns[name].append(positions[column] if name == "status" else column)
            senders += [sender] * len(column)
        return GatheredRows({name: np.concatenate(parts) for name, parts in columns.items()}, senders, names, messages)

    def _on_test_start(self, environment: Environment, **_rest: object) -> None:
        self.failed, self.stopped_ns, self.usage, self._chunks = "", None, {}, []
        try:
            if self.load is None or self.target != target_of(environment.host):
                self.check()
        except USER_ERRORS as error:
            self.failed = str(error)
            raise StopTest(f"error: {error}") from error
        workers = self.workers
        self._to_be_ready, self._sending, self._ready = {*workers}, {*workers}, AsyncResult()
        self.running = True
        self._greenlets = [gevent.spawn(self._begin, workers)]

    def _begin(self, workers: list[str]) -> None:
        load, runner = self.load, self.environment.runner
        assert load is not None
        assert runner is not None
        self._shares = {
            worker: LoadShare.of(load, self.target, position, len(workers)) for position, worker in enumerate(workers)
        }
        for worker in self._listening & {*workers}:
            self._send_share(worker)
        try:
            self._ready.get(timeout=READY_WITHIN_S)
        except gevent.Timeout:
            self._fail(f"workers did not get ready within {READY_WITHIN_S:g} s: {', '.join(sorted(self._to_be_ready))}")
            return
        except LoadTestError as error:
            self._fail(str(error))
            return
        self._window_unix_ns = time.time_ns() + round(BEGIN_IN_S * NS_PER_S) + load.warmup_ns
        self._greenlets.append(gevent.spawn(self._measure_usage, load))
        for worker in workers:
            runner.send_message(GO, {"window_unix_ns": self._window_unix_ns, "warmup_ns": load.warmup_ns}, worker)

    def _send_share(self, worker: str) -> None:
        runner = self.environment.runner
        assert runner is not None
        if share := self._shares.pop(worker, None):
            runner.send_message(SHARE, share.as_message(), worker)

    def _fail(self, why: str) -> None:
        self.failed = why
        logger.error("error: %s", why)
        self.environment.process_exit_code = 1
        runner = self.environment.runner
        if self.options.open_loop or runner is None:
            return  # the shape sees it
        headless = self.environment.web_ui is None
        gevent.spawn(runner.quit if headless else runner.stop)

    def _on_listens(self, environment: Environment, msg: Message) -> None:
        self._listening.add(msg.node_id)
        self._send_share(msg.node_id)

    def _on_ready(self, environment: Environment, msg: Message) -> None:
        self._to_be_ready.discard(msg.node_id)
        if not self._to_be_ready:
            self._ready.set(True)

    def _on_failed(self, environment: Environment, msg: Message) -> None:
        self._ready.set_exception(LoadTestError(f"worker {msg.node_id}: {msg.data['message']}"))

    def _on_rows(self, environment: Environment, msg: Message) -> None:
        self._chunks.append((msg.node_id, msg.data))

    def _on_done(self, environment: Environment, msg: Message) -> None:
        self._sending.discard(msg.node_id)

    def _on_test_stop(self, environment: Environment, **_rest: object) -> None:
        if self.running and (self._sending & {*self.workers} or not self.options.open_loop):
            self.stopped_ns = self.now_ns
        self.running = False
        current = gevent.getcurrent()
        gevent.killall([greenlet for greenlet in self._greenlets if greenlet is not current])

    def _measure_usage(self, load: Load) -> None:
        if load.window_ns is None:
            return
        try:
            gevent.sleep(max(0.0, -self.now_ns / NS_PER_S))
            before, instances = self._snapshots(load), self._instances(load)
            gevent.sleep(max(0.0, (load.window_ns - self.now_ns) / NS_PER_S))
            after = self._snapshots(load)
        except LoadTestError:
            return  # what the clients saw is still worth a report
        self.usage = {
            model: ServerUsage.between(before[model], after[model], instances=instances[model]) for model in before
        }

    def _snapshots(self, load: Load) -> dict[str, StatsSnapshot]:
        assert self._connection is not None
        return {model: snapshot_of(self._connection.model_statistics(model)) for model in load.requests.models}

    def _instances(self, load: Load) -> dict[str, int]:
        assert self._connection is not None
        configs = {model: finished(self._connection.model_config(model)) for model in load.requests.models}
        return {model: count_instances(config.instance_group) for model, config in configs.items()}
