"""Output of `tidegate profile`: a row for each shape and batch size, and the lines fitted to them."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from tidegate.commands.common import console_for_tables
from tidegate.schemas import ModelProfile


def print_profiles(measured: Sequence[ModelProfile], requests: Mapping[str, int | None]) -> None:
    """Print the profiles of one model.

    `requests`: how many requests of an event log had each shape; None for a shape that was not drawn from one.
    """
    by_shape = any(profile.shape for profile in measured)
    counted = any(requests.values())
    first = measured[0]
    table = Table(
        title=f"{first.model} through Triton"
        + ("" if first.device_class == "default" else f", on {first.device_class}")
    )
    for head in ("shape",) * by_shape + ("requests",) * counted:
        table.add_column(head, justify="left" if head == "shape" else "right")
    for head in ("rows", "median ms", "p95 ms", "line ms", "rows/s"):
        table.add_column(head, justify="right")
    console = console_for_tables()
    lines = []
    for profile in measured:
        count = requests.get(profile.shape)
        named = [profile.shape] * by_shape + ["" if count is None else f"{count:,}"] * counted
        for point in profile.points:
            line_ms = profile.alpha_ms * point.rows + profile.beta_ms
            cells = (f"{cell:.2f}" for cell in (point.median_ms, point.p95_ms, line_ms))
            table.add_row(*named, str(point.rows), *cells, f"{point.rows / point.median_ms * 1e3:,.0f}")
            named = [""] * len(named)
        table.add_section()
        of_shape = f"{profile.shape}: " if by_shape else ""
        lines.append(f"{of_shape}l(b) = {profile.alpha_ms:.3f} ms * b + {profile.beta_ms:.3f} ms")
    console.print(table)
    for line in lines:
        console.print(line, markup=False)
