"""For processes that simulate beside one that serves: they are in nobody's way, and do not outlive it."""

import ctypes
import os
import signal
from contextlib import suppress
from typing import Final

MIN_PRIORITY: Final = 19
_PR_SET_PDEATHSIG: Final = 1


def step_aside() -> None:
    """Lower this process's priority below all others, and end it with its parent, which may be gone by then."""
    os.nice(MIN_PRIORITY)
    with suppress(AttributeError):  # only Linux has it: elsewhere this process ends when it reads that there is no more
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
