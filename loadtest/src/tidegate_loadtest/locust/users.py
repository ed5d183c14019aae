"""Base class of a locustfile's users: `from tidegate_loadtest.locust.users import TritonUser`."""

import json
import logging
import signal
import sys
from typing import Any

import gevent
from flask import Response, request
from gevent.event import AsyncResult, Event
from locust import LoadTestShape, User, events, task
from locust.env import Environment
from locust.runners import WorkerRunner
from locust.web import WebUI
from rich.console import Console
from typer import BadParameter

from tidegate.commands.common import console_for_tables
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.locust.coordinator import USER_ERRORS, Coordinator
from tidegate_loadtest.locust.options import Options, add_options
from tidegate_loadtest.locust.outcome import by_model, report
from tidegate_loadtest.locust.worker import Worker

TAB_KEY = "slo-attainment"
TABLE_COLUMNS = {
    "name": "Model",
    "slo_ms": "SLO (ms)",
    "requests": "# Requests",
    "attainment": "Attainment",
    "goodput": "Goodput (/s)",
    "failed": "Not answered",
    "p50": "50%ile from schedule (ms)",
    "p99": "99%ile from schedule (ms)",
    "late": "Generator late: 50, 99%ile (ms)",
    "verdict": "Generator",
}


def add_tab(page: WebUI, conductor: Coordinator) -> None:
    """Add the tab, which the page refreshes together with its own statistics."""
    page.template_args["extended_tabs"] = [{"title": "SLO attainment", "key": TAB_KEY}]
    structure = [{"key": key, "title": title} for key, title in TABLE_COLUMNS.items()]
    page.template_args["extended_tables"] = [{"key": TAB_KEY, "structure": structure}]

    def with_attainment(response: Response) -> Response:
        if request.path.endswith("/stats/requests") and response.is_json:
            table = {"key": TAB_KEY, "data": by_model(conductor)}
            response.set_data(json.dumps({**response.get_json(), "extended_stats": [table]}))
        return response

    page.app.after_request(with_attainment)


class ScheduleShape(LoadTestShape):  # type: ignore[misc]
    """Load shape that Locust queries every second for the number of users."""

    def __init__(self, conductor: Coordinator) -> None:
        super().__init__()
        self._conductor = conductor

    def tick(self) -> tuple[int, float] | None:
        """Return (users, spawn rate): as many users as sending processes, or None when all is sent and answered."""
        if self._conductor.ended:
            return None
        senders = len(self._conductor.workers)
        return senders, max(1, senders)


logger = logging.getLogger(__name__)


class TritonUser(User):  # type: ignore[misc]
    """User that calls a Triton or Tidegate.

    Closed loop: it sends, waits for the response, and sends again after its `wait_time` (none by default). Open loop:
    it represents the sending process; requests follow the schedule, however many users there are.
    """

    abstract = True  # a locustfile that imports it starts its own subclass only
    worker: "AsyncResult[Worker]" = AsyncResult()
    """Worker of this process; Locust may start users before it exists."""

    @task  # type: ignore[untyped-decorator]
    def ask(self) -> None:
        """Send one request."""
        worker = self.worker.get()
        worker.begun.wait()
        if worker.open_loop:
            Event().wait()  # until the test is stopped
        worker.call()


def _on_parser(parser: Any, **_rest: object) -> None:  # noqa: ANN401 - Locust's own class
    add_options(parser)


def _on_init(environment: Environment, runner: Any, web_ui: WebUI | None, **_rest: object) -> None:  # noqa: ANN401
    if not hasattr(runner, "clients"):  # all but a master send
        worker = Worker(environment)
        TritonUser.worker.set(worker)
    if isinstance(runner, WorkerRunner):
        worker.tell_that_it_listens()
        return
    try:
        options = Options.of(environment.parsed_options)
        conductor = Coordinator(environment, options)
        if environment.host or web_ui is None:  # else the page asks for the host
            conductor.check()
    except (*USER_ERRORS, BadParameter) as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print("[red]error:[/] ", str(error), sep="")
        sys.exit(1)
    if options.open_loop:
        environment.shape_class = ScheduleShape(conductor)
        environment.shape_class.runner = runner
    # Python would raise KeyboardInterrupt wherever the program is just now: between gevent's locks it hangs for ever.
    hub = gevent.get_hub()
    gevent.signal_handler(signal.SIGINT, hub.handle_system_error, KeyboardInterrupt, KeyboardInterrupt())
    if web_ui is not None:
        add_tab(web_ui, conductor)
        environment.events.test_stop.add_listener(lambda **_rest: _report(conductor))
        return

    def on_quitting(**_rest: object) -> None:
        runner.quit()  # workers send the last of what they have
        _report(conductor)

    environment.events.quitting.add_listener(on_quitting)


def _report(conductor: Coordinator) -> None:
    if conductor.failed or conductor.load is None:
        return
    try:
        report(conductor, console_for_tables())
    except (LoadTestError, OSError) as error:
        logger.error("error: %s", error)
        conductor.environment.process_exit_code = 1


events.init_command_line_parser.add_listener(_on_parser)
events.init.add_listener(_on_init)
