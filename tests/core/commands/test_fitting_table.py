"""Tables at the widths of terminals: columns go, letters stay."""

from io import StringIO

import pytest
from rich.console import Console

from tidegate.commands.common import TableColumn, print_table

NAMES = ("triton(max_queue_delay_ms=2)", "eager")
COLUMNS = [
    TableColumn("policy", lambda name: name),
    *(TableColumn(f"figure {number}", lambda _name: "12345.7", number) for number in range(9)),
]


def _printed(width: int) -> str:
    output = StringIO()
    print_table(Console(file=output, width=width), COLUMNS, NAMES, "title")
    return output.getvalue()


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40, 30])
def test_a_table_is_never_wider_and_cuts_no_letter(width: int) -> None:
    lines = _printed(width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    cells = "".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    assert cells == "".join(NAMES)
    assert all(line.count("12345.7") >= 1 for line in lines if "triton" in line)


def test_what_matters_least_goes_first_and_is_named() -> None:
    shown = _printed(80)
    assert "figure 0 ┃ figure 1" in shown
    left = [number for number in range(9) if f"figure {number} ┃" not in shown]
    assert left == list(range(left[0], 9)), "the highest priorities"
    notes = " ".join(shown.split("┘")[1].split())
    assert notes == f"Not shown at 80 columns: {', '.join(f'figure {number}' for number in left)}."
    assert "Not shown" not in _printed(200)
