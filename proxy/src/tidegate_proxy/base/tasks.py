"""Tasks of asyncio: their cancellation, and work in threads that nothing waits for at the end."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel the tasks, and return when all have ended, however they do."""
    begun = [task for task in tasks if task]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread of its own; return its result or raise its exception. Cancellation abandons the thread."""
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
        except BaseException as raised:  # raised in the caller that awaits it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=run, daemon=True).start()
    return await outcome
