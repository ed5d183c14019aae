"""Source files, threads and function calls that one request crosses in `tidegate serve`.

`python -m bench.call_path` prints them. They are recorded by Python's profiler while exactly one request is in flight;
only functions called in each of several repetitions count.
"""

import json
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import tritonclient.grpc

from bench.proxy_process import instrumented_process, no_op_models, report_figures
from tidegate_proxy.tritons.embedded import EmbeddedTriton

ROUNDS, WARM_UP = 30, 30
Crossed = dict[str, dict[str, int]]
"""Number of functions called of each file, by thread name and file."""


class Profiler:
    """Counter of calls into Tidegate's files, by thread, while installed."""

    def __init__(self) -> None:
        self.crossed: dict[str, Counter[str]] | None = None
        """None: it is off."""

    def install(self) -> None:
        """Start to profile this thread, and threads started from now on."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        crossed = self.crossed  # a signal that comes now may end the spell, and what raises here is called no more
        if crossed is not None and event == "call":
            _, source, name = frame.f_code.co_filename.rpartition("/src/tidegate")
            if source:
                crossed.setdefault(threading.current_thread().name, Counter())[f"tidegate{name}"] += 1


def live() -> Crossed:
    """Return what a ModelInfer crosses in a Tidegate before a Triton with a no-op model."""
    with tempfile.TemporaryDirectory(prefix="tidegate-crossing-") as folder:
        work = Path(folder)
        with EmbeddedTriton([no_op_models(work)]) as triton:
            flags = ("--triton", triton.grpc_address, "--listen", "127.0.0.1:0", "--policy", "fifs")
            with instrumented_process(work, "bench.call_path", *flags) as (proxy, reported):
                ask = _asking(proxy.grpc)
                for _ in range(WARM_UP):
                    ask()
                spells = []
                for _ in range(ROUNDS):
                    proxy.send(signal.SIGUSR1)
                    reported()
                    ask()
                    proxy.send(signal.SIGUSR2)
                    spells.append(json.loads(reported()))
    return _in_each(spells)


def instrumented_command() -> None:
    """Run the command line, profiled from each SIGUSR1 to the next SIGUSR2."""
    from tidegate.cli import main  # noqa: PLC0415 - after the profiler is there

    profiler = Profiler()

    def begin(_number: int, _frame: object) -> None:
        report_figures({})
        profiler.crossed = {}

    def end(_number: int, _frame: object) -> None:
        crossed, profiler.crossed = profiler.crossed or {}, None
        report_figures(crossed)

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    profiler.install()
    main()


def _asking(address: str) -> Callable[[], None]:
    client = tritonclient.grpc.InferenceServerClient(address)
    tensor = tritonclient.grpc.InferInput("INPUT", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 16), np.float32))
    return lambda: client.infer("noop", [tensor])


def _in_each(spells: list[Crossed]) -> Crossed:
    """Return the files whose functions ran in every spell, and how often they did at least, by thread."""
    found = {}
    for thread in sorted(set(spells[0]).intersection(*spells[1:])):
        files = set(spells[0][thread]).intersection(*(spell[thread] for spell in spells))
        found[thread] = {file: min(spell[thread][file] for spell in spells) for file in sorted(files)}
    return {thread: files for thread, files in found.items() if files}


if __name__ == "__main__":
    threads = live()
    files = {file for of in threads.values() for file in of}
    calls = sum(sum(of.values()) for of in threads.values())
    print(f"{len(files)} files, {calls} calls, {len(threads)} threads")
    for thread, of in threads.items():
        print(f"  {thread}: {' '.join(f'{file} {count}' for file, count in of.items())}")
