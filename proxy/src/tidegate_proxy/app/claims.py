"""Which models a home answers for: those of its Tritons, but for what a plan gives to other homes."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from tidegate_proxy.app.proxy import Proxy
from tidegate_proxy.base.faults import faults
from tidegate_proxy.frontends.frames import Serves
from tidegate_proxy.frontends.home import Home
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.tritons.backend import Backend, BackendError

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.1


class Claims:
    """One home's part in the plan. Lives in its event loop.

    A model that comes is loaded first and claimed then; one that goes is answered for until no front asks for it here,
    and unloaded then. Nobody stands above the homes: whichever of two hears first of a move, no request is lost.
    """

    def __init__(self, home: Home, discovery: Discovery, proxy: Proxy) -> None:
        self._home = home
        assert home.number is not None, "it is one of several"
        self._number = home.number
        self._discovery = discovery
        self._proxy = proxy
        self._assignment: Mapping[str, int] = {}
        self._following: asyncio.Task[None] | None = None
        self._parting: asyncio.Task[None] | None = None
        self._kept: set[str] = set()
        """Models that are to go, and that a Triton does not unload."""
        discovery.on_change = self._tell

    async def begin(self, assignment: Mapping[str, int]) -> None:
        """Take up the first plan, before anybody asks, and part with what is planned elsewhere."""
        await self._follow(assignment)
        self._parting = asyncio.get_running_loop().create_task(self._part_with_others())

    async def _follow(self, assignment: Mapping[str, int]) -> None:
        """Load what a plan gives to this home, and tell the fronts."""
        self._assignment = assignment
        self._kept.clear()
        if await load_missing(self._living(), planned_for(self._number, assignment)):
            await self._discovery.refresh()
        self._tell()

    def follow(self, assignment: Mapping[str, int]) -> None:
        """Take up another plan, while what is here is served: loading may take long."""
        if self._following:
            self._following.cancel()
        self._following = asyncio.get_running_loop().create_task(self._follow_guarded(assignment))

    async def close(self) -> None:
        """Follow no more, and part with nothing."""
        tasks = [task for task in (self._following, self._parting) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow_guarded(self, assignment: Mapping[str, int]) -> None:
        try:
            await self._follow(assignment)
        except BackendError as error:
            log.error("the plan was not taken up: %s", error)
        except Exception as error:
            faults.report("taking up a plan", error)

    async def _part_with_others(self) -> None:
        """For ever: unload what was planned elsewhere once it is asked for there."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                gone = [name for name in sorted(self._leaving - self._kept) if self._is_done_with(name)]
                unloaded = [await self._unload(name) for name in gone]
                if any(unloaded):
                    await self._discovery.refresh()
            except Exception as error:  # there is a next time
                faults.report("parting with a model", error)

    @property
    def _leaving(self) -> frozenset[str]:
        names = self._proxy.catalog.names
        return frozenset(name for name in names if self._assignment.get(name, self._number) != self._number)

    def _is_done_with(self, name: str) -> bool:
        return self._home.was_left(name) and all(
            request.model != name for request in self._proxy.engine.reducer.open.values()
        )

    def _tell(self) -> None:
        leaving = self._leaving
        self._home.tell(Serves(self._proxy.catalog.names - leaving, leaving))

    def _living(self) -> Sequence[Backend]:
        return [backend for backend in self._discovery.backends if backend.alive]

    async def _unload(self, name: str) -> bool:
        """Whether any of the Tritons has unloaded it; else it is kept, and no more is done about it."""
        outcomes = await asyncio.gather(*(backend.unload(name) for backend in self._living()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BackendError):
                self._kept.add(name)
                log.warning("%r is another home's now, and stays loaded here: %s", name, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        if None in outcomes:
            log.info("%r is another home's now, and is unloaded here", name)
        return None in outcomes


def planned_for(number: int, assignment: Mapping[str, int]) -> frozenset[str]:
    """The models that a plan gives to a home."""
    return frozenset(name for name, home in assignment.items() if home == number)


async def load_missing(backends: Sequence[Backend], names: frozenset[str]) -> bool:
    """Have all of the Tritons load what none of them has; whether any did. What cannot be loaded is said in the log.

    Raises BackendError where they cannot be asked.
    """
    if not names:
        return False
    ready = [await backend.ready_versions() for backend in backends]
    missing = sorted(names.difference(*ready))
    loads = [backend.load(name) for name in missing for backend in backends]
    outcomes = await asyncio.gather(*loads, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BackendError):
            log.error("the plan has a model here that is not: %s", outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
    return None in outcomes
