"""Rollout mode: which requests bypass scheduling though they could be scheduled, and which version requests get."""

import asyncio
from collections.abc import Callable

from tidegate.engine import Engine
from tidegate.schemas import ProfileFile
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.messages.request import InferenceRequest
from tidegate_proxy.rollout.canary import Canary
from tidegate_proxy.rollout.shadow import Shadow
from tidegate_proxy.rollout.versions import VersionRollouts
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog


class RolloutMode:
    """Shadow mode and canary of the policy, of which at most one is active, and the rollouts of versions."""

    def __init__(
        self,
        config: ServeConfig,
        in_force: SettingsHolder,
        directory: CurrentCatalog,
        measured: ProfileFile,
        engine: Engine,
    ) -> None:
        """Create the rollout mode.

        `measured`: profiles for the shadow's simulator; `engine`: schedules the requests that are not bypassed.
        """
        self.shadow = Shadow(config, in_force, directory, measured)
        self.canary = Canary(config, in_force, directory, lambda: engine.decides)
        self.versions = VersionRollouts(config, directory)
        engine.reducer.add_listener(self.canary)

    def bypasses(self) -> tuple[Callable[[InferenceRequest], bool], ...]:
        """Return the functions that decide whether a schedulable request is bypassed; empty if both are off."""
        if self.shadow.is_on:
            return (self._shadowed,)
        return (self._passed_for_now,) if self.canary.is_on else ()

    def judged(self) -> Callable[[], Catalog] | None:
        """Return a function that returns the catalog of models to judge; None: the current catalog."""
        return self.shadow.judged if self.shadow.is_on else None

    def watchers(self) -> tuple[Callable[[str, int, int, bool], None], ...]:
        """Return the functions that count responses to unscheduled requests; empty if both are off."""
        if self.shadow.is_on:
            return (self.shadow.ended,)
        return (self.canary.passed,) if self.canary.is_on else ()

    def _shadowed(self, envelope: InferenceRequest) -> bool:
        self.shadow.seen(envelope)
        return True

    def _passed_for_now(self, envelope: InferenceRequest) -> bool:
        return not self.canary.schedules(envelope)

    def follow(self, config: ServeConfig) -> None:
        """Report on another policy, or with other settings of models, from now on."""
        self.shadow.follow(config)
        self.canary.follow(config)
        self.versions.follow(config)

    async def run(self, driver: Driver) -> None:
        """Run forever: the background work of all."""
        await asyncio.gather(self.shadow.run(), self.canary.run(), self.versions.run(driver))

    async def close(self) -> None:
        """Stop the background work."""
        await self.shadow.close()
