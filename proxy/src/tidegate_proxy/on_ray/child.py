"""How a `tidegate serve` beside an actor begins: it ends when the thread that started it does, so with the actor."""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Be `tidegate`, with the arguments that follow the actor's process id."""
    actor = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != actor:
        sys.exit(1)
    os.environ["GRPC_VERBOSITY"] = "NONE"  # as `tidegate serve` has it, before it imports gRPC
    from tidegate.cli import main as tidegate  # noqa: PLC0415 - the actor may be gone by now

    tidegate()
