"""Tritons that come and go: those that sources of the configuration (`discovery`) list join and leave while serving."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Final

from tidegate_proxy.access.gate import RestrictionError
from tidegate_proxy.app.tritons import Tritons, is_ready
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.configuration.triton_sources import SourceError, TritonSource
from tidegate_proxy.configuration.tritons import TritonAddress
from tidegate_proxy.transport.tls import TlsError
from tidegate_proxy.tritons.backend import BackendError
from tidegate_proxy.tritons.loop_detector import LoopDetector
from tidegate_proxy.tritons.sources import TritonList, list_tritons, watch_tritons

log = logging.getLogger(__name__)

RETRY_JOIN_S: Final = 0.5
"""Interval in seconds at which listed Tritons that are not ready are asked again."""
START_POLL_S: Final = 0.2
RETRY_SOURCE_S: Final = 5.0
"""Delay in seconds after an internal error until a source is followed again."""
READY_TIMEOUT_S: Final = 2.0
"""Time limit in seconds for a listed Triton to say that it is ready; it is asked again."""
_UNUSABLE: Final = (BackendError, RestrictionError, TlsError, ValueError, OSError)


class DiscoveredTritons:
    """Tritons that sources list. Use it only in the event loop.

    A listed Triton joins when it is ready. One that is listed no more leaves: it gets no requests, and those in flight
    end. A source that lists nothing, or cannot be read, keeps its Tritons, and so does one of whose new Tritons none is
    ready: a mistake in a list must not end the service.
    """

    def __init__(self, config: ServeConfig, tritons: Tritons, reconfiguring: asyncio.Lock) -> None:
        """Begin with the sources of a configuration. `reconfiguring`: held while the configuration changes."""
        self._tritons = tritons
        self._reconfiguring = reconfiguring
        self._sources: tuple[TritonSource, ...] = ()
        self._static: tuple[TritonAddress, ...] = ()
        """Tritons that the configuration itself names."""
        self._listed: dict[int, TritonList] = {}
        """The last list of each source, by its place among them."""
        self._watches: list[asyncio.Task[None]] = []
        self._withheld: frozenset[str] = frozenset()
        """gRPC addresses of listed Tritons that are about to be removed: they leave before their lists say so."""
        self._changed = asyncio.Event()
        self._complaints: dict[str, str] = {}
        """The last complaint about each source, and each Triton that does not join."""
        self.follow(config)

    def with_discovered(self, config: ServeConfig) -> ServeConfig:
        """Return a configuration that was read again with the Tritons that were discovered until now."""
        if not config.discovery:
            return config
        named = {triton.grpc for triton in config.tritons}
        found = [triton for triton in self._tritons.config.tritons if triton.grpc not in named]
        return config.model_copy(update={"tritons": (*config.tritons, *found)})

    def follow(self, config: ServeConfig) -> None:
        """Apply the sources, and the Tritons beside them, of a configuration without discovered ones."""
        self._static = config.tritons
        self._changed.set()
        if config.discovery == self._sources:
            return
        before = [(self._sources[place], found) for place, found in self._listed.items()]
        self._sources = config.discovery
        self._listed = {self._sources.index(source): found for source, found in before if source in self._sources}
        for task in self._watches:
            task.cancel()
        self._complaints.clear()
        self._watches = [asyncio.create_task(self._watch(*each)) for each in enumerate(self._sources)]

    def listed(self, source: TritonSource) -> TritonList:
        """Return the last list of a source."""
        return self._listed.get(self._sources.index(source), ()) if source in self._sources else ()

    def withhold(self, addresses: Collection[str]) -> None:
        """Have these Tritons, by gRPC address, leave as if they were not listed, until they are listed again."""
        self._withheld |= frozenset(addresses)
        self._changed.set()

    def readmit(self, addresses: Collection[str]) -> None:
        """Let Tritons that were withheld join again while they are listed."""
        self._withheld -= frozenset(addresses)
        self._changed.set()

    async def run(self) -> None:
        """Run forever: let Tritons join and leave as their sources list them."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                is_complete = await self._take_up()
            except Exception as error:  # there is a next time
                is_complete = False
                faults.report("following discovered Tritons", error)
            if not is_complete:
                await asyncio.sleep(RETRY_JOIN_S)
                self._changed.set()

    async def close(self) -> None:
        """Stop watching the sources."""
        await cancel(*self._watches)

    async def _watch(self, place: int, source: TritonSource) -> None:
        while True:
            with faults.contained(f"following the {source.label}"):  # there is a next time
                await self._follow_source(place, source)
            await asyncio.sleep(RETRY_SOURCE_S)

    async def _follow_source(self, place: int, source: TritonSource) -> None:
        async for answer in watch_tritons(source):
            if isinstance(answer, SourceError):
                self._complain(source.label, str(answer))
            elif not answer:
                self._complain(source.label, f"{source.label}: it lists no Triton; those that it listed before stay")
            else:
                self._settle(source.label)
                if self._listed.get(place) != answer:
                    self._listed[place] = answer
                    self._changed.set()

    async def _take_up(self) -> bool:
        """Let Tritons join and leave; whether they are as listed then."""
        listed = [each for found in self._listed.values() for each in found]
        self._withheld &= {each.grpc for each in listed}
        wanted = unique([*self._static, *(each for each in listed if each.grpc not in self._withheld)])
        known = {each.grpc for each in (*wanted, *self._tritons.config.tritons)} | {
            each.label for each in self._sources
        }
        self._complaints = {about: words for about, words in self._complaints.items() if about in known}
        ready = await self._ready([each for each in wanted if each not in self._tritons.config.tritons])
        async with self._reconfiguring:
            current = self._tritons.config.tritons
            joining = [each for each in wanted if each not in current]
            ready = [each for each in ready if each in joining]
            staying = [each for each in current if each in wanted]
            leaving = [each for each in current if each not in wanted]
            is_known = len(self._listed) == len(self._sources)
            may_leave = not leaving or (is_known and (bool(ready) or self._tritons.any_alive(staying)))
            if not may_leave:  # until all lists are known, and another can take over
                staying, leaving = list(current), []
            joined = await self._change(staying, leaving, ready)
            return may_leave and len(joined) == len(joining)

    async def _change(
        self, staying: Sequence[TritonAddress], leaving: Sequence[TritonAddress], ready: Sequence[TritonAddress]
    ) -> Sequence[TritonAddress]:
        """Apply a change, without the Tritons that cannot join; those that did."""
        if not leaving and not ready:
            return ready
        config = self._tritons.config.model_copy(update={"tritons": (*staying, *ready)})
        try:
            await self._tritons.change(config, None, suspects=())
        except _UNUSABLE as error:
            if len(ready) == 1:
                self._complain(ready[0].grpc, f"Triton at {ready[0].grpc} is listed and does not join: {error}")
            if len(ready) < 2:
                return await self._change(staying, leaving, ()) if ready and leaving else ()
            joined: list[TritonAddress] = []
            for triton in ready:  # one of them must not keep out the others
                kept = [each for each in leaving if each.grpc != triton.grpc]
                joined += await self._change([*staying, *kept, *joined], (), [triton])
            await self._change([*staying, *joined], leaving, ())
            return joined
        for triton in ready:
            log.info("triton joined", extra={"triton": triton.grpc})
        for triton in leaving:
            log.info("triton left", extra={"triton": triton.grpc})
        for triton in (*ready, *leaving):
            self._complaints.pop(triton.grpc, None)
        return ready

    async def _ready(self, joining: Sequence[TritonAddress]) -> list[TritonAddress]:
        """Return the Tritons that are ready; log why the others do not join."""
        config = self._tritons.config
        needs_http = config.listen.http is not None and all(triton.http for triton in config.tritons)

        async def ask(triton: TritonAddress) -> bool:
            why = "it is not ready"
            if needs_http and not triton.http:
                why = "its HTTP port is not known, and clients are served over HTTP; give it"
                self._complain(triton.grpc, f"Triton at {triton.grpc} is listed and does not join: {why}")
                return False
            try:
                async with asyncio.timeout(READY_TIMEOUT_S):
                    if await self._tritons.is_ready(triton):
                        return True
            except TimeoutError:
                why = f"it does not answer in {READY_TIMEOUT_S:g} s"
            except _UNUSABLE as error:
                why = str(error)
            self._complain(triton.grpc, f"Triton at {triton.grpc} is listed and does not join: {why}")
            return False

        answers = await asyncio.gather(*map(ask, joining))
        return [triton for triton, is_so in zip(joining, answers, strict=True) if is_so]

    def _complain(self, about: str, words: str) -> None:
        """Log what is wrong, once until it is something else."""
        if self._complaints.get(about) != words:
            self._complaints[about] = words
            log.warning("discovery incomplete", extra={"detail": words})

    def _settle(self, label: str) -> None:
        if self._complaints.pop(label, None):
            log.info("discovery works again", extra={"detail": label})


def unique(tritons: Sequence[TritonAddress]) -> list[TritonAddress]:
    """Return the Tritons without those at an address that stands there before."""
    found: dict[str, TritonAddress] = {}
    for triton in tritons:
        found.setdefault(triton.grpc, triton)
    return list(found.values())


async def lists_of(sources: Sequence[TritonSource]) -> tuple[list[TritonAddress], list[SourceError]]:
    """Return the Tritons that these sources list now, and why some cannot be read or list nothing."""
    found, failures = list[TritonAddress](), list[SourceError]()
    outcomes = await asyncio.gather(*map(list_tritons, sources), return_exceptions=True)
    for source, outcome in zip(sources, outcomes, strict=True):
        if isinstance(outcome, SourceError):
            failures.append(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        elif outcome:
            found += outcome
        else:
            failures.append(SourceError(f"{source.label}: it lists no Triton; is one ready?"))
    return found, failures


async def with_first_tritons(config: ServeConfig, in_force: SettingsHolder, loops: LoopDetector) -> ServeConfig:
    """Return a configuration with the Tritons that its sources list and that are ready.

    Waits until all are, or until `startup_timeout_s` is over and one is. Raises BackendError if there is none.
    """
    if not config.discovery:
        return config
    loop = asyncio.get_running_loop()
    give_up = loop.time() + config.startup_timeout_s
    while True:
        found, failures = await lists_of(config.discovery)
        listed = [triton for triton in unique([*config.tritons, *found]) if triton not in config.tritons]
        ready = [triton for triton in listed if await is_ready(triton, config, in_force, loops)]
        is_complete = not failures and len(ready) == len(listed)
        if is_complete or loop.time() > give_up:
            if not ready and not config.tritons:
                words = [str(error) for error in failures]
                words += [f"the Triton at {triton.grpc} is not ready" for triton in listed]
                raise BackendError(f"no Triton is found after {config.startup_timeout_s:g} s: {'; '.join(words)}")
            return config.model_copy(update={"tritons": (*config.tritons, *ready)})
        await asyncio.sleep(START_POLL_S)
