"""Base class of a locustfile's users: `from tidegate_loadtest.locust.users import TritonUser`."""

import logging
import signal
import sys
from typing import Any

import gevent
from gevent.event import AsyncResult, Event
from locust import User, events, task
from locust.env import Environment
from locust.runners import WorkerRunner
from locust.web import WebUI
from rich.console import Console
from typer import BadParameter

from tidegate.commands.common import console_for_tables
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.locust.coordinator import USER_ERRORS, Coordinator
from tidegate_loadtest.locust.options import Options, add_options
from tidegate_loadtest.locust.outcome import report
from tidegate_loadtest.locust.page import add_tab
from tidegate_loadtest.locust.shape import ScheduleShape
from tidegate_loadtest.locust.worker import Worker

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
