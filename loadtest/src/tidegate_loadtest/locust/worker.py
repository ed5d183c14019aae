"""Sending process of a Locust test: its part of the load, send times, and outcomes."""

import gc
import time
from array import array
from contextlib import suppress
from typing import Any

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.exception import RPCError
from locust.rpc import Message

from tidegate.api import NS_PER_MS
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.locust.load import LoadShare
from tidegate_loadtest.locust.triton import TritonConnection, connect, finished
from tidegate_loadtest.result import OK_STATUS
from tidegate_loadtest.scenario_requests import ScenarioRequests

FLUSH_EVERY_S = 0.5
AWAKE_BEFORE_S = 0.001
"""Seconds before an instant from which the worker polls: libev sleeps whole milliseconds, rounded up."""
LISTENS, SHARE, READY, FAILED, GO, ROWS, DONE = (
    f"tidegate_{name}" for name in ("listens", "share", "ready", "failed", "go", "rows", "done")
)
"""Message types: `SHARE` (what to send) and `GO` (when) go from coordinator to worker, the others back."""


class UnansweredRequest(Exception):
    """Error: a request was not answered; Locust counts it as an error."""


class OutcomeRows:
    """Outcomes of requests, by column; instants in nanoseconds since the measured window began."""

    COLUMNS = ("number", "scheduled_ns", "issued_ns", "finished_ns", "status")

    def __init__(self) -> None:
        self.columns = {name: array("q") for name in self.COLUMNS}
        self.statuses: list[str] = []
        """Texts that the column `status` refers to by index."""
        self.messages: dict[str, str] = {}
        """First message of each status."""

    def __len__(self) -> int:
        return len(self.columns["number"])

    def add(self, number: int, scheduled_ns: int, issued_ns: int, finished_ns: int, status: str, message: str) -> None:
        """Append the outcome of one request.

        `number`: of the request; `status`: its outcome; `message`: error text.
        """
        if status not in self.statuses:
            self.statuses.append(status)
        if message:
            self.messages.setdefault(status, message)
        row = (number, scheduled_ns, issued_ns, finished_ns, self.statuses.index(status))
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)

    def as_message(self) -> dict[str, Any]:
        """Serialize for the message to the coordinator."""
        columns = {name: column.tobytes() for name, column in self.columns.items()}
        return {**columns, "statuses": self.statuses, "messages": self.messages}


class Worker:
    """Worker that executes the coordinator's messages and sends rows until the test is stopped."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.begun = Event()
        """Event that users wait for."""
        self.open_loop = False
        self._share: LoadShare
        self._connection: TritonConnection | None = None
        self._request_of: ScenarioRequests
        self._zero_ns = 0
        self._next = 0
        self._rows = OutcomeRows()
        self._in_flight: set[int] = set()
        """The numbers of this test's requests; those of an earlier one, which was stopped, are of no interest."""
        self._greenlets: list[gevent.Greenlet] = []
        runner = environment.runner
        assert runner is not None
        runner.register_message(SHARE, self._on_share)
        runner.register_message(GO, self._on_go)
        environment.events.test_stop.add_listener(self._on_test_stop)

    def tell_that_it_listens(self) -> None:
        """Notify the coordinator that this worker listens; before that, Locust drops messages to it."""
        self._send(LISTENS, {})

    def call(self) -> None:
        """Send one request of a closed loop and wait for it."""
        number = self._next
        self._next += 1
        connection = self._connection
        assert connection is not None
        request = self._request_of(number % len(self._share.requests))
        issued_ns = self._now_ns()
        status, message = connection.ask(request)
        self._note(number, request.model_name, issued_ns, issued_ns, status, message)

    def _on_share(self, environment: Environment, msg: Message) -> None:
        self._stop_sending()
        try:
            share = LoadShare.from_message(msg.data)
            sending = share.options.sending()
            if self._connection is None or self._connection.target != share.target:
                self._connection = connect(
                    share.target, share.options.protocol, timeout_s=sending.timeout_s, channels=sending.channels
                )
            self._request_of = finished(
                ScenarioRequests.drawn(
                    self._connection, share.requests, shapes=sending.shapes, seed=share.seed, inputs=sending.inputs
                )
            )
        except LoadTestError as error:
            self._send(FAILED, {"message": str(error)})
            return
        self._share, self.open_loop = share, share.options.open_loop
        self._rows, self._next, self._in_flight = OutcomeRows(), 0, set()
        self._send(READY, {})

    def _on_go(self, environment: Environment, msg: Message) -> None:
        """Its instants are of the wall clock: the only one that processes on several machines share."""
        self._zero_ns = time.monotonic_ns() + msg.data["window_unix_ns"] - time.time_ns()
        # Imported modules and drawn requests stay: a garbage collection over them would delay requests by tens of ms.
        gc.collect()
        gc.freeze()
        self._greenlets = [gevent.spawn(self._flush_again_and_again)]
        if self.open_loop:
            self._greenlets.append(gevent.spawn(self._send_share, msg.data["warmup_ns"]))
        self.begun.set()

    def _send_share(self, warmup_ns: int) -> None:
        share, request_of, now_ns = self._share, self._request_of, self._now_ns
        for index, (number, at_ns) in enumerate(zip(share.number, share.requests.at_ns, strict=True)):
            due_ns = at_ns - warmup_ns
            if due_ns <= now_ns():
                gevent.sleep(0)  # behind schedule: what was answered must still come in
            while (early_ns := due_ns - now_ns()) > 0:
                gevent.sleep(max(0.0, early_ns * 1e-9 - AWAKE_BEFORE_S))
            self._issue(request_of(index), number, due_ns)
        while self._in_flight:  # each ends, at the latest, with its timeout
            gevent.sleep(0.01)
        self._flush()
        self._send(DONE, {})

    def _issue(self, request: Any, number: int, due_ns: int) -> None:  # noqa: ANN401 - untyped protobuf
        assert self._connection is not None
        model, in_flight = request.model_name, self._in_flight
        in_flight.add(number)
        issued_ns = self._now_ns()

        def done(status: str, message: str) -> None:
            in_flight.discard(number)
            if in_flight is self._in_flight:
                self._note(number, model, due_ns, issued_ns, status, message)

        self._connection.send(request, done)

    def _note(self, number: int, model: str, due_ns: int, issued_ns: int, status: str, message: str) -> None:
        finished_ns = self._now_ns()
        self._rows.add(number, due_ns, issued_ns, finished_ns, status, message)
        # From the schedule, not from the sending: a stalled generator must not hide the wait that it caused.
        self._environment.events.request.fire(
            request_type=self._share.options.protocol,
            name=model,
            response_time=(finished_ns - due_ns) / NS_PER_MS,
            response_length=0,
            exception=None if status == OK_STATUS else UnansweredRequest(f"{status}: {message}"),
            context={},
        )

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._zero_ns

    def _flush_again_and_again(self) -> None:
        while True:
            gevent.sleep(FLUSH_EVERY_S)
            self._flush()

    def _flush(self) -> None:
        if len(self._rows):
            rows, self._rows = self._rows, OutcomeRows()
            self._send(ROWS, rows.as_message())

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        assert self._environment.runner is not None
        with suppress(RPCError):  # the master is gone; Locust ends the worker
            self._environment.runner.send_message(kind, data)

    def _on_test_stop(self, environment: Environment, **_rest: object) -> None:
        self._stop_sending()
        self._flush()

    def _stop_sending(self) -> None:
        self.begun.clear()
        gevent.killall(self._greenlets)
        self._greenlets = []
