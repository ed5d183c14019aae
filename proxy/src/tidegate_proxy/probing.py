"""Looks after every Triton: one that does not answer any more is given up, one that answers again is taken back."""

import asyncio

from tidegate_proxy.backend import Backend
from tidegate_proxy.driver import Driver

EVERY_S = 0.5
PATIENCE = 3
"""Probes in a row without an answer after which a Triton counts as hung. One that refuses connections is found at
once, by the calls that fail."""


async def watch(backend: Backend, driver: Driver) -> None:
    """Probe one Triton for ever."""
    silent = 0
    while True:
        await asyncio.sleep(EVERY_S)
        if not backend.alive:
            if await backend.is_ready():
                driver.take_back(backend)
                silent = 0
        elif await backend.is_live():
            silent = 0
        else:
            silent += 1
            if silent == PATIENCE:
                driver.give_up(backend, f"it did not answer {PATIENCE} probes")
