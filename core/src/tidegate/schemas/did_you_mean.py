"""Suggestions for unknown names."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

MIN_SIMILARITY: Final = 0.7
"""Minimum similarity of two names for a suggestion (difflib's ratio; 1: equal)."""


def closest(given: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `given`, ignoring case and units (`slo`, `slo_ms`); None if none is close."""
    names = {name.lower(): name for name in known}
    found = get_close_matches(given.lower(), names, n=1, cutoff=MIN_SIMILARITY)
    longer = [name for name in names if name.startswith(f"{given.lower()}_")]
    return names[found[0]] if found else names[longer[0]] if len(longer) == 1 else None


def did_you_mean(given: str, known: Iterable[str], heading: str) -> str:
    """Return the end of an error message about an unknown name `given`, with a suggestion and the known names.

    For example `; did you mean 'symphony'? Installed: fifs, symphony`, or without a similar name `; installed: fifs,
    symphony`. `heading`: noun for the known names, in lower case.
    """
    names = sorted(known)
    meant = closest(given, names)
    listed = f"{heading}: {', '.join(names) or 'none'}"
    return f"; {listed}" if meant is None else f"; did you mean {meant!r}? {listed[0].upper()}{listed[1:]}"
