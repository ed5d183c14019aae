"""Numbers and names formatted for sentences, tables and charts of a report."""

from collections.abc import Sequence
from html import escape


def share(value: float) -> str:
    """Format a fraction in percent; only exactly 1 becomes 100 %, and only exactly 0 becomes 0 %."""
    percents = 100 * value
    for digits in (1, 2, 3):
        shown = f"{percents:.{digits}f}"
        if value in {0.0, 1.0} or float(shown) not in {0.0, 100.0}:
            return f"{shown} %"
    return "over 99.999 %" if value > 0.5 else "under 0.001 %"


def limit(value: float) -> str:
    """Format a configured fraction in percent, with all of its digits."""
    return f"{100 * value:g} %"


def rate(value: float) -> str:
    """Format a rate in requests per second, without decimals from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: `1 worker`, `8 workers`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """Join words to a list: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


NAME_END = 12
"""Characters at the end of a long name that are always shown."""


def named(name: str) -> str:
    """Return a name as HTML; `style.css` shortens it before its end where there is no room."""
    end = NAME_END if len(name) > 2 * NAME_END else 0
    head, tail = name[: len(name) - end], name[len(name) - end :]
    ending = f"<span>{escape(tail)}</span>" if tail else ""
    return f'<span class="name" title="{escape(name)}"><span>{escape(head)}</span>{ending}</span>'


def shortened(name: str, most: int) -> str:
    """Return a name of at most `most` characters, cut in its middle."""
    if len(name) <= most:
        return name
    end = max(1, 2 * most // 3)
    return f"{name[: most - end - 1]}…{name[-end:]}"
