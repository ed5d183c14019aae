"""Child process that simulates recorded requests at the lowest priority, so that the event loop is not blocked.

Messages are lines of JSON: a head, the requests, some at a time, and an empty line. The answer is one line.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import msgspec

from tidegate.api import Request
from tidegate_proxy.base.tasks import cancel

REQUESTS_AT_ONCE: Final = 200
MAX_ANSWER: Final = 64 << 20
"""Maximum size of an answer in bytes."""
LAST_WORDS_S: Final = 1.0
"""Seconds for an ended process to write its last line to standard error."""


class SimulationProcess:
    """Process that runs a module and answers questions with simulations; it starts with the first question.

    Use it only in the event loop.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        """Create the process of a module, with these command-line arguments."""
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self._last_words: deque[bytes] = deque(maxlen=1)
        self._hearing: asyncio.Task[None] | None = None

    @property
    def process_id(self) -> int | None:
        """Id of the running process; None if there is none."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def ask(self, head: object, requests: Sequence[Request], timeout_s: float) -> bytes:
        """Send a question to the process and return the answer.

        Raises ValueError with the reason if there is none, and ends the process.

        Args:
            head: first line of the question.
            requests: recorded requests.
            timeout_s: seconds.
        """
        try:
            async with asyncio.timeout(timeout_s):
                if self.process_id is None:
                    await self._start()
                assert self._process is not None
                assert self._process.stdout is not None
                await self._tell(self._process, head, requests)
                answer = await self._process.stdout.readline()
        except TimeoutError as late:
            await self.close()
            raise ValueError(f"the simulation did not end within {timeout_s:g} s: the machine is busy") from late
        except BaseException:
            await self.close()
            raise
        if not answer:
            raise ValueError(await self._why_ended())
        return answer

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]  # asyncio has no public way to close the pipes
        await cancel(self._hearing)
        self._hearing = None

    async def _start(self) -> None:
        await self.close()
        pipe = asyncio.subprocess.PIPE
        self._last_words.clear()
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=pipe, limit=MAX_ANSWER
        )
        assert process.stderr is not None
        self._hearing = asyncio.create_task(_hear(process.stderr, self._last_words))

    async def _tell(self, process: asyncio.subprocess.Process, head: object, requests: Sequence[Request]) -> None:
        """Send a few at a time: encoding takes time, too."""
        assert process.stdin is not None
        encoder = msgspec.json.Encoder()
        try:
            process.stdin.write(encoder.encode(head) + b"\n")
            for first in range(0, len(requests), REQUESTS_AT_ONCE):
                process.stdin.write(encoder.encode(requests[first : first + REQUESTS_AT_ONCE]) + b"\n")
                await process.stdin.drain()
                await asyncio.sleep(0)
            process.stdin.write(b"\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended, and says why

    async def _why_ended(self) -> str:
        process, hearing = self._process, self._hearing
        assert process is not None
        assert hearing is not None
        await process.wait()
        await asyncio.wait([hearing], timeout=LAST_WORDS_S)
        words = self._last_words[-1].decode(errors="replace").strip() if self._last_words else "no reason was given"
        status = process.returncode
        await self.close()
        return f"the simulation ended with {status}: {words}"


async def _hear(stream: asyncio.StreamReader, last_words: deque[bytes]) -> None:
    async for line in stream:
        if line.strip():
            last_words.append(line)


def requests_of(lines: Iterator[bytes]) -> list[Request]:
    """Return the requests of the question whose head was read last; for the child process."""
    decoder = msgspec.json.Decoder(list[Request])
    found: list[Request] = []
    for line in lines:
        if not line.strip():
            break
        found += decoder.decode(line)
    return found


def answer(out: BinaryIO, document: object) -> None:
    """Write an answer; for the child process."""
    out.write(msgspec.json.encode(document) + b"\n")
    out.flush()
