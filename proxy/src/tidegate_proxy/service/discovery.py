"""Discovery: keeps the catalog current by querying the Tritons, and probes their health."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tidegate.control import LayoutRevision
from tidegate.schemas import Layout, ProfileFile
from tidegate_proxy.access.gate import RestrictionError
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.observability.model_statistics import ModelStatistics
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.service.fan_out import ControlVerb
from tidegate_proxy.service.open_sequences import OpenSequences
from tidegate_proxy.tritons import restrictions as of_tritons
from tidegate_proxy.tritons.backend import Backend, BackendError, LoadedModel
from tidegate_proxy.tritons.batching_mode import drop_delays, lines_of
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog, catalog_for_layout, discover
from tidegate_proxy.tritons.initial_profiles import starting_profiles
from tidegate_proxy.tritons.model_graphs import stages_of
from tidegate_proxy.tritons.serialization import ModelOutcomes

log = logging.getLogger(__name__)


DISCOVERY_INTERVAL_S = 5.0
"""Interval in seconds at which the Tritons are queried for models loaded or unloaded without Tidegate."""
LOOKS_PER_REFRESH = 5
"""Number of checks per interval for models to serialize, each with the configs of some models."""
DRAIN_S = 30.0
"""Longest time in seconds that an unload waits for the model's requests; less if its client's deadline is earlier."""
DRAIN_POLL_S = 0.01
CONFIGS_PER_LOOK = 50
"""Models of one Triton whose configs are queried at a time: all of them per interval, up to 250."""


@dataclass(eq=False, repr=False)
class Discovery:
    """Discovery: keeps the catalog current by polling the Tritons. Call only from the event loop."""

    backends: list[Backend]
    """All Tritons; modified in place."""
    _directory: CurrentCatalog
    _driver: Driver
    _statistics: ModelStatistics
    _measured: ProfileFile
    _config: ServeConfig
    layout: Layout | None = None
    """Current layout of the Tritons."""
    _on_change: Callable[[], None] = lambda: None
    """Called after another catalog was applied."""

    def __post_init__(self) -> None:
        self.configured = self._config.models
        """Models as configured, which take precedence over their config.pbtxt."""
        self._over_http = self._config.listen.http is not None
        self._refused: dict[Backend, tuple[float, str]] = {}
        """Tritons that are not taken back, until when they are not asked again, and why."""
        self._turns_changed = False
        """Whether other models are serialized than the catalog says."""
        self._aside: dict[Backend, frozenset[str]] = {}
        """Tritons that get no requests while they load or unload, each with its models before."""
        self._suspects: set[str] = set()
        """Models whose configs may have changed since they were asked for."""
        self._refreshes_asked = self._refreshes_done = 0
        """How often a refresh was asked for, and how many of these one that began later has served."""
        self._configs_asked: WeakKeyDictionary[Backend, int] = WeakKeyDictionary()
        """Where among its models the next look asks for configs."""
        self.one_at_a_time = asyncio.Lock()
        """Lock to hold while changing, or querying, what the Tritons serve."""
        self.sequences = OpenSequences()
        """Sequences that have begun, each at its Triton."""
        declare(self._statistics, self._directory.catalog)
        tell(self._directory.catalog)

    async def refresh(self, suspects: Iterable[str] = ()) -> None:
        """Query every live Triton for its models, and for the configs of new ones and of `suspects`.

        An inconsistent catalog is logged and changes nothing. Concurrent callers share one refresh.
        """
        self._suspects.update(suspects)
        self._refreshes_asked += 1
        mine = self._refreshes_asked
        async with self.one_at_a_time:
            if self._refreshes_done < mine:
                await self._refresh(None)

    @asynccontextmanager
    async def changing(
        self, verb: ControlVerb, model: str, repository: str, backend: Backend, limit_s: float = math.inf
    ) -> AsyncIterator[None]:
        """Surround a client's call that loads or unloads a model at a Triton: apply the change afterwards.

        Before an unload, scheduled requests end, as at Triton, and sequences where another Triton takes new ones;
        within `limit_s` and `DRAIN_S`; 0: they fail. An unload that the Triton rejects changes nothing. `repository`:
        repository that the call names; empty: none.
        """
        async with self._set_aside(backend), self._taken_up(verb, model, repository, backend, limit_s):
            yield

    @property
    def change_width(self) -> int:
        """Number of Tritons that may load or unload a model at a time."""
        return max(1, self._config.rollouts.max_unavailable)

    @asynccontextmanager
    async def _set_aside(self, backend: Backend) -> AsyncIterator[None]:
        """Send a Triton nothing during the block, if the configuration wants that and the others can do without it."""
        limit = self._config.rollouts.max_unavailable
        while limit and len(self._aside) >= limit:
            await asyncio.sleep(DRAIN_POLL_S)
        loaded = frozenset(_known(self._directory.whole, backend))
        if not limit or not self._can_spare(backend, loaded):
            yield
            return
        self._aside[backend] = loaded
        try:
            await self.refresh()
            log.info("triton set aside", extra={"triton": backend.address})
            await self._drain_triton(backend)
            yield
        finally:
            self._aside.pop(backend, None)
            await self.refresh()
            log.info("triton used again", extra={"triton": backend.address})

    def _can_spare(self, backend: Backend, models: Collection[str]) -> bool:
        """Whether other Tritons have all models of one, of which none has sequences: these keep their Triton."""
        catalog = self._directory.whole
        others = {
            name
            for other, loaded in catalog.loaded.items()
            if other.alive and other is not backend and other not in self._aside
            for name in (model.config.name for model in loaded)
        }
        return self.layout is None and others.issuperset(models) and catalog.sequential.isdisjoint(models)

    async def _drain_triton(self, backend: Backend) -> None:
        """Wait until what is in flight on a Triton has ended."""
        mine = [worker_id for worker_id, other in self._directory.whole.backend_of.items() if other is backend]
        give_up = time.monotonic() + DRAIN_S
        while time.monotonic() < give_up and backend in self._aside:
            if not backend.in_flight and not any(map(self._driver.engine.has_work, mine)):
                return
            await asyncio.sleep(DRAIN_POLL_S)

    async def _end_scarcity(self) -> None:
        """Use the Tritons that are set aside again where the others have been lost meanwhile."""
        scarce = [backend for backend, models in self._aside.items() if not self._can_spare(backend, models)]
        if scarce:
            for backend in scarce:
                self._aside.pop(backend)
            await self.refresh()

    @asynccontextmanager
    async def _taken_up(
        self, verb: ControlVerb, model: str, repository: str, backend: Backend, limit_s: float
    ) -> AsyncIterator[None]:
        """Apply afterwards what a call has changed; before an unload, let requests end: see `changing`."""
        has_model = backend in self._directory.whole.hosts.get(model, ())
        if verb.method == "RepositoryModelUnload" and limit_s and has_model:
            if not await backend.may_unload(repository):
                yield
                return
            with self._directory.unloading(model, backend):
                try:
                    await self._drain(model, backend, min(limit_s, DRAIN_S))
                    yield
                finally:
                    await self.refresh((model,))
            return
        try:
            yield
        finally:
            await self.refresh((model,))

    def _in_use(self, backends: Sequence[Backend]) -> list[Backend]:
        return [backend for backend in backends if backend not in self._aside]

    async def _drain(self, model: str, backend: Backend, limit_s: float) -> None:
        """Wait until the scheduled requests of a model have ended, and its sequences at a Triton."""
        clients, give_up = self._driver.clients, time.monotonic() + limit_s
        while (now_s := time.monotonic()) < give_up and (
            any(client.envelope.model == model for client in clients) or self._has_sequences(now_s, model, backend)
        ):
            await asyncio.sleep(DRAIN_POLL_S)

    def _has_sequences(self, now_s: float, model: str, backend: Backend) -> bool:
        """Whether sequences of a model may go on at a Triton while another one takes the new ones."""
        catalog = self._directory.whole
        others = any(host.alive and host is not backend for host in catalog.hosts.get(model, ()))
        return others and self.sequences.count(now_s, model, backend, catalog.sequence_idle_s) > 0

    async def change(
        self,
        backends: list[Backend],
        config: ServeConfig,
        layout: Layout | None,
        suspects: Collection[str] | None = None,
    ) -> None:
        """Apply other Tritons, settings of models, or layout; a lost Triton joins when it is back.

        `suspects`: models whose configs may have changed at Tritons that are known; None: all models. Raises
        BackendError, RestrictionError or ValueError, and changes nothing, for an inconsistent state.
        """
        async with self.one_at_a_time:
            before, configured = self._directory.catalog, config.models
            living = [backend for backend in backends if backend.alive]
            await of_tritons.log_restrictions(living, config, over_http=self._over_http)
            await drop_delays(living, configured)
            catalog = await discover(
                self._in_use(backends),
                configured,
                before,
                layout=layout,
                unbatched=self._directory.unbatched,
                suspects=suspects,
                graphs=config.graphs,
            )
            catalog.check_padding()
            catalog.check_graphs()
            self._driver.membership.adopt(catalog, starting_profiles(catalog, self._measured))
            self.backends[:] = backends
            self.configured, self.layout, self._config = configured, layout, config
            self._refused.clear()
            declare(self._statistics, catalog)
            tell(catalog, before)
            self._on_change()

    def switch(
        self, backends: list[Backend], joining: Mapping[Backend, list[LoadedModel]], revision: LayoutRevision
    ) -> None:
        """Switch the Tritons to another layout at this instant; the caller holds `one_at_a_time`.

        `joining`: models loaded on the new Tritons. Raises BackendError or ValueError, and changes nothing, for an
        inconsistent state.
        """
        before = self._directory.catalog
        loaded = {backend: joining.get(backend) or before.loaded[backend] for backend in backends}
        ids = {worker.name: worker_id for worker_id, worker in revision.workers.items()}
        catalog = catalog_for_layout(before, loaded, self.configured, revision.layout, ids)
        catalog.check_padding()
        self._driver.membership.adopt(catalog, starting_profiles(catalog, self._measured))
        self.backends[:] = backends
        self.layout = revision.layout
        declare(self._statistics, catalog)
        tell(catalog, before)

    async def take_back(self, backend: Backend) -> None:
        """Take back a lost Triton that answers again, once it lists its models.

        It may be another process, with other restricted APIs. One without a key for a required API is rejected with a
        log message.
        """
        now_s = asyncio.get_running_loop().time()
        until_s, message = self._refused.get(backend, (now_s, ""))
        if now_s < until_s:
            return
        try:
            if not await backend.serves():
                return
            await of_tritons.log_restrictions([backend], self._config, over_http=self._over_http, returning=True)
        except RestrictionError as error:
            if str(error) != message:
                log.error("triton back, not used", extra={"triton": backend.address, "error": str(error)})
            self._refused[backend] = (now_s + DISCOVERY_INTERVAL_S, str(error))
            return
        self._refused.pop(backend, None)
        async with self.one_at_a_time:
            is_taken = await self._refresh(backend)
        if is_taken:
            log.warning("triton back", extra={"triton": backend.address})
            if self._driver.regions:
                await self._driver.regions.share_with(backend)

    async def look_at_keys(self) -> None:
        """Apply changed headers that open restricted APIs: other APIs may now be left to the Tritons."""
        living = [backend for backend in self.backends if backend.alive]
        await of_tritons.log_restrictions(living, self._config, over_http=self._over_http, returning=True)
        await self.refresh(
            [model.config.name for backend in living for model in self._directory.catalog.loaded[backend]]
        )

    async def _ask_again(self, backend: Backend) -> None:
        """Ask once more what a Triton restricts that did not say so."""
        before = backend.apis
        try:
            await of_tritons.log_restrictions([backend], self._config, over_http=self._over_http, starts_s=0)
        except RestrictionError as error:
            log.error("triton restrictions not read", extra={"triton": backend.address, "error": str(error)})
            return
        if (backend.apis.left, backend.apis.closed) != (before.left, before.closed):
            await self.refresh([model.config.name for model in self._directory.catalog.loaded[backend]])

    async def look_around(self) -> None:
        """Run forever: detect models loaded or unloaded without Tidegate."""
        while True:
            for _ in range(LOOKS_PER_REFRESH):
                await asyncio.sleep(DISCOVERY_INTERVAL_S / LOOKS_PER_REFRESH)
                with faults.contained("looking for models to serialize"):  # there is a next time
                    await self._take_turns()
                with faults.contained("looking for Tritons that were lost during a load"):
                    await self._end_scarcity()
                living = [backend for backend in self.backends if backend.alive]
                await asyncio.gather(*(self._guarded(self._compare_configs, backend) for backend in living))
            for backend in [each for each in self.backends if each.alive and each not in self._aside]:
                if backend.apis.unknown:
                    await self._guarded(self._ask_again, backend)
                await self.look_at(backend)

    async def _take_turns(self) -> None:
        """Serialize models on the Tritons where that was learned to help, or end it."""
        now_ns, models = time.monotonic_ns(), self._directory.catalog.models
        ended = {name: ModelOutcomes(*counts) for name, counts in self._driver.observability.metrics.on_time().items()}
        for backend in self.backends:
            turns = backend.turns
            if turns and backend.learns_turns and backend.alive and turns.decide(now_ns, models, ended):
                self._turns_changed = True
                how = "serialized" if turns.group else "side by side"
                log.info(
                    "model serialization changed", extra={"triton": backend.address, "models": how, "detail": turns.why}
                )
        if not self._turns_changed:
            return
        async with self.one_at_a_time:
            self._turns_changed = not await self._refresh(None)
        if self._turns_changed:  # of models that different parts of `by-model` decide about, say
            for backend in self.backends:
                if backend.turns and backend.turns.group:
                    backend.turns.rest(now_ns, ended, "the policy does not take it")

    async def look_at(self, backend: Backend) -> None:
        """Apply models that one Triton has loaded or unloaded; an error only delays that."""
        await self._guarded(self._compare, backend)

    async def _guarded(self, compare: Callable[[Backend], Awaitable[None]], backend: Backend) -> None:
        try:
            await compare(backend)
        except BackendError as error:
            log.debug("triton not examined", extra={"triton": backend.address, "error": str(error)})
        except Exception as error:  # there is a next time
            faults.report("looking for changes of what the Tritons serve", error)

    async def _compare_configs(self, backend: Backend) -> None:
        """Take up configs that have changed while the versions stayed, of the next `CONFIGS_PER_LOOK` models."""
        loaded = self._directory.catalog.loaded.get(backend, []) if "model-config" not in backend.apis.closed else []
        number = min(CONFIGS_PER_LOOK, -(-len(loaded) // LOOKS_PER_REFRESH))
        first = self._configs_asked.get(backend, 0)
        self._configs_asked[backend] = first + number if first + number < len(loaded) else 0
        known = [model.config for model in loaded[first : first + number]]
        changed = [config.name for config in known if await backend.config(config.name) != config]
        if changed:
            await self.refresh(changed)

    async def _compare(self, backend: Backend) -> None:
        if await backend.ready_versions() != _known(self._directory.catalog, backend):
            await self.refresh()

    async def _refresh(self, returning: Backend | None) -> bool:
        """Whether what the Tritons serve now is taken up. The caller holds `one_at_a_time`."""
        asked, suspects = self._refreshes_asked, frozenset(self._suspects)
        before = self._directory.catalog
        try:
            await drop_delays([each for each in self.backends if each.alive or each is returning], self.configured)
            catalog = await discover(
                self._in_use(self.backends),
                self.configured,
                before,
                returning,
                self.layout,
                unbatched=self._directory.unbatched,
                suspects=suspects,
                graphs=self._config.graphs,
            )
            self._driver.membership.adopt(catalog, starting_profiles(catalog, self._measured), returning)
        except (BackendError, ValueError) as error:
            log.error("model changes not applied", extra={"error": str(error)})
            self._refreshes_done = asked
            return False
        self._refreshes_done = asked
        self._suspects -= suspects
        declare(self._statistics, catalog)
        if catalog.disagreements != before.disagreements:
            for words in catalog.disagreements:
                log.warning("tritons disagree", extra={"detail": words})
            if not catalog.disagreements:
                log.warning("tritons agree again: all serve the same models")
        tell(catalog, before)
        self._on_change()
        return True


def declare(statistics: ModelStatistics, catalog: Catalog) -> None:
    """Declare the models whose statistics are kept here: scheduled ones, and ensembles with one of them as a step."""
    ensembles = {
        name for name, steps in catalog.ensembles.items() if any(model in catalog.models for model, _ in steps)
    }
    counted = {*catalog.models, *ensembles}
    for model, versions in catalog.versions.items():
        statistics.declare(model, versions if model in counted else ())
    configs = {model.config.name: model.config for models in catalog.loaded.values() for model in models}
    for name in ensembles:
        known = catalog.graphs.get(name)
        statistics.declare_ensemble(name, known.stages if known else stages_of(configs[name]))


def tell(catalog: Catalog, before: Catalog | None = None) -> None:
    """Log the scheduling of every model, with the reason, if it has changed."""
    if before is None or catalog.places != before.places:
        for backend, place in catalog.places.items():
            if place.device_class and (before is None or before.places.get(backend) != place):
                log.info("device class", extra={"triton": backend.address, "device_class": place.device_class})
    known = before.consents if before else {}
    changed = {name: consent for name, consent in sorted(catalog.consents.items()) if known.get(name) != consent}
    for line in lines_of(changed):
        log.info("model scheduling", extra={"detail": line})
    for name, words in catalog.broken_graphs.items():
        if before is None or name not in before.broken_graphs:
            log.warning("graph not served", extra={"graph": name, "detail": words})
    for name, consent in changed.items():
        if consent.warning:
            log.warning("model needs attention", extra={"model": name, "detail": consent.warning})


def _known(catalog: Catalog, backend: Backend) -> dict[str, tuple[str, ...]]:
    return {model.config.name: model.versions for model in catalog.loaded.get(backend, ())}


EVERY_S = 0.5
MAX_MISSED_PROBES = 3
"""Consecutive probes that fail at once after which a Triton counts as lost.

One that answers nothing counts as hung after its `health_timeout_s`; one that refuses connections is detected earlier,
by failing calls.
"""


async def watch(backend: Backend, driver: Driver, discovery: Discovery) -> None:
    """Probe one Triton forever, one probe at a time. A Triton that answers inferences need not answer probes."""
    silence = TritonSilence()
    while True:
        await asyncio.sleep(EVERY_S)
        with faults.contained(f"a probe of Triton at {backend.address}"):  # there is a next
            await _look(backend, driver, discovery, silence)


@dataclass
class TritonSilence:
    """Silence of one Triton: consecutive unanswered probes, and the time since its last response."""

    probes: int = 0
    since_ns: int = 0


async def _look(backend: Backend, driver: Driver, discovery: Discovery, silence: TritonSilence) -> None:
    """Probe it, unless it has just answered something else."""
    driver.membership.give_up_overdue(backend)
    if backend.alive and backend.leads_back:
        driver.membership.give_up(backend, "its address leads back to Tidegate itself")
    began_ns = time.monotonic_ns()
    if not backend.alive:
        silence.probes = 0
        if driver.membership.is_ejected(backend):
            return
        if await backend.is_live():
            await discovery.take_back(backend)
        else:
            backend.cut_off()  # what it was asked since it was given up, where no other can be asked
    elif backend.heard_ns > began_ns - EVERY_S * 1e9 or await backend.is_live() or backend.heard_ns > began_ns:
        silence.probes = 0
    else:
        silence.since_ns = silence.since_ns if silence.probes else began_ns
        silence.probes += 1
        silent_s = (time.monotonic_ns() - silence.since_ns) / 1e9
        if silence.probes >= MAX_MISSED_PROBES or silent_s >= backend.health_timeout_s:
            driver.membership.give_up(backend, f"it did not answer {silence.probes} probes in {silent_s:.1f} s")
