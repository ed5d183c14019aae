"""Embedded Tritons of a deployment's workers, those of its first layout and those of later ones."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import Final

from tidegate.schemas import RUN_FOLDER, DeployedWorker, DocumentError, Layout, LayoutWorker, Mps
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.deployed.folder import DeploymentError, WorkerNotStarted, WorkerPlan, port_remedy
from tidegate_proxy.deployed.repositories import Repositories, plain
from tidegate_proxy.deployed.state import RunningWorker
from tidegate_proxy.tritons.embedded import EmbeddedTriton, TritonStartError
from tidegate_proxy.tritons.embedded.restarter import TritonRestarter

_AT_A_TIME = 4
"""Each is busy with all its cores while it loads its models."""
_EXIT_POLL_S = 0.05
_LOOPBACK = "127.0.0.1"


@dataclass
class _Running:
    """One worker's Triton."""

    triton: EmbeddedTriton
    log: Path
    worker_id: int | None = None
    """None: a worker of the first layout."""
    repository: Path | None = None
    """Its own, which goes with it; None: that of the deployment."""
    settled: threading.Event = field(default_factory=threading.Event)
    """Set once its start is over, however it was."""
    ending: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is ended, or started again."""
    is_over: bool = False
    """Whether it is to be ended: it is started no more."""
    restarter: TritonRestarter | None = None
    """Starts it again when it ends by itself; None: nothing does."""


@dataclass(eq=False, repr=False)
class RunningTritons:
    """Running Tritons by worker. Methods that wait for processes block: call them in a thread."""

    _folder: Path
    """That of the deployment."""
    _host: str = _LOOPBACK
    """Numeric address to listen on for `start_all`."""
    _changed: Callable[["RunningTritons"], None] = lambda _tritons: None
    """Called, in any thread but one at a time, when a process was added or removed, except at the end."""

    def __post_init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._revives = False
        """Whether those that are started from now on are started again when they end."""
        self._unwanted: set[int] = set()
        """The ids of workers that were to be stopped: one whose start comes later than that does not start."""
        self._repositories: Repositories | None = None
        self._writing = threading.Lock()
        """Held while a repository is written, which may take seconds."""

    def start_all(self, plans: Sequence[WorkerPlan], ready: Callable[[str, EmbeddedTriton], None]) -> None:
        """Start the workers of the first layout; `ready` is called for each with its name and Triton.

        Raises DeploymentError for the first that fails to start, or before any if a share has no MPS daemon.
        """
        environments = [environment_of(plan.worker) for plan in plans]  # raises before anything is there to be ended
        for plan, environment in zip(plans, environments, strict=True):
            triton = EmbeddedTriton(
                [plan.repository],
                log=plan.log,
                environment=environment,
                grpc_port=plan.grpc_port,
                http_port=plan.http_port,
                metrics_port=plan.metrics_port,
                host=self._host,
            )
            self._running[plan.name] = _Running(triton, plan.log)
        tritons = {name: running.triton for name, running in self._running.items()}
        try:
            _start(tritons, ready)
        finally:
            for running in self._running.values():
                running.settled.set()

    @property
    def addresses(self) -> dict[str, TritonAddress]:
        """Addresses by worker."""
        return {name: address_of(name, running.triton) for name, running in self._running.items()}

    @property
    def workers(self) -> tuple[RunningWorker, ...]:
        """All workers with a running process, including those that still load models."""
        found = []
        for name, running in list(self._running.items()):
            triton = running.triton
            with contextlib.suppress(RuntimeError):  # it is about to be started
                found.append(
                    RunningWorker(
                        name=name,
                        pid=triton.pid,
                        grpc=triton.grpc_address,
                        http=triton.http_address,
                        metrics=triton.metrics_address,
                        log=str(running.log),
                        restarts=self.restarts.get(name, 0),
                    )
                )
        return tuple(found)

    @property
    def restarts(self) -> dict[str, int]:
        """Number of restarts of each worker's Triton."""
        running = list(self._running.items())
        return {name: each.restarter.restarts for name, each in running if each.restarter}

    def start(self, worker_id: int, worker: LayoutWorker, layout: Layout, within_s: float) -> TritonAddress:
        """Start another worker and wait until its models are ready.

        Raises WorkerNotStarted, with nothing left behind. `layout`: the one that the worker belongs to; `within_s`:
        time limit in seconds.
        """
        name = worker.name
        log = self._folder / RUN_FOLDER / f"{worker_id}-{plain(name)}.log"
        repository: Path | None = None
        try:
            environment = environment_of(worker)
            with self._writing:
                if self._repositories is None:
                    self._repositories = Repositories(self._folder)
                repository = self._repositories.write(worker_id, worker, layout)
            triton = EmbeddedTriton([repository], log=log, timeout_s=within_s, environment=environment)
            running = _Running(triton, log, worker_id, repository)
            while before := self._registered(name, running):
                self._end(before)
                self._forget(name, before)
            try:
                triton.start(self._tell)
            except BaseException:
                self._forget(name, running)
                raise
            finally:
                running.settled.set()
            if self._revives:
                self._revive(name, running)
        except (DeploymentError, DocumentError, TritonStartError, OSError) as error:
            if repository is not None:
                shutil.rmtree(repository, ignore_errors=True)
            self._tell()
            raise WorkerNotStarted(str(error)) from error
        return address_of(name, triton)

    def _registered(self, name: str, running: _Running) -> _Running | None:
        """Register a worker that is about to start; or return the one of that name which has not ended yet.

        A change that is undone and proposed again starts a worker of the same name while the former one still ends.
        """
        with self._lock:
            if self._is_closed or running.worker_id in self._unwanted:
                raise DeploymentError("it is not wanted any more")
            return before if (before := self._running.setdefault(name, running)) is not running else None

    def _forget(self, name: str, running: _Running) -> None:
        """Remove a worker, unless another one of its name has taken its place."""
        with self._lock:
            if self._running.get(name) is running:
                del self._running[name]

    def revive(self) -> None:
        """Restart Tritons that exit, from now on."""
        self._revives = True
        for name, running in list(self._running.items()):
            self._revive(name, running)

    def _revive(self, name: str, running: _Running) -> None:
        def restart() -> None:
            with running.ending:
                if running.is_over:
                    return
                running.settled.clear()
                try:
                    running.triton.restart()
                finally:
                    running.settled.set()

        running.restarter = TritonRestarter(f"the Triton of worker {name!r}", running.triton, restart, self._tell)
        running.restarter.begin()

    def is_running(self, name: str) -> bool:
        """Return whether the process of a worker runs."""
        running = self._running.get(name)
        return running is not None and running.triton.running

    def stop(self, worker_id: int, name: str) -> None:
        """Stop the process of a worker, even while it starts; do nothing if there is none."""
        with self._lock:
            self._unwanted.add(worker_id)
        running = self._running.get(name)
        if running and running.worker_id in {None, worker_id}:
            self._end(running)
            self._forget(name, running)
            self._tell()

    def stop_all(self) -> None:
        """Stop all Tritons, including starting ones; none can be started afterwards."""
        with self._lock:
            self._is_closed = True
        everyone = list(self._running.values())
        with ThreadPoolExecutor(max(1, len(everyone))) as pool:
            list(pool.map(self._end, everyone))

    def _tell(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._changed(self)

    @staticmethod
    def _end(running: _Running) -> None:
        running.is_over = True
        if running.restarter:
            running.restarter.stop()
        while True:
            if not running.settled.wait(_EXIT_POLL_S):
                with contextlib.suppress(RuntimeError, ProcessLookupError):  # not launched yet; ended by itself
                    os.kill(running.triton.pid, signal.SIGKILL)
            elif running.ending.acquire(timeout=_EXIT_POLL_S):
                break
        try:
            running.triton.stop()
        finally:
            running.ending.release()
        if running.restarter:
            running.restarter.join()
        if running.repository is not None:
            shutil.rmtree(running.repository, ignore_errors=True)


@contextmanager
def running_tritons(
    folder: Path,
    plans: Sequence[WorkerPlan],
    ready: Callable[[str, EmbeddedTriton], None],
    changed: Callable[[RunningTritons], None] = lambda _tritons: None,
) -> Iterator[RunningTritons]:
    """Run the Tritons of a deployment folder until the block is left, and restart those that exit.

    `ready` is called for each with its name and Triton, `changed` as in `RunningTritons`. Raises DeploymentError for
    the first that fails to start. After any exception, here or in the block, all are stopped.
    """
    tritons = RunningTritons(folder, _LOOPBACK, changed)
    try:
        tritons.start_all(plans, ready)
        tritons.revive()
        yield tritons
    finally:
        tritons.stop_all()


def address_of(name: str, triton: EmbeddedTriton) -> TritonAddress:
    """Return the address of a worker."""
    return TritonAddress(
        grpc=triton.grpc_address,
        http=triton.http_address,
        metrics=triton.metrics_address,
        worker=name,
        http_header_forward_pattern="",
        grpc_header_forward_pattern="",
    )


def _start(tritons: dict[str, EmbeddedTriton], ready: Callable[[str, EmbeddedTriton], None]) -> None:
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        starting = {pool.submit(triton.start): name for name, triton in tritons.items()}
        try:
            pending = set(starting)
            while pending:
                # In slices, for a signal to be heard meanwhile.
                done, pending = wait(pending, _EXIT_POLL_S, FIRST_COMPLETED)
                for future in done:
                    name = starting[future]
                    try:
                        future.result()
                    except TritonStartError as error:
                        why = f"{error}{port_remedy(str(error))}"
                        raise DeploymentError(f"worker {name!r} did not start: {why}") from error
                    ready(name, tritons[name])
        except BaseException:
            _give_up(starting, tritons)
            raise


def _give_up(starting: dict[Future[EmbeddedTriton], str], tritons: dict[str, EmbeddedTriton]) -> None:
    """Have every start end soon: one that has not begun is cancelled, a server that is loading is killed."""
    pending = {future for future in starting if not future.cancel()}
    while pending := wait(pending, _EXIT_POLL_S).not_done:
        for future in pending:
            with contextlib.suppress(RuntimeError, ProcessLookupError):  # not launched yet; ended by itself
                os.kill(tritons[starting[future]].pid, signal.SIGKILL)


MPS_PIPE_VARIABLE: Final = "TIDEGATE_MPS"
"""Environment variable with the folder of the control daemons, as in the launch files of a deployment."""
_DEFAULT_PIPES: Final = "/tmp/tidegate-mps"  # noqa: S108 - names of sockets are limited, so it is a short one
_DRIVER: Final = Path("/dev/nvidiactl")
_ASK_S: Final = 10.0


def environment_of(worker: LayoutWorker | DeployedWorker) -> dict[str, str]:
    """Return the variables that limit a process to its MPS share; empty for a worker without a share.

    The share is fixed for the life of the process. Raises DeploymentError if there are GPUs but no MPS daemon answers
    for this one.
    """
    part = worker.slice
    if not isinstance(part, Mps):
        return {}
    pipes = Path(os.environ.get(MPS_PIPE_VARIABLE, _DEFAULT_PIPES)) / _domain(worker)
    variables = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(part.percent), "CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    if part.memory_mib:
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={part.memory_mib}M"
    if isinstance(worker.device.id, str):
        variables["CUDA_VISIBLE_DEVICES"] = worker.device.id
    if _DRIVER.exists() and not _answers(variables):
        raise DeploymentError(
            f"worker {worker.name!r} has a share of GPU {worker.device.id}, and no MPS daemon answers at {pipes}: "
            f"start one there (nvidia-cuda-mps-control -d with CUDA_MPS_PIPE_DIRECTORY={pipes}, as this user), or say "
            f"with {MPS_PIPE_VARIABLE} where they are"
        )
    return variables


def _domain(worker: LayoutWorker | DeployedWorker) -> str:
    """The name of the daemon's folder, as the scripts of a deployment call it."""
    device, part = worker.device, worker.slice
    assert isinstance(part, Mps)
    number = device.id if isinstance(device.id, str) else f"gpu-{device.id}"
    place = f"-{part.instance.profile}-{part.instance.start}" if part.instance else ""
    return f"{number}{place}".replace("/", "-")


def _answers(variables: Mapping[str, str]) -> bool:
    control = which("nvidia-cuda-mps-control")
    if control is None:
        return False
    try:
        asked = subprocess.run(
            [control],
            input=b"get_default_active_thread_percentage\n",
            env={**os.environ, **variables},
            capture_output=True,
            timeout=_ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0
