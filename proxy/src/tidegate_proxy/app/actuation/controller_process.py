"""Child process in which a controller plans at the lowest priority, so that planning never blocks the event loop.

A thread of the proxy would: a planner holds Python's interpreter lock for seconds.
"""

import asyncio
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final

from tidegate.control import Controller, ControllerAnswer, Observation, controller_answer
from tidegate.sim.background_priority import step_aside

START_TIMEOUT_S: Final = 60.0
"""Seconds for the process to start and make the controller: imports at the lowest priority, beside a busy proxy."""
_SPAWN: Final = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold


class ControllerProcess:
    """Process of one controller, started with the first question. Use it only in the event loop.

    A process that ends or is stopped takes the controller's memory with it: the next question finds a new controller.
    """

    def __init__(self, make: Callable[[], Controller], answer_timeout_s: float) -> None:
        """Create the handle; nothing is started. `make`: makes the controller; it is pickled.

        `answer_timeout_s`: seconds for an answer once the process is ready; later it is stopped.
        """
        self._make = make
        self._timeout_s = answer_timeout_s
        self._running: tuple[SpawnProcess, Connection] | None = None

    async def ask(self, observation: Observation) -> ControllerAnswer:
        """Return the controller's answer to an observation, or why there is none."""
        limit = f"{START_TIMEOUT_S:g} s after its start"
        is_new = self._running is None
        process, pipe = self._running or self._start()
        try:
            if is_new:
                async with asyncio.timeout(START_TIMEOUT_S):
                    await asyncio.to_thread(pipe.recv)  # it says that it is ready
            limit = f"{self._timeout_s:g} s (answer_timeout_s)"
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.to_thread(_exchange, pipe, observation)
        except TimeoutError:
            self.close()
            return f"it did not answer within {limit}, and its process was stopped"
        except (EOFError, OSError):
            process.join(1.0)
            status = process.exitcode
            self.close()
            return f"its process ended with status {status} before it answered"

    def close(self) -> None:
        """End the process."""
        running, self._running = self._running, None
        if running is not None:
            process, _ = running  # the thread that waits for the pipe reads its end, and closes it
            process.kill()
            process.join()
            process.close()

    def _start(self) -> tuple[SpawnProcess, Connection]:
        """Start the process, from the thread of the event loop: it ends with the thread that started it."""
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_answer_all, args=(theirs, self._make), daemon=True, name="tidegate-controller")
        process.start()
        theirs.close()
        self._running = process, ours
        return self._running


def _exchange(pipe: Connection, observation: Observation) -> ControllerAnswer:
    pipe.send(observation)
    answer: ControllerAnswer = pipe.recv()
    return answer


def _answer_all(pipe: Connection, make: Callable[[], Controller]) -> None:
    """Answer observations until the pipe is closed; runs in the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the proxy as well, which ends this process
    step_aside()
    controller = make()
    pipe.send(None)
    while True:
        try:
            observation = pipe.recv()
        except EOFError:
            return
        pipe.send(controller_answer(controller, observation))
