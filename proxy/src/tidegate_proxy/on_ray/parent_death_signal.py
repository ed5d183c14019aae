"""Start of a `tidegate serve` process of an actor, which ends with the actor's thread that started it."""

import ctypes
import os
import signal
import sys
from typing import Final

CHILD_PROGRAM: Final = (
    "from tidegate_proxy.on_ray.parent_death_signal import end_with; end_with(); from tidegate.cli import main; main()"
)
"""Program text for Python; the actor's process id and the arguments of `tidegate` follow."""
_PR_SET_PDEATHSIG: Final = 1


def end_with() -> None:
    """Let the kernel send this process SIGTERM when the one named by the first argument exits; remove that argument."""
    actor = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != actor:
        sys.exit(1)
    os.environ["GRPC_VERBOSITY"] = "NONE"  # as `tidegate serve` has it, before it imports gRPC
