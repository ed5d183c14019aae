"""What takes long, beside the event loop: in a thread that the end of the process does not wait for."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """What `work` gives, or raises, in a thread of its own; whoever is cancelled meanwhile leaves it behind."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)  # type: ignore[arg-type]  # what `work` gave

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as raised:  # whoever awaits it gets it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=run, daemon=True).start()
    return await outcome
