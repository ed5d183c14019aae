"""Background priority for processes that simulate beside a proxy: they yield the CPU to it and end with it."""

import ctypes
import os
import signal
from contextlib import suppress
from typing import Final

MIN_PRIORITY: Final = 19
_PR_SET_PDEATHSIG: Final = 1


def step_aside() -> None:
    """Lower this process's CPU priority to the minimum, and have it killed when its parent ends."""
    os.nice(MIN_PRIORITY)
    with suppress(AttributeError):  # only Linux has it: elsewhere this process ends when it reads that there is no more
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
