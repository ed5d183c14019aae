"""A bar on the terminal that costs the generator nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(console: Console, total_s: float) -> Iterator[Callable[[float, str], None]]:
    """Gives what shows (seconds done, what goes on).

    It is redrawn only when it is called: drawing by itself, more often, would make the generator late.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("connecting", total=total_s)

        def show(done_s: float, what: str) -> None:
            bar.update(task, completed=done_s, description=what, refresh=True)

        yield show
