"""The Tritons of a proxy, as its actuator changes them: who joins, who takes part, who leaves."""

import asyncio
import time

import msgspec

from tidegate.control import Roster
from tidegate.observation import ChangeProgressed
from tidegate_proxy.app.actuation.actuator import Joining
from tidegate_proxy.app.proxy import Proxy
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.tritons.backend import Backend, LoadedModel


class TritonsOfProxy:
    """Lives in the event loop. What it has to be for an actuator is said there."""

    def __init__(self, proxy: Proxy, discovery: Discovery) -> None:
        self._proxy = proxy
        self._driver = proxy.driver
        self._discovery = discovery

    @property
    def alone(self) -> asyncio.Lock:
        """Held by whoever changes what the Tritons serve."""
        return self._discovery.one_at_a_time

    async def try_out(self, triton: TritonAddress) -> tuple[Backend, list[LoadedModel]]:
        """A Triton that may take part later, and what it serves. Raises BackendError."""
        backend = await self._proxy.reach(triton)
        try:
            return backend, await backend.models()
        except BaseException:
            await self.part_with(backend)
            raise

    def switch(self, roster: Roster, joining: Joining) -> None:
        """Have the engine follow a roster. Raises BackendError or ValueError, and changes nothing then."""
        wanted = {worker.name for worker in roster.layout.workers}
        staying = [backend for backend in self._discovery.backends if backend.worker in wanted]
        leaving = [backend for backend in self._discovery.backends if backend.worker not in wanted]
        new = {backend: models for _, backend, models in joining.values()}
        self._discovery.switch([*staying, *new], new, roster)
        self._proxy.tritons_changed([triton for triton, _, _ in joining.values()], list(new), leaving)

    def backend_of(self, worker_id: int) -> Backend | None:
        """The Triton of a worker that takes part, or did; None: none does."""
        return self._proxy.catalog.backend_of.get(worker_id)

    def has_work(self, worker_id: int) -> bool:
        """Whether a worker has anything to finish."""
        return self._driver.engine.has_work(worker_id)

    def give_up(self, backend: Backend, why: str) -> None:
        """Let what a Triton runs be tried elsewhere."""
        self._driver.membership.give_up(backend, why)

    async def part_with(self, backend: Backend) -> None:
        """A Triton is about to end."""
        if self._driver.regions:
            self._driver.regions.leave(backend)
        await backend.close()

    def tell(self, event: ChangeProgressed) -> None:
        """Let the engine, and all who watch it, know how far a change is; now, as time has passed since."""
        self._driver.change_progressed(msgspec.structs.replace(event, now_ns=time.monotonic_ns()))
