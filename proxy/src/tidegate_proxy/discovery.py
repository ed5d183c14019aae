"""Keeps the catalog true: asks the Tritons again when what they serve may have changed."""

import asyncio
import logging
from collections.abc import Mapping

from tidegate.api import Layout, ModelProfile, Profile
from tidegate_proxy.backend import Backend, BackendError
from tidegate_proxy.catalog import Catalog, Directory, discover
from tidegate_proxy.configuration.config import ModelConfig
from tidegate_proxy.consent import lines_of
from tidegate_proxy.driver import Driver
from tidegate_proxy.faults import faults
from tidegate_proxy.observability.statistics import Statistics
from tidegate_proxy.queue_delay import drop_delays

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
"""How often the Tritons are asked for what was loaded or unloaded without Tidegate."""


class Discovery:
    """Lives in the event loop."""

    def __init__(
        self,
        backends: list[Backend],
        directory: Directory,
        driver: Driver,
        statistics: Statistics,
        measured: Mapping[tuple[str, str], ModelProfile],
        told: Mapping[str, ModelConfig],
        layout: Layout | None = None,
    ) -> None:
        self.backends = backends
        """All Tritons; changes in place."""
        self.told = told
        """What the configuration says of models, in place of their configs."""
        self.layout = layout
        """What the Tritons follow."""
        self._directory = directory
        self._driver = driver
        self._statistics = statistics
        self._measured = measured
        self._one_at_a_time = asyncio.Lock()
        driver.recovery.look_again = self._look_at
        declare(statistics, directory.catalog)
        tell(directory.catalog)

    async def refresh(self) -> None:
        """Ask every living Triton; a catalog that does not add up changes nothing, and is said so."""
        await self._refresh(None)

    async def change(self, backends: list[Backend], told: Mapping[str, ModelConfig], layout: Layout | None) -> None:
        """Other Tritons, words on models or layout from now on; a Triton that was given up joins when it is back.

        Raises BackendError or ValueError, and changes nothing, for what does not add up.
        """
        async with self._one_at_a_time:
            before = self._directory.catalog
            await drop_delays([backend for backend in backends if backend.alive], told)
            catalog = await discover(backends, told, before, layout=layout)
            self._driver.membership.adopt(catalog, starting_profiles(catalog, self._measured))
            self.backends[:] = backends
            self.told, self.layout = told, layout
            declare(self._statistics, catalog)
            tell(catalog, before)

    async def take_back(self, backend: Backend) -> None:
        """A Triton that was given up answers again: what it serves now counts."""
        if await self._refresh(backend):
            log.warning("Triton at %s is back", backend.address)
            if self._driver.regions:
                await self._driver.regions.share_with(backend)

    async def look_around(self) -> None:
        """For ever: notice what was loaded or unloaded without us."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for backend in [backend for backend in self.backends if backend.alive]:
                await self._look_at(backend)

    async def _look_at(self, backend: Backend) -> None:
        """Take up what one of the Tritons has loaded or unloaded, if it has; a fault only delays that."""
        try:
            await self._compare(backend)
        except BackendError as error:
            log.debug("%s", error)
        except Exception as error:  # there is a next time
            faults.report("looking for changes of what the Tritons serve", error)

    async def _compare(self, backend: Backend) -> None:
        if await backend.ready_versions() != _known(self._directory.catalog, backend):
            await self.refresh()

    async def _refresh(self, returning: Backend | None) -> bool:
        async with self._one_at_a_time:
            before = self._directory.catalog
            try:
                await drop_delays([each for each in self.backends if each.alive or each is returning], self.told)
                catalog = await discover(self.backends, self.told, before, returning, self.layout)
                self._driver.membership.adopt(catalog, starting_profiles(catalog, self._measured), returning)
            except (BackendError, ValueError) as error:
                log.error("what the Tritons serve has changed and cannot be taken up: %s", error)
                return False
            declare(self._statistics, catalog)
            if catalog.disagreements != before.disagreements:
                for words in catalog.disagreements or ["all Tritons have the same models again"]:
                    log.warning("%s", words)
            tell(catalog, before)
            return True


def starting_profiles(catalog: Catalog, measured: Mapping[tuple[str, str], ModelProfile]) -> tuple[Profile, ...]:
    """What to plan with at first: what the layout says, or each model's measured profile, else a guess.

    A guess is too small to drop anything by. Either is corrected online by what is observed.
    """
    if catalog.layout:
        return catalog.layout.contract()[2]
    return tuple(
        measured[model.name, "default"].to_profile(model.max_rows)
        if (model.name, "default") in measured
        else Profile.linear(model.name, alpha_ms=0.05, beta_ms=0.5, max_rows=model.max_rows)
        for model in catalog.models.values()
    )


def declare(statistics: Statistics, catalog: Catalog) -> None:
    """Say which models are counted here: those that are scheduled, and ensembles with one of them among their steps."""
    ensembles = {
        name for name, steps in catalog.ensembles.items() if any(model in catalog.models for model, _ in steps)
    }
    counted = {*catalog.models, *ensembles}
    for model, versions in catalog.versions.items():
        statistics.declare(model, versions if model in counted else ())
    for ensemble in ensembles:
        statistics.declare_ensemble(ensemble, catalog.ensembles[ensemble])


def tell(catalog: Catalog, before: Catalog | None = None) -> None:
    """Log what happens to the requests of every model, and why, where that is not as before."""
    known = before.consents if before else {}
    changed = {name: consent for name, consent in sorted(catalog.consents.items()) if known.get(name) != consent}
    for line in lines_of(changed):
        log.info("%s", line)
    for name, consent in changed.items():
        if consent.warning:
            log.warning("%s: %s", name, consent.warning)


def _known(catalog: Catalog, backend: Backend) -> dict[str, tuple[str, ...]]:
    return {model.config.name: model.versions for model in catalog.loaded.get(backend, ())}
