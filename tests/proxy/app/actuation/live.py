"""A deployment that runs, with a proxy in this process before it, and clients that ask it without end."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc

from tests.conftest import eventually
from tests.proxy.app.actuation.deployment import tell
from tests.proxy.fixtures.here import ProxyHere
from tidegate.schemas import Layout
from tidegate_proxy.app.actuation.actuator import Actuator
from tidegate_proxy.deployed.tritons import RunningTritons

Array = np.ndarray[Any, Any]


@dataclass
class Live:
    """One that runs."""

    folder: Path
    told: Path
    """Where the controller is told what to want."""
    tritons: RunningTritons
    proxy: ProxyHere

    @property
    def actuator(self) -> Actuator:
        actuator = self.proxy.serving.actuator
        assert actuator is not None
        return actuator

    @property
    def serving(self) -> list[str]:
        """The workers that take part."""
        return sorted(worker.name for worker in self.proxy.serving.catalog.workers)

    @property
    def running(self) -> list[str]:
        """Those whose processes run."""
        return sorted(worker.name for worker in self.tritons.workers)

    def pid(self, name: str) -> int:
        """The process of a worker."""
        return next(worker.pid for worker in self.tritons.workers if worker.name == name)

    def wants(self, layout: Layout | None) -> None:
        """Tell the controller what to want."""
        tell(self.told, layout)

    @property
    def asked(self) -> int:
        """How often the controller was asked."""
        return (self.told / "asked").stat().st_size

    def sign(self, name: str) -> Path:
        """A file that its models look at."""
        return self.folder / "signs" / name

    def outcomes(self) -> dict[str, int]:
        """How many changes reached which state."""
        metrics = self.proxy.serving.driver.observability.metrics
        return dict(self.proxy.in_loop(lambda: metrics.counts.changes))

    def wait_for(self, state: str, times: int = 1) -> None:
        """Until so many changes have reached a state, and nothing is left to do."""
        eventually(lambda: self.outcomes().get(state, 0) >= times, f"a change to be {state}: {self.outcomes()}")


@dataclass
class Load:
    """Clients that ask without end, each for what nobody else asks for."""

    address: str
    clients: int = 4
    cooldown_s: float = 0.02
    """Between an answer and the next request."""
    tensors: tuple[str, str] = ("X", "Y")
    """The names of its input and of its output."""
    width: int = 1
    expected: Callable[[Array], Array] = lambda asked: 2 * asked
    answered: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(self.clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        with triton_grpc.InferenceServerClient(self.address) as client:
            count = 0
            while not self._over.is_set():
                count += 1
                asked = np.full((1, self.width), 1000.0 * count + number, dtype=np.float32)
                tensor = triton_grpc.InferInput(self.tensors[0], [1, self.width], "FP32")
                tensor.set_data_from_numpy(asked)
                try:
                    answer = client.infer("m", [tensor]).as_numpy(self.tensors[1])
                    problem = None if (answer == self.expected(asked)).all() else f"{answer} for {asked}"
                except Exception as error:
                    problem = str(error)
                self._over.wait(self.cooldown_s)
                with self._lock:
                    self.answered += 1
                    if problem:
                        self.wrong.append(problem)

    def goes_on(self, more: int = 20) -> None:
        """Wait until it has got so many more answers."""
        before = self.answered
        eventually(lambda: self.answered >= before + more, "answers")

    def end(self) -> list[str]:
        """What went wrong."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        return self.wrong
