"""Starts a Triton again that has ended by itself: on its ports, after a pause that grows while it keeps ending."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from tidegate_proxy.tritons.embedded.log import TritonStartError
from tidegate_proxy.tritons.embedded.server import EmbeddedTriton

log = logging.getLogger(__name__)

STABLE_S: Final = 10.0
"""A process that lives so long is started again at once when it ends."""
PAUSES_S: Final = (0.05, 5.0)
"""The pause before a start: at first, and at last. It doubles each time."""
_LOOK_EVERY_S: Final = 0.1


class RestartPauses:
    """The pauses before the starts of one process."""

    def __init__(self) -> None:
        self._next_s = PAUSES_S[0]

    def after(self, lived_s: float) -> float:
        """The pause after it ended, in seconds. `lived_s`: how long it had run."""
        if lived_s > STABLE_S:
            self._next_s = PAUSES_S[0]
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, PAUSES_S[1])
        return pause_s


class Revival:
    """Watches one started Triton until `stop`, in a thread of its own (`begin`) or in the calling one (`watch`)."""

    def __init__(
        self, name: str, triton: EmbeddedTriton, restart: Callable[[], object], restarted: Callable[[], None]
    ) -> None:
        """`name`: for the log. `restart` starts it again and may raise TritonStartError; `restarted` is called then."""
        self.restarts = 0
        """How often it was started again."""
        self._name = name
        self._triton = triton
        self._restart = restart
        self._restarted = restarted
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.watch, name=f"revival of {name}", daemon=True)

    def begin(self) -> None:
        """Watch it in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Start it no more. A start under way goes on: stop the Triton afterwards."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def watch(self) -> None:
        """Start it again whenever it ends, until `stop` is called in another thread."""
        pauses = RestartPauses()
        began_s = time.monotonic()
        why = "it ended"
        while not self._stopping.wait(_LOOK_EVERY_S):
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
