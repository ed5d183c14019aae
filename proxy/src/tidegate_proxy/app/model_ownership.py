"""Model ownership of a shard: the models of its Tritons, except those that a plan assigns to other shards."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.engine import Engine
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.frontends.frames import ShardModels
from tidegate_proxy.frontends.shard import Shard
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.tritons.backend import Backend, BackendError
from tidegate_proxy.tritons.catalog import CurrentCatalog

log = logging.getLogger(__name__)

_HANDOVER_POLL_S: Final = 0.1


class ServedModels:
    """Models that a shard serves: those of its Tritons, except those assigned elsewhere."""

    def __init__(self, shard: Shard, directory: CurrentCatalog) -> None:
        assert shard.number is not None, "it is one of several"
        self.number = shard.number
        """Number of this shard."""
        self._shard = shard
        self._directory = directory
        self._assignment: Mapping[str, int] = {}

    def plan(self, assignment: Mapping[str, int]) -> None:
        """Apply a new assignment of models to shards."""
        self._assignment = assignment

    @property
    def leaving(self) -> frozenset[str]:
        """Models of the Tritons that other shards own."""
        names = self._directory.catalog.names
        return frozenset(name for name in names if self._assignment.get(name, self.number) != self.number)

    def was_left(self, name: str) -> bool:
        """Return whether no frontend sends requests for a model here any more."""
        return self._shard.was_left(name)

    def tell(self) -> None:
        """Notify the frontends of the models."""
        leaving = self.leaving
        self._shard.tell(ShardModels(self._directory.catalog.names - leaving, leaving))


class ModelOwnership:
    """One shard's part in the assignment of models. Use it only in its event loop.

    A model that arrives is loaded before it is claimed; one that leaves is served until no frontend requests it here,
    and then unloaded. There is no coordinator: whichever shard learns of a move first, no request is lost.
    """

    def __init__(self, served: ServedModels, discovery: Discovery, engine: Engine) -> None:
        """Create the model ownership.

        `served`: models to serve; discovery notifies it when the Tritons have other models.
        """
        self._served = served
        self._discovery = discovery
        self._engine = engine
        self._following: asyncio.Task[None] | None = None
        self._parting: asyncio.Task[None] | None = None
        self._kept: set[str] = set()
        """Models that are to go, and that a Triton does not unload."""

    async def begin(self, assignment: Mapping[str, int]) -> None:
        """Apply the first assignment before any request, and unload models assigned elsewhere."""
        await self._follow(assignment)
        self._parting = asyncio.get_running_loop().create_task(self._part_with_others())

    async def _follow(self, assignment: Mapping[str, int]) -> None:
        """Load what a plan gives to this shard, and tell the frontends."""
        self._served.plan(assignment)
        self._kept.clear()
        if await load_missing(self._living(), planned_for(self._served.number, assignment)):
            await self._discovery.refresh()
        self._served.tell()

    def follow(self, assignment: Mapping[str, int]) -> None:
        """Apply another assignment while serving continues: loading may take long."""
        if self._following:
            self._following.cancel()
        self._following = asyncio.get_running_loop().create_task(self._follow_guarded(assignment))

    async def close(self) -> None:
        """Stop, and unload nothing."""
        await cancel(self._following, self._parting)

    async def _follow_guarded(self, assignment: Mapping[str, int]) -> None:
        try:
            await self._follow(assignment)
        except BackendError as error:
            log.error("plan not applied", extra={"error": str(error)})
        except Exception as error:
            faults.report("taking up a plan", error)

    async def _part_with_others(self) -> None:
        """For ever: unload what was planned elsewhere once it is asked for there."""
        while True:
            await asyncio.sleep(_HANDOVER_POLL_S)
            with faults.contained("parting with a model"):  # there is a next time
                gone = [name for name in sorted(self._served.leaving - self._kept) if self._is_done_with(name)]
                unloaded = [await self._unload(name) for name in gone]
                if any(unloaded):
                    await self._discovery.refresh()

    def _is_done_with(self, name: str) -> bool:
        return self._served.was_left(name) and all(
            request.model != name for request in self._engine.reducer.open.values()
        )

    def _living(self) -> Sequence[Backend]:
        return [backend for backend in self._discovery.backends if backend.alive]

    async def _unload(self, name: str) -> bool:
        """Whether any of the Tritons has unloaded it; else it is kept, and no more is done about it."""
        outcomes = await asyncio.gather(*(backend.unload(name) for backend in self._living()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BackendError):
                self._kept.add(name)
                log.warning(
                    "model moved to another shard, still loaded here", extra={"model": name, "error": str(outcome)}
                )
            elif isinstance(outcome, BaseException):
                raise outcome
        if None in outcomes:
            log.info("model moved to another shard, unloaded here", extra={"model": name})
        return None in outcomes


def planned_for(number: int, assignment: Mapping[str, int]) -> frozenset[str]:
    """Return the models assigned to a shard."""
    return frozenset(name for name, shard in assignment.items() if shard == number)


async def load_missing(backends: Sequence[Backend], names: frozenset[str]) -> bool:
    """Load models that no Triton has on all of them; return whether any was loaded. Failures are logged.

    Raises BackendError if the Tritons cannot be queried.
    """
    if not names:
        return False
    ready = [await backend.ready_versions() for backend in backends]
    missing = sorted(names.difference(*ready))
    loads = [backend.load(name) for name in missing for backend in backends]
    outcomes = await asyncio.gather(*loads, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BackendError):
            log.error("planned model not loaded", extra={"error": str(outcome)})
        elif isinstance(outcome, BaseException):
            raise outcome
    return None in outcomes
