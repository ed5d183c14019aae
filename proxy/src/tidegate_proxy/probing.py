"""Looks after every Triton: one that does not answer any more is given up, one that answers again is taken back."""

import asyncio
import logging

from tidegate_proxy.backend import Backend
from tidegate_proxy.discovery import Discovery
from tidegate_proxy.driver import Driver

log = logging.getLogger(__name__)

EVERY_S = 0.5
PATIENCE = 3
"""Probes in a row without an answer after which a Triton counts as hung. One that refuses connections is found at
once, by the calls that fail."""


async def watch(backend: Backend, driver: Driver, discovery: Discovery) -> None:
    """Probe one Triton for ever."""
    silent = 0
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            silent = await _look(backend, driver, discovery, silent)
        except Exception:  # whatever it answered to one probe, there is a next
            log.exception("a probe of Triton at %s failed", backend.address)


async def _look(backend: Backend, driver: Driver, discovery: Discovery, silent: int) -> int:
    """Probe once; how many probes in a row it has not answered."""
    driver.legs.give_up_overdue(backend, driver.limits)
    if not backend.alive:
        if await backend.is_ready():
            await discovery.take_back(backend)
        elif not await backend.is_live():
            backend.cut_off()  # what it was asked since it was given up, where no other can be asked
    elif not await backend.is_live():
        silent += 1
        if silent >= PATIENCE:
            driver.membership.give_up(backend, f"it did not answer {PATIENCE} probes")
        return silent
    return 0
