"""How a `tidegate serve` beside an actor begins: it ends when the thread that started it does, so with the actor."""

import ctypes
import os
import signal
import sys
from typing import Final

CHILD_PROGRAM: Final = (
    "from tidegate_proxy.on_ray.child import end_with; end_with(); from tidegate.cli import main; main()"
)
"""Program text for Python; the actor's process id and the arguments of `tidegate` follow."""
_PR_SET_PDEATHSIG: Final = 1


def end_with() -> None:
    """Have the kernel end this process, as SIGTERM does, with the one whose id is the first argument; take that out."""
    actor = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != actor:
        sys.exit(1)
    os.environ["GRPC_VERBOSITY"] = "NONE"  # as `tidegate serve` has it, before it imports gRPC
