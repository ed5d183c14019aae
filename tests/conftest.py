"""Fixtures that several test folders share."""

import asyncio
import contextlib
import gc
import importlib.util
import inspect
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
import yaml

from tidegate_proxy.tritons.embedded import EmbeddedTriton, TritonStartError
from tidegate_proxy.tritons.embedded.install import SUPPORTED_PYTHONS

if TYPE_CHECKING:
    from tests.forked import Forked, ForkTidegate

pytest_plugins = [
    "tests.surroundings",
    "tests.examples",
    "tests.sharing",
    "tests.rewriting",
    "tests.lifetimes",
    "tests.leftovers",
    "tests.forked",
]


HERE = "here"
"""As a transport: clients are connected to the process that schedules."""
FRONTENDS = "frontends"
"""As a transport: http2 in processes of their own, which have the clients."""
SHARDS = "shards"
"""As a transport: the same before two shards, the second of which has nothing but an empty Triton."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run choose how Tidegate speaks gRPC."""
    names = [HERE, FRONTENDS, SHARDS]
    parser.addoption("--transport", choices=names, default=None, help="only the tests to which it matters, spoken so")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture(scope="session")
def transport_of_tests(pytestconfig: pytest.Config) -> str:
    """Whom the clients of this run are connected to: HERE, FRONTENDS or SHARDS."""
    name: str = pytestconfig.getoption("--transport") or HERE
    return name


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep garbage collection from looking at tests and modules, which stay: that would be a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where a run chooses how gRPC is spoken, it is for those tests that have a Tidegate speak it."""
    if config.getoption("--transport"):
        others = [item for item in items if "transport_of_tests" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


StartTriton = Callable[..., EmbeddedTriton]
AtTheEnd = Callable[[Callable[[], object]], None]
PATIENCE_S = 120.0
"""How long anything may take before a test gives it up; never how long it waits when all is well."""
ABORTED = "boost::interprocess::lock_exception"
"""Of what Triton's Python backend aborts now and then on a busy machine, while it loads a model or later
(triton-inference-server/server, issue 8882); one that does so at its start is started once more."""


@pytest.fixture(scope="session")
def start_triton(at_the_end: AtTheEnd) -> StartTriton:
    """Start a real tritonserver, which ends with the test, or with the scope of the fixture, that started it.

    `start_triton([repository, ...], **options)`: the options are those of EmbeddedTriton.
    """
    if sys.version_info[:2] not in SUPPORTED_PYTHONS or importlib.util.find_spec("pytriton") is None:
        pytest.skip("needs nvidia-pytriton on CPython 3.11 or 3.12")

    def start(repositories: list[Path], *, again: bool = True, **options: Any) -> EmbeddedTriton:
        server = EmbeddedTriton(repositories, **{"grace_s": 0, "timeout_s": 60, **options})
        at_the_end(server.stop)
        try:
            return server.start()
        except TritonStartError as error:
            if not (again and ABORTED in str(error)):
                raise
        return start(repositories, again=False, **options)

    return start


class Tidegate:
    """A `tidegate serve` that runs; its output is read from files, so that no pipe fills up."""

    def __init__(
        self, process: "Forked | subprocess.Popen[bytes]", out: IO[bytes], errors: IO[bytes], folder: Path | None = None
    ) -> None:
        """`folder`: goes with it in the end."""
        self._asked_to_stop = False
        self._process = process
        self._out = out
        self._errors = errors
        self._folder = folder

    def start(self) -> "Tidegate":
        """Wait until it says where it listens."""
        eventually(lambda: "gRPC" in self.output or self._process.poll() is not None, "tidegate serve to listen")
        assert self._process.poll() is None, self.log
        return self

    @property
    def address(self) -> str:
        """Where clients find it."""
        found = re.search(r"gRPC +(\S+)\n", self.output)
        assert found, self.output + self.log
        return found[1]

    @property
    def output(self) -> str:
        """What it has printed."""
        return _text(self._out)

    @property
    def log(self) -> str:
        """What it has logged, as one line: the console folds long ones."""
        return " ".join(_text(self._errors).split())

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def children(self, title: str) -> list[int]:
        """Give the processes that it started and that call themselves so, in the order of their names."""
        found = []
        for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            with contextlib.suppress(OSError):  # it ends just now
                found.append((Path(f"/proc/{pid}/comm").read_text().strip(), int(pid)))
        return [pid for name, pid in sorted(found) if name.startswith(title)]

    def queued(self, model: str) -> float:
        """How many requests of a model wait for a batch, by its own metrics, for which it has to `listen`."""
        address = self.output.split("metrics")[1].strip().rstrip("/")
        with urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as page:
            found = re.search(rf'^tidegate_queue_length{{model="{model}"}} (\S+)$', page.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def ask_to_stop(self) -> None:
        """Ask it to end as a person would; once, since a second signal may find it past its handlers."""
        if not self._asked_to_stop:
            self._asked_to_stop = True
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> dict[str, int]:
        """Have it end; how the requests it accepted ended."""
        self.ask_to_stop()
        assert self._process.wait(PATIENCE_S) == 0, self.log
        tallies = re.findall(r"^requests: (.*)$", self.output, re.MULTILINE)
        assert tallies, self.output
        counts: Counter[str] = Counter()
        for tally in tallies:  # one for each shard
            scheduled, _, _ = tally.partition("; bypassed")
            counts.update({name: int(count) for name, count in re.findall(r"([\w-]+) (\d+)", scheduled)})
        del counts["dropped"]  # the sum of those by reason
        return dict(counts)

    def kill(self) -> None:
        """End it whatever state it is in."""
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._errors.close()
        if self._folder is not None:
            shutil.rmtree(self._folder)


def _anew(arguments: Sequence[str], environment: Mapping[str, str]) -> Tidegate:
    """One whose Python begins anew, as it must to see another environment."""
    out, errors = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - closed by kill
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", "serve", *arguments]
    return Tidegate(
        subprocess.Popen(command, stdout=out, stderr=errors, env={**os.environ, **environment}), out, errors
    )


def _forked(process: "Forked") -> Tidegate:
    out, errors = ((process.folder / name).open("rb") for name in ("out", "errors"))
    return Tidegate(process, out, errors, process.folder)


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")


StartTidegate = Callable[..., Tidegate]


@pytest.fixture(scope="session")
def empty_triton(start_triton: StartTriton, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """One without any model."""
    return start_triton([tmp_path_factory.mktemp("no_models")], options=["--model-control-mode=explicit"])


@pytest.fixture(scope="session")
def start_tidegate(
    at_the_end: AtTheEnd,
    fork_tidegate: "ForkTidegate",
    transport_of_tests: str,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> StartTidegate:
    """Start `tidegate serve` on a free port; killed, if it was not stopped, as a Triton is.

    `start_tidegate([triton, ...], policy="fifs", environment={}, slo=["model=20"], ...)`: what is not named here is an
    option of the command, underscores for hyphens; a list gives it several times.
    """

    def start(
        tritons: Sequence[EmbeddedTriton],
        *,
        policy: str = "fifs",
        environment: Mapping[str, str] | None = None,
        **options: object,
    ) -> Tidegate:
        arguments = ["--listen", "127.0.0.1:0"]
        has_frontends = transport_of_tests in (FRONTENDS, SHARDS)
        if has_frontends:
            arguments += ["--frontends", "2"]
        if "config" not in options:
            arguments += ["--policy", policy]
            options.setdefault("verify_batches", 0)  # tests count what Tritons execute
        if transport_of_tests == SHARDS and tritons and "config" not in options:
            file = tmp_path_factory.mktemp("two_shards") / "tidegate.yaml"
            empty = request.getfixturevalue("empty_triton")
            own = {"tritons": [triton.grpc_address for triton in tritons]}
            file.write_text(yaml.safe_dump({"shards": [own, {"tritons": [empty.grpc_address]}]}))
            options["config"] = file
        else:
            for triton in tritons:
                arguments += ["--triton", triton.grpc_address]
        for name, value in options.items():
            for single in value if isinstance(value, list) else [value]:
                arguments += ["--" + name.replace("_", "-"), str(single)]
        tidegate = _anew(arguments, environment) if environment else _forked(fork_tidegate(arguments))
        at_the_end(tidegate.kill)
        return tidegate.start()

    return start


@pytest.fixture
def stand_still() -> Iterator[Callable[..., Callable[[], None]]]:
    """`go_on = stand_still(triton, ...)`: their processes stand still until `go_on()`, so that requests queue.

    However fast anything is: what is merged is then decided by what waits, which a test can look at.
    """
    stopped: list[EmbeddedTriton] = []

    def go_on() -> None:
        while stopped:
            os.kill(stopped.pop().pid, signal.SIGCONT)

    def stop(*tritons: EmbeddedTriton) -> Callable[[], None]:
        for triton in tritons:
            stopped.append(triton)
            os.kill(triton.pid, signal.SIGSTOP)
        return go_on

    yield stop
    go_on()


UNHURRIED: dict[str, Any] = {
    "listen": {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"},
    "limits": {"health_timeout_s": PATIENCE_S},
    "batch_verification": {"fraction": 0},
}
"""Configuration of a Tidegate whose Tritons may stand still, of which a test counts the executions."""


PORTS_OF_A_PROCESS = 16
_ports = itertools.count()


def unused_port() -> int:
    """Free port without a listener, which neither the system nor another process of the tests hands out again.

    Where the system has all ports to give, it is one of its own.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first = low - PORTS_OF_A_PROCESS * (1 + os.getpid() % (low // 2 // PORTS_OF_A_PROCESS))
    turn = next(_ports)
    below = [first + (turn + place) % PORTS_OF_A_PROCESS for place in range(PORTS_OF_A_PROCESS)]
    for port in (*below, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise AssertionError("no port is free")


def eventually(condition: Callable[..., object], what: str) -> None:
    """Look again and again until the condition holds; fail, naming what was awaited, when it takes too long."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.005)
