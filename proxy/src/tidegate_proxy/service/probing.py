"""Looks after every Triton: one that does not answer any more is given up, one that answers again is taken back."""

import asyncio
import time
from dataclasses import dataclass

from tidegate_proxy.base.faults import faults
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.tritons.backend import Backend

EVERY_S = 0.5
PATIENCE = 3
"""Probes in a row that fail at once after which a Triton counts as gone. One that answers nothing at all counts as hung
after its `health_timeout_s`; one that refuses connections is found earlier, by the calls that fail."""


async def watch(backend: Backend, driver: Driver, discovery: Discovery) -> None:
    """Probe one Triton for ever, one probe at a time. Who answers inferences need not answer probes."""
    silence = Silence()
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            await _look(backend, driver, discovery, silence)
        except Exception as error:  # whatever it answered to one probe, there is a next
            faults.report(f"a probe of Triton at {backend.address}", error)


@dataclass
class Silence:
    """The silence of one Triton: probes in a row that it has not answered, and since when it has answered nothing."""

    probes: int = 0
    since_ns: int = 0


async def _look(backend: Backend, driver: Driver, discovery: Discovery, silence: Silence) -> None:
    """Probe it, unless it has just answered something else."""
    driver.membership.give_up_overdue(backend)
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
        if silence.probes >= PATIENCE or silent_s >= backend.health_timeout_s:
            driver.membership.give_up(backend, f"it did not answer {silence.probes} probes in {silent_s:.1f} s")
