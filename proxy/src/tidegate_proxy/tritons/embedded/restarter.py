"""Restart of a Triton that exits: on its ports, after a growing pause."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from tidegate_proxy.tritons.embedded.log import TritonStartError
from tidegate_proxy.tritons.embedded.server import EmbeddedTriton

log = logging.getLogger(__name__)

STABLE_S: Final = 10.0
"""Lifetime in seconds after which a process is restarted at once."""
PAUSES_S: Final = (0.05, 5.0)
"""First and largest pause in seconds before a restart. It doubles each time."""
_EXIT_POLL_S: Final = 0.1


class RestartPauses:
    """Pauses before the restarts of one process."""

    def __init__(self) -> None:
        self._next_s = PAUSES_S[0]

    def after(self, lived_s: float) -> float:
        """Return the pause in seconds after an exit. `lived_s`: lifetime of the process."""
        if lived_s > STABLE_S:
            self._next_s = PAUSES_S[0]
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, PAUSES_S[1])
        return pause_s


class TritonRestarter:
    """Watcher that restarts one Triton until `stop`, in a thread of its own (`begin`) or in the caller's (`watch`)."""

    def __init__(
        self, name: str, triton: EmbeddedTriton, restart: Callable[[], object], restarted: Callable[[], None]
    ) -> None:
        """Create the revival.

        `name`: for the log. `restart` may raise TritonStartError; `restarted` is called after it.
        """
        self.restarts = 0
        """Number of restarts."""
        self._name = name
        self._triton = triton
        self._restart = restart
        self._restarted = restarted
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.watch, name=f"revival of {name}", daemon=True)

    def begin(self) -> None:
        """Start a thread that watches the Triton."""
        self._thread.start()

    def stop(self) -> None:
        """Stop restarting it. A restart in progress continues: stop the Triton afterwards."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def watch(self) -> None:
        """Restart the Triton whenever it exits, until `stop` is called in another thread."""
        pauses = RestartPauses()
        began_s = time.monotonic()
        why = "it ended"
        while not self._stopping.wait(_EXIT_POLL_S):
            if self._triton.running:
                continue
            pause_s = pauses.after(time.monotonic() - began_s)
            log.error(
                "triton ended, restarting",
                extra={"triton": self._name, "error": why, "restart_in_s": round(pause_s, 2)},
            )
            if self._stopping.wait(pause_s):
                return
            began_s = time.monotonic()
            try:
                self._restart()
            except TritonStartError as error:
                why = f"it did not start again: {error}"
                continue
            if self._triton.running:
                self.restarts += 1
                log.warning(
                    "triton back",
                    extra={"triton": self._name, "away_s": round(time.monotonic() - began_s + pause_s, 2)},
                )
                began_s = time.monotonic()
                why = "it ended"
                self._restarted()
