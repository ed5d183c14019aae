"""Progress bar on the terminal that does not slow down the generator."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(console: Console, total: float) -> Iterator[Callable[[float, str], None]]:
    """Yield a function that shows (part of the total that is done, current activity).

    It redraws only when it is called: a thread that redraws would delay the generator.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("connecting", total=total)

        def show(done: float, what: str) -> None:
            bar.update(task, completed=done, description=what, refresh=True)

        yield show
