"""Base class of a locustfile's users: `from tidegate_loadtest.locust.users import TritonUser`.

Importing this module adds the options to Locust's command line. The process that starts a test draws the scenario's
requests; each sending process draws them again from what `parsed_options` carries to workers, and sends every n-th.
"""

import gc
import json
import logging
import signal
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
import numpy as np
from flask import Response, request
from gevent.event import AsyncResult, Event
from locust import LoadTestShape, User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopTest
from locust.rpc import Message
from locust.runners import STATE_INIT, MasterRunner, WorkerRunner
from locust.web import WebUI
from pydantic import ValidationError
from rich.console import Console
from typer import BadParameter

from tidegate.api import NS_PER_MS
from tidegate.commands.common import console_for_tables
from tidegate.host import PluginError
from tidegate.schemas import field_errors, format_field_errors
from tidegate.workload import RequestSequence, Scenario, ScenarioError, TraceError, draw_requests, read_scenario
from tidegate.workload.arrivals import NS_PER_S
from tidegate.workload.scenario_file import UNION_MEMBERS
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.input_files import parse_inputs
from tidegate_loadtest.locust.attainment import GAP_TYPE, TABLE_COLUMNS, Attainment, gap_line, print_rows, tenant_line
from tidegate_loadtest.locust.triton import CONNECTIONS_BY_PROTOCOL, TritonConnection, finished
from tidegate_loadtest.result import OK_STATUS
from tidegate_loadtest.scenario_requests import ScenarioRequests
from tidegate_loadtest.shapes import parse_shapes
from tidegate_loadtest.tenant_headers import TenantHeaders

if TYPE_CHECKING:
    from array import array

logger = logging.getLogger(__name__)

USER_ERRORS = (LoadTestError, ScenarioError, TraceError, PluginError, OSError, BadParameter)
"""Errors that a user can remedy."""
TAB_KEY = "slo-attainment"
LOCAL_SENDER = "local"
FAILED_MESSAGE = "tidegate_failed"
"""Message of a worker to the master: the worker cannot prepare its requests; data: the error."""
READY_MESSAGE = "tidegate_ready"
"""Message of a worker to the master: the worker has prepared its requests."""
BEGIN_MESSAGE = "tidegate_begin"
"""Message of the master to a worker that is ready; data: the instant at which the schedule begins, in ns since 1970."""
BEGIN_IN_NS = 200 * NS_PER_MS
"""Time from the readiness of all processes to the first request."""
REPORTS_WITHIN_S = 7.0
"""Seconds within which Locust's workers have reported twice."""
AWAKE_BEFORE_S = 0.001
"""Seconds before an instant from which the sender polls: libev sleeps whole milliseconds, rounded up."""


class UnansweredRequest(Exception):
    """Error: a request was not answered; Locust counts it as an error."""


def add_options(parser: LocustArgumentParser, **_rest: object) -> None:
    """Add the options to Locust's; its own --host names the server."""
    group = parser.add_argument_group("Tidegate: what to send (the server: --host HOST:PORT)")

    def add(flag: str, **rest: Any) -> None:  # noqa: ANN401 - as of argparse
        name = "tidegate_" + flag.removeprefix("--").replace("-", "_")
        group.add_argument(flag, dest=name, **rest).include_in_web_ui = False

    add("--scenario", metavar="FILE", help="the requests of a scenario file (YAML), at their instants: an open loop")
    add("--closed-loop", action="store_true", help="each of -u users sends the next request after the last response")
    add("--protocol", default="grpc", choices=("grpc", "http"), help="grpc (port 8001, 8101) or http (port 8000, 8100)")
    add("--seed", type=int, metavar="SEED", help="of arrivals and tensors; default: the scenario's")
    add("--shape", action="append", metavar="INPUT:SIZES", help="[MODEL/]INPUT:3,48,320: open dimensions, without "
        "rows; 160..640 or 160|320|640: drawn for each request; repeatable")  # fmt: skip
    add("--inputs", action="append", metavar="MODEL=FOLDER", help="real inputs, pictures or .npy/.npz files, on every "
        "worker; repeatable")  # fmt: skip
    add("--timeout-s", type=float, default=30.0, metavar="S", help="give a request up after this")


def target_of(host: str | None) -> str:
    """Return HOST:PORT of Locust's --host, which may carry a scheme. Raises LoadTestError."""
    target = (host or "").rpartition("://")[2].rstrip("/")
    if not target.rpartition(":")[2].isdigit() or ":" not in target:
        raise LoadTestError(f"--host must be HOST:PORT of a server, such as localhost:8001, not {host!r}")
    return target


def freeze_heap() -> None:
    """Exempt all objects from garbage collection: to walk them would make requests late by tens of ms."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Load:
    """Requests of a test, and the connection over which they are sent."""

    connection: TritonConnection
    scenario: Scenario
    requests: RequestSequence
    """Requests at their instants, warm-up included. A closed loop sends them in their order, at other instants."""
    request_of: ScenarioRequests
    headers_of: TenantHeaders

    @classmethod
    def drawn(cls, options: Namespace, scenario: Scenario, seed: int, target: str) -> "Load":
        """Connect to the server at `target`, HOST:PORT, and draw the requests. Raises USER_ERRORS."""
        shapes, inputs = parse_shapes(options.tidegate_shape or ()), parse_inputs(options.tidegate_inputs or ())
        if not options.tidegate_timeout_s > 0:
            raise LoadTestError(f"--timeout-s must be positive, not {options.tidegate_timeout_s:g}")
        streaming = next((model.name for model in scenario.models if model.streaming), None)
        if streaming is not None and options.tidegate_protocol == "http":
            raise LoadTestError(f"{streaming} has `streaming`, and HTTP gives one response: use --protocol grpc")
        requests = draw_requests(scenario, seed)
        headers_of = TenantHeaders(requests, scenario.folder)
        connection = CONNECTIONS_BY_PROTOCOL[options.tidegate_protocol](target, options.tidegate_timeout_s)
        made = ScenarioRequests.drawn(connection, requests, shapes=shapes, seed=seed, inputs=inputs)
        return cls(connection, scenario, requests, finished(made), headers_of)

    @cached_property
    def streams(self) -> dict[str, float | None]:
        """SLO in ms of the mean gap between responses, or None, by model with streams."""
        return {model.name: model.streaming.slo_gap_ms for model in self.scenario.models if model.streaming}

    @property
    def slos_ms(self) -> dict[str, float | None]:
        """SLO in ms, or None, of each line of the table: models, graphs, gaps of streams, tenants."""
        gaps = {gap_line(model): slo_gap_ms for model, slo_gap_ms in self.streams.items()}
        return {**self.scenario.slos_ms, **gaps, **{tenant_line(each.name): None for each in self.scenario.tenants}}

    @property
    def scheduled(self) -> dict[str, int]:
        """Number of requests in the measured window, of each model, graph and tenant."""
        of_window = np.frombuffer(self.requests.at_ns, np.int64) >= self.scenario.warmup_s * NS_PER_S

        def count(indices: "array[int]", lines: Sequence[str]) -> dict[str, int]:
            numbers = Counter(np.frombuffer(indices, np.int64)[of_window].tolist())
            return {line: numbers[position] for position, line in enumerate(lines)}

        tenancy = self.requests.tenancy
        tenants = count(tenancy.tenant, [tenant_line(each.name) for each in tenancy.specs]) if tenancy else {}
        return count(self.requests.model, self.requests.models) | tenants

    def tenant_of(self, number: int) -> str:
        """Return the tenant of a request; "" for none."""
        tenancy = self.requests.tenancy
        return tenancy.specs[tenancy.tenant[number]].name if tenancy and tenancy.tenant[number] >= 0 else ""


class Sender:
    """Sender of this process's part of a load, from the start of a test until its stop."""

    def __init__(
        self, environment: Environment, load: Load, attainment: Attainment, *, begin_unix_ns: int, closed_loop: bool
    ) -> None:
        self._environment, self._load, self._attainment = environment, load, attainment
        self._slos_ms = load.slos_ms
        self._warmup_ns = 0 if closed_loop else round(load.scenario.warmup_s * NS_PER_S)
        self.closed_loop = closed_loop
        # The wall clock is the only one that processes on several machines share.
        self._zero_ns = time.monotonic_ns() + begin_unix_ns - time.time_ns()
        self._next = 0
        self.stopped = False

    def send_part(self, position: int, senders: int) -> None:
        """Send each `senders`-th request at its instant, from number `position` on."""
        at_ns = self._load.requests.at_ns
        for number in range(position, len(at_ns), senders):
            if at_ns[number] <= self._now_ns():
                gevent.sleep(0)  # behind schedule: responses must still come in
            while (early_ns := at_ns[number] - self._now_ns()) > 0:
                gevent.sleep(max(0.0, early_ns * 1e-9 - AWAKE_BEFORE_S))
            self._send(number, at_ns[number])

    def call(self) -> None:
        """Send one request of a closed loop and wait for it."""
        answered = Event()
        self._next += 1
        self._send((self._next - 1) % len(self._load.requests), self._now_ns(), answered.set)
        answered.wait()

    def _send(self, number: int, due_ns: int, answered: Callable[[], object] = lambda: None) -> None:
        load, issued_ns = self._load, self._now_ns()
        message = load.request_of(number)

        def done(status: str, words: str, responses_ns: Sequence[int]) -> None:
            self._ended(number, message.model_name, due_ns, issued_ns, status, words, responses_ns)
            answered()

        load.connection.send(message, done, load.headers_of(number), is_stream=message.model_name in load.streams)

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._zero_ns

    def _ended(
        self,
        number: int,
        model: str,
        due_ns: int,
        issued_ns: int,
        status: str,
        message: str,
        responses_ns: Sequence[int],
    ) -> None:
        if self.stopped:
            return
        self._attainment.all_ended += 1
        if due_ns < self._warmup_ns:
            return
        # From the schedule, not from the sending: a stalled generator must not hide the wait that it caused.
        ended_ns = responses_ns[0] - self._zero_ns if responses_ns else self._now_ns()
        took_ms, slo_ms = (ended_ns - due_ns) / NS_PER_MS, self._slos_ms[model]
        failure = "" if status == OK_STATUS else status
        on_time = not failure and (slo_ms is None or took_ms <= slo_ms)
        tenant = self._load.tenant_of(number)
        for line in (model, tenant_line(tenant)) if tenant else (model,):
            self._attainment.add(line, failure, on_time=on_time, late_ns=issued_ns - due_ns)
        error = UnansweredRequest(f"{status}: {message}") if failure else None
        self._count(self._environment.parsed_options.tidegate_protocol, model, took_ms, error)
        if len(responses_ns) > 1 and not failure:
            gap_ms = (responses_ns[-1] - responses_ns[0]) / (len(responses_ns) - 1) / NS_PER_MS
            slo_gap_ms = self._load.streams[model]
            met = slo_gap_ms is None or gap_ms <= slo_gap_ms
            self._attainment.add(gap_line(model), "", on_time=met, late_ns=0)
            self._count(GAP_TYPE, model, gap_ms, None)

    def _count(self, kind: str, model: str, took_ms: float, error: Exception | None) -> None:
        """Add a request, or the mean gap of a stream, to Locust's own statistics."""
        self._environment.events.request.fire(
            request_type=kind, name=model, response_time=took_ms, response_length=0, exception=error, context={}
        )


class TritonUser(User):  # type: ignore[misc]
    """User that calls a Triton or Tidegate.

    Closed loop: it sends, waits for the response, and sends again after its `wait_time` (none by default). Open loop:
    it stands for the sending process; requests follow the schedule, however many users there are.
    """

    abstract = True  # a locustfile that imports it starts its own subclass only

    @task  # type: ignore[untyped-decorator]
    def ask(self) -> None:
        """Send one request."""
        sender = self.environment.tidegate_test.sender.get()
        if not sender.closed_loop:
            Event().wait()  # until the test is stopped
        sender.call()


class LocustTest:
    """Tests of this Locust process, one after the other; a web page may run many."""

    def __init__(self, environment: Environment) -> None:
        """Register with Locust; send nothing before a test is started."""
        self.environment, self.options = environment, environment.parsed_options
        self.attainment = Attainment()
        self.sender: AsyncResult[Sender] = AsyncResult()
        """Sender of the current test, once it begins; a master has none."""
        self.ended = False
        """Whether an open loop has ended by itself."""
        self._load: Load | None = None
        self._running = False
        self._begin_unix_ns, self._stop_unix_ns = 0, 0
        self._ready: set[str] = set()
        """Ids of the workers that are ready and wait for the beginning."""
        self._sending: gevent.Greenlet | None = None
        runner = environment.runner
        environment.events.test_start.add_listener(self._on_test_start)
        environment.events.test_stop.add_listener(self._on_test_stop)
        if isinstance(runner, WorkerRunner):
            environment.events.report_to_master.add_listener(self._on_report)
            runner.register_message(BEGIN_MESSAGE, lambda msg, **_rest: self._begin(msg.data))
            if runner.worker_state != STATE_INIT:  # the master has started a test while this process was starting
                self._on_test_start()
        if isinstance(runner, MasterRunner):
            environment.events.worker_report.add_listener(self._on_worker_report)
            runner.register_message(READY_MESSAGE, self._on_worker_ready)
            # In a greenlet of its own: to quit kills the one that receives messages.
            runner.register_message(FAILED_MESSAGE, self._on_worker_failed, concurrent=True)

    @property
    def senders(self) -> list[str]:
        """Ids of the processes that can send."""
        runner = self.environment.runner
        if isinstance(runner, MasterRunner):
            return [node.id for node in runner.clients.ready + runner.clients.running + runner.clients.spawning]
        return [LOCAL_SENDER]

    def check(self) -> Load:
        """Prepare the load of a test: read the scenario, connect, draw. Raises USER_ERRORS, before any is sent."""
        if not self.options.tidegate_scenario:
            raise LoadTestError("give --scenario FILE: what to send")
        scenario = read_scenario(Path(self.options.tidegate_scenario))
        seed = scenario.seed if self.options.tidegate_seed is None else self.options.tidegate_seed
        folder = str(scenario.folder.resolve())
        self.options.tidegate_drawn = (scenario.model_dump_json(exclude_defaults=True), folder, seed)
        self._load = Load.drawn(self.options, scenario, seed, target_of(self.environment.host))
        return self._load

    def is_over(self) -> bool:
        """Return whether all requests of the open loop have ended, or those of lost workers have had their time."""
        load = self._load
        if load is None or not self._running or not self._begin_unix_ns:
            return False
        last_ns = self._begin_unix_ns + (load.requests.at_ns[-1] if len(load.requests) else 0)
        patience_s = self.options.tidegate_timeout_s + REPORTS_WITHIN_S
        everything = self.attainment.all_ended >= len(load.requests)
        self.ended = everything or time.time_ns() > last_ns + patience_s * NS_PER_S
        return self.ended

    def rows(self) -> list[dict[str, Any]]:
        """Return a line for each model over the requests that have ended so far."""
        load = self._load
        if load is None or not self._begin_unix_ns:
            return []
        window_s = ((self._stop_unix_ns or time.time_ns()) - self._begin_unix_ns) / NS_PER_S
        if not self.options.tidegate_closed_loop:
            window_s = min(window_s - load.scenario.warmup_s, load.scenario.duration_s)
        scheduled = load.scheduled if self.ended else None
        return self.attainment.rows(load.slos_ms, max(1e-9, window_s), scheduled)

    def _on_test_start(self, **_rest: object) -> None:
        runner, options = self.environment.runner, self.options
        self.attainment.take()
        self.sender = AsyncResult()
        self.ended, self._running, self._begin_unix_ns, self._stop_unix_ns = False, False, 0, 0
        if isinstance(runner, WorkerRunner):
            self._prepare(runner)
            return
        try:
            if self._load is None or self._load.connection.target != target_of(self.environment.host):
                self.check()
        except USER_ERRORS as error:
            raise StopTest(f"error: {error}") from error
        options.tidegate_senders = self.senders
        self._running = True
        self._ready.clear()
        if not isinstance(runner, MasterRunner):
            freeze_heap()
            self._begin(time.time_ns() + BEGIN_IN_NS)

    def _prepare(self, runner: WorkerRunner) -> None:
        """Draw the requests that the master has drawn, and report to it."""
        document, folder, seed = self.options.tidegate_drawn
        try:
            scenario = Scenario.model_validate_json(document, context={"folder": Path(folder)})
            self._load = Load.drawn(self.options, scenario, seed, target_of(self.environment.host))
        except ValidationError as error:
            wrong = field_errors(error, Scenario, members=UNION_MEMBERS)
            runner.send_message(FAILED_MESSAGE, format_field_errors(f"scenario of {folder}", wrong))
        except USER_ERRORS as error:
            runner.send_message(FAILED_MESSAGE, str(error))
        else:
            self._running = True
            freeze_heap()
            runner.send_message(READY_MESSAGE)

    def _begin(self, begin_unix_ns: int) -> None:
        """Send this process's part from an instant on."""
        load, runner, closed_loop = self._load, self.environment.runner, self.options.tidegate_closed_loop
        if not self._running or self.sender.ready():
            return
        assert load is not None
        self._begin_unix_ns = begin_unix_ns
        sender = Sender(self.environment, load, self.attainment, begin_unix_ns=begin_unix_ns, closed_loop=closed_loop)
        self.sender.set(sender)
        own = runner.client_id if isinstance(runner, WorkerRunner) else LOCAL_SENDER
        senders = self.options.tidegate_senders
        if not closed_loop and own in senders:  # else this worker came after the start of the test
            self._sending = gevent.spawn(sender.send_part, senders.index(own), len(senders))

    def _on_test_stop(self, **_rest: object) -> None:
        self._running, self._stop_unix_ns = False, time.time_ns()
        gevent.killall([each for each in (self._sending,) if each])
        if self.sender.ready():
            self.sender.get().stopped = True

    def _on_worker_ready(self, msg: Message, **_rest: object) -> None:
        self._ready.add(msg.node_id)
        self._begin_workers()

    def _on_worker_report(self, data: dict[str, Any], **_rest: object) -> None:
        self.attainment.merge(data["tidegate"])
        self._begin_workers()  # if the only workers that were not ready are lost

    def _begin_workers(self) -> None:
        """Let workers begin, together, as soon as each that is not lost is ready."""
        if not self._running:
            return
        runner = self.environment.runner
        if not self._begin_unix_ns:
            if set(self.options.tidegate_senders) & set(runner.clients) - self._ready:
                return
            self._begin_unix_ns = time.time_ns() + BEGIN_IN_NS
        while self._ready:
            runner.send_message(BEGIN_MESSAGE, self._begin_unix_ns, self._ready.pop())

    def _on_worker_failed(self, msg: Message, **_rest: object) -> None:
        logger.error("worker failed, stopping the test: %s (worker=%s)", msg.data, msg.node_id)
        if not self._running:
            return
        self._running = False
        self.environment.process_exit_code = 1
        if self.options.headless:
            self.environment.runner.quit()
        else:
            self.environment.runner.stop()

    def _on_report(self, data: dict[str, Any], **_rest: object) -> None:
        data["tidegate"] = self.attainment.take()


class ScheduleShape(LoadTestShape):  # type: ignore[misc]
    """Load shape that Locust queries every second for the number of users."""

    def __init__(self, test: LocustTest) -> None:
        super().__init__()
        self._test = test

    def tick(self) -> tuple[int, float] | None:
        """Return (users, spawn rate): as many users as sending processes, or None when all is sent and answered."""
        if self._test.is_over():
            return None
        senders = len(self._test.senders)
        return senders, max(1, senders)


def _add_tab(page: WebUI, test: LocustTest) -> None:
    """Add the tab, which the page refreshes together with its own statistics."""
    page.template_args["extended_tabs"] = [{"title": "SLO attainment", "key": TAB_KEY}]
    structure = [{"key": key, "title": title} for key, title in TABLE_COLUMNS.items()]
    page.template_args["extended_tables"] = [{"key": TAB_KEY, "structure": structure}]

    def with_attainment(response: Response) -> Response:
        if request.path.endswith("/stats/requests") and response.is_json:
            table = {"key": TAB_KEY, "data": test.rows()}
            response.set_data(json.dumps({**response.get_json(), "extended_stats": [table]}))
        return response

    page.app.after_request(with_attainment)


def _on_init(environment: Environment, runner: Any, web_ui: WebUI | None, **_rest: object) -> None:  # noqa: ANN401
    test = environment.tidegate_test = LocustTest(environment)
    if isinstance(runner, WorkerRunner):
        return
    try:
        if environment.host or web_ui is None:  # else the page asks for the host
            test.check()
    except USER_ERRORS as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print("[red]error:[/] ", str(error), sep="")
        sys.exit(1)
    if not environment.parsed_options.tidegate_closed_loop:
        environment.shape_class = ScheduleShape(test)
        environment.shape_class.runner = runner
    # Python would raise KeyboardInterrupt wherever the program is just now: between gevent's locks it hangs for ever.
    hub = gevent.get_hub()
    gevent.signal_handler(signal.SIGINT, hub.handle_system_error, KeyboardInterrupt, KeyboardInterrupt())
    if web_ui is not None:
        _add_tab(web_ui, test)

    def on_quitting(**_rest: object) -> None:
        runner.quit()  # workers send the last of what they have
        if rows := test.rows():
            print_rows(console_for_tables(), rows)
            if any(row["failed"] != "0" for row in rows):
                environment.process_exit_code = 1

    environment.events.quitting.add_listener(on_quitting)


events.init_command_line_parser.add_listener(add_options)
events.init.add_listener(_on_init)
