"""A process that has imported what a Tidegate needs, and forks one whenever it is asked to.

To import it takes two seconds of a core, and the tests start a hundred. Each line of its standard input is an order: a
JSON object with `arguments` and a `folder`, which has the files `out` and `errors` and gets `pid` and,
in the end, `status`.
"""

import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

IMPORTED = ("commands.serve", "configuration.config_file", "observability.logs", "app.serve", "servers.http.service")


def main() -> None:
    """Obey until the input ends."""
    os.environ["GRPC_VERBOSITY"] = "NONE"  # as `tidegate serve` has it, before it imports gRPC
    import importlib

    import uvloop  # noqa: F401

    from tidegate.cli import main as tidegate
    from tidegate.host import Plugins

    for name in IMPORTED:
        importlib.import_module(f"tidegate_proxy.{name}")
    Plugins.installed()  # imports them
    gc.collect()
    gc.freeze()  # a Tidegate looks for garbage as it starts: it need not look at all of this
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork() == 0:
            _watch(Path(order["folder"]), order["arguments"], tidegate)


def _watch(folder: Path, arguments: list[str], tidegate: Callable[[], None]) -> NoReturn:
    """Be the parent of a Tidegate; tell how it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pid = os.fork()
    if pid == 0:
        _be_tidegate(folder, arguments, tidegate)
    _write(folder / "pid", pid)
    _write(folder / "status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _be_tidegate(folder: Path, arguments: list[str], tidegate: Callable[[], None]) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "errors")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), number)
    sys.argv = ["tidegate", "serve", *arguments]
    status = 0
    try:
        tidegate()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _write(path: Path, number: int) -> None:
    """All at once, for those who look whether it is there."""
    fresh = path.with_suffix(".fresh")
    fresh.write_text(str(number))
    fresh.rename(path)


if __name__ == "__main__":
    main()
