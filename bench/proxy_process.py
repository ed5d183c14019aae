"""A `tidegate serve` process seen from outside, and a no-op model that shows the overhead of servers alone."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from demo.processes import TIDEGATE
from tidegate_proxy.tritons.embedded import EmbeddedTriton

START_WITHIN_S = 120.0
"""Seconds to start on a very busy machine."""


class ProxyProcess:
    """A running `tidegate serve`."""

    def __init__(self, process: "subprocess.Popen[str]", output: Path, errors: Path) -> None:
        self._process = process
        self._output = output
        self._errors = errors

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Wait for the process to end; return its exit status. Raises TimeoutExpired after `timeout_s` seconds."""
        return self._process.wait(timeout_s)

    @property
    def log(self) -> str:
        """Content of its log."""
        return self._errors.read_text(errors="replace")

    @property
    def output(self) -> str:
        """Content of its standard output."""
        return self._output.read_text()

    @property
    def grpc(self) -> str:
        """HOST:PORT of its gRPC service."""
        return self._address("gRPC")

    @property
    def http(self) -> str:
        """HOST:PORT of its HTTP service."""
        return self._address("HTTP")

    @property
    def metrics(self) -> str:
        """HOST:PORT of its metrics."""
        return self._address("metrics").removesuffix("/metrics")

    def spent(self) -> tuple[float, int]:
        """Return CPU time in seconds and context switches of all living threads since the start."""
        return cpu_spent(self._process.pid)

    def usage(self) -> dict[str, float]:
        """Return the current `memory_mib`, `threads` and `descriptors`."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        memory = re.search(r"VmRSS:\s+(\d+) kB", status)
        threads = re.search(r"Threads:\s+(\d+)", status)
        return {
            "memory_mib": int(memory[1]) / 1024 if memory else 0.0,
            "threads": int(threads[1]) if threads else 0,
            "descriptors": len(list(Path(f"/proc/{self._process.pid}/fd").iterdir())),
        }

    def _address(self, service: str) -> str:
        found = re.search(rf"^{service}\s+(\S+)$", self._output.read_text(), re.MULTILINE)
        if not found:
            raise SystemExit(f"tidegate serve does not say where its {service} is:\n{self.log}")
        return found[1]


def cpu_spent(pid: int) -> tuple[float, int]:
    """Return CPU time in seconds and context switches of all living threads of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    threads = Path(f"/proc/{pid}/task").glob("*/status")
    switches = (re.findall(r"ctxt_switches:\s+(\d+)", thread.read_text()) for thread in threads)
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return cpu_s, sum(int(n) for of in switches for n in of)


@contextmanager
def proxy_process(
    folder: Path, *flags: str, environment: Mapping[str, str] | None = None, tidegate: str = TIDEGATE
) -> Iterator[ProxyProcess]:
    """Start `tidegate serve` and yield the process until the block ends.

    `folder`: for its output and log; `flags`: of the command; `environment`: further environment variables; `tidegate`:
    the command, for example another checkout's.
    """
    output, errors = folder / "tidegate.out", folder / "tidegate.log"
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(
            [tidegate, "serve", *flags], stdout=out, stderr=err, text=True, env={**os.environ, **(environment or {})}
        )
    try:
        give_up = time.monotonic() + START_WITHIN_S
        while "gRPC" not in output.read_text():
            if process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"tidegate serve did not start:\n{errors.read_text()}")
            time.sleep(0.05)
        yield ProxyProcess(process, output, errors)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


REPORT_VARIABLE = "TIDEGATE_BENCH_REPORT"
"""Environment variable that names the report file of an instrumented process."""


@contextmanager
def instrumented_process(folder: Path, module: str, *flags: str) -> Iterator[tuple[ProxyProcess, Callable[[], str]]]:
    """Start a `tidegate serve` that a module's `instrumented_command` runs; yield it, and a wait for its next report.

    `folder`: an empty one.
    """
    report, command = folder / "report.json", folder / "tidegate"
    command.write_text(f"#!{sys.executable}\nfrom {module} import instrumented_command\ninstrumented_command()\n")
    command.chmod(0o755)
    paths = [str(Path(__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(":")]
    environment = {REPORT_VARIABLE: str(report), "PYTHONPATH": ":".join(paths)}
    with proxy_process(folder, *flags, environment=environment, tidegate=str(command)) as process:

        def reported() -> str:
            give_up = time.monotonic() + START_WITHIN_S
            while not report.exists():
                if time.monotonic() > give_up:
                    raise SystemExit(f"no report within {START_WITHIN_S:g} s:\n{process.log}")
                time.sleep(0.01)
            text = report.read_text()
            report.unlink()
            return text

        yield process, reported


def report_figures(figures: object) -> None:
    """Report figures from within an instrumented process."""
    report = Path(os.environ[REPORT_VARIABLE])
    aside = report.with_suffix(".new")
    aside.write_text(json.dumps(figures))
    aside.rename(report)


@contextmanager
def proxy_before(triton: EmbeddedTriton, folder: Path, *flags: str, policy: str = "symphony") -> Iterator[ProxyProcess]:
    """Start `tidegate serve` before one Triton, all three services on free ports; yield the process until the block
    ends.

    `triton`: the Triton; `folder`: for its output and log; `flags`: further flags; `policy`: the policy.
    """
    given = ["--policy", policy, "--drain-timeout-s", "1"]
    given += ["--triton", f"{triton.grpc_address},http={triton.http_address},metrics={triton.metrics_address}"]
    for service in ("", "-http", "-metrics"):
        given += [f"--listen{service}", "127.0.0.1:0"]
    with proxy_process(folder, *given, *flags) as proxy:  # of flags given twice the last one counts
        yield proxy


CONFIG = """
backend: "python"
max_batch_size: 32
input { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { count: 2 kind: KIND_CPU }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
"""
MODEL = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb.InferenceResponse([pb.Tensor("OUTPUT", pb.get_input_tensor_by_name(request, "INPUT").as_numpy())])
            for request in requests
        ]
"""


def no_op_models(folder: Path, name: str = "noop") -> Path:
    """Write a repository with one no-op model to a folder; return its path. `name`: of the model."""
    version = folder / "models" / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(f'name: "{name}"{CONFIG}')
    (version / "model.py").write_text(MODEL)
    return folder / "models"
