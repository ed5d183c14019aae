"""Numbers as sentences and tables of a report write them."""

from collections.abc import Sequence


def share(value: float) -> str:
    """A share in percent; what is not all of it is never written as 100 %, nor what is something as 0 %."""
    percents = 100 * value
    for digits in (1, 2, 3):
        shown = f"{percents:.{digits}f}"
        if value in {0.0, 1.0} or float(shown) not in {0.0, 100.0}:
            return f"{shown} %"
    return "over 99.999 %" if value > 0.5 else "under 0.001 %"


def limit(value: float) -> str:
    """A share that somebody chose, as it was written."""
    return f"{100 * value:g} %"


def rate(value: float) -> str:
    """Requests per second: no decimals where they would be noise."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def plural(count: int, noun: str) -> str:
    """`1 worker`, `8 workers`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
