"""Locust in processes of its own: pytest itself is never patched."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import unused_port

LOCUST = Path(sys.executable).parent / "tidegate-locust"
PATIENCE_S = 120
"""How long anything may take before a test gives it up; never how long it waits when all is well."""
SCENARIO = """
warmup_s: 0.2
duration_s: {duration_s}
workers: [{{count: 2}}]
models:
  - {{name: {model}, slo_ms: 60000, profile: {{alpha_ms: 1, beta_ms: 5, max_batch: 8}},
     rows: {{distribution: table, values: [1, 2]}}}}
arrivals: {{process: poisson, rate_rps: {rate_rps}}}
policies: [{{name: fifs}}]
"""


class Locust:
    """One that runs."""

    def __init__(self, folder: Path, arguments: tuple[str, ...]) -> None:
        self._log = folder / f"locust-{len(list(folder.glob('locust-*')))}.log"
        with self._log.open("w") as log:
            command = [str(LOCUST), *arguments]
            self._process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def output(self) -> str:
        """What it has said."""
        return self._log.read_text()

    def row(self, model: str = "echo") -> dict[str, str]:
        """Line of a model or tenant in the table of SLO attainment."""
        lines = (line.strip("│").split("│") for line in self.output.splitlines() if line.startswith("│"))
        (cells,) = (cells for cells in lines if cells[0].strip() == model)
        keys = ("model", "slo_ms", "requests", "attainment", "goodput", "failed", "generator")
        return dict(zip(keys, map(str.strip, cells), strict=True))

    def ended(self) -> int:
        """Wait until it ends by itself; its exit status."""
        return self._process.wait(PATIENCE_S)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it whatever state it is in."""
        self._process.kill()
        self._process.wait()


StartLocust = Callable[..., Locust]


def printed_by(program: str) -> list[str]:
    """Lines that a program prints which may import Locust."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return done.stdout.splitlines()


@pytest.fixture
def start_locust(tmp_path: Path) -> Iterator[StartLocust]:
    """`start_locust("--headless", ...)`: a `tidegate-locust`, killed if it has not ended."""
    started: list[Locust] = []

    def start(*arguments: object) -> Locust:
        started.append(Locust(tmp_path, tuple(str(argument) for argument in arguments)))
        return started[-1]

    yield start
    for locust in started:
        locust.kill()


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Path]:
    """`scenario(model="echo", duration_s=1, rate_rps=100)`: a scenario file."""

    def write(model: str = "echo", duration_s: float = 1, rate_rps: float = 100) -> Path:
        path = tmp_path / "scenario.yaml"
        path.write_text(SCENARIO.format(model=model, duration_s=duration_s, rate_rps=rate_rps))
        return path

    return write


@pytest.fixture
def free_port() -> int:
    """Port without a listener."""
    return unused_port()
