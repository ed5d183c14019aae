"""What-if simulation in another process, so that the event loop is not blocked."""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from tidegate.sim.what_if import WhatIfAnswer, WhatIfQuestion
from tidegate_proxy.app.dashboard.event_buffer import BufferedEvent
from tidegate_proxy.app.dashboard.what_if_input import WhatIfInput

AT_ONCE: Final = 50
"""Number of stimuli processed per step: a tenth of a millisecond."""
REQUESTS_AT_ONCE: Final = 200
GIVE_UP_S: Final = 60.0
MIN_REQUESTS: Final = 10
"""Smallest number of requests for a result."""


class WhatIf(msgspec.Struct, frozen=True):
    """Result of a what-if analysis for the page."""

    requests: int
    seconds: float
    """Time span of the requests in seconds."""
    took_s: float
    actual: float | None
    """Fraction that was answered on time."""
    answers: list[WhatIfAnswer]


async def what_if(question: WhatIfQuestion, moments: Sequence[BufferedEvent], *, learned: bool) -> WhatIf:
    """Simulate the requests of these stimuli; `question` has everything else. Raises ValueError with a message.

    `learned`: its profiles were learned online; otherwise they are corrected by the stages of these stimuli.
    """
    began = time.monotonic()
    gathering = WhatIfInput({profile.key: profile for profile in question.setup.profiles}, question.setup.workers)
    for first in range(0, len(moments), AT_ONCE):
        gathering.feed(moments[first : first + AT_ONCE])
        await asyncio.sleep(0)
    requests = gathering.requests
    if len(requests) < MIN_REQUESTS:
        raise ValueError(f"only {len(requests)} requests have ended in what was seen: it takes {MIN_REQUESTS}")
    if not question.setup.workers:
        raise ValueError("no worker is there")
    if learned:
        question = replace(question, factors=gathering.factors)
    else:
        profiles, factors = gathering.corrected()
        setup = replace(question.setup, profiles=tuple(profiles))
        question = replace(question, setup=setup, factors=factors)
    answers = await _simulated(question, requests)
    seconds = (requests[-1].arrival_ns - requests[0].arrival_ns) / 1e9
    return WhatIf(len(requests), seconds, round(time.monotonic() - began, 2), gathering.on_time, answers)


async def _simulated(question: WhatIfQuestion, requests: Sequence[object]) -> list[WhatIfAnswer]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tidegate_proxy.app.dashboard.what_if_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(GIVE_UP_S):
            _, (out, errors) = await asyncio.gather(_tell(process, question, requests), _hear(process))
    except TimeoutError as late:
        raise ValueError(f"the simulation did not end within {GIVE_UP_S:g} s: the machine is busy") from late
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ValueError(f"the simulation ended with {process.returncode}: {last}")
    return msgspec.json.decode(out, type=list[WhatIfAnswer])


async def _tell(process: asyncio.subprocess.Process, question: WhatIfQuestion, requests: Sequence[object]) -> None:
    """A few at a time: encoding takes time, too."""
    assert process.stdin is not None
    encoder = msgspec.json.Encoder()
    try:
        process.stdin.write(encoder.encode(question) + b"\n")
        for first in range(0, len(requests), REQUESTS_AT_ONCE):
            process.stdin.write(encoder.encode(requests[first : first + REQUESTS_AT_ONCE]) + b"\n")
            await process.stdin.drain()
            await asyncio.sleep(0)
        process.stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it has ended, and says why


async def _hear(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    out, errors = await asyncio.gather(process.stdout.read(), process.stderr.read())
    await process.wait()
    return out, errors
