"""Suggestions for unknown names."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

MIN_SIMILARITY: Final = 0.7
"""Minimum similarity of two names for a suggestion (difflib's ratio; 1: equal)."""
MIN_STEM_CHARACTERS: Final = 4
"""Minimum length of a known name that an unknown one begins with."""


def closest(given: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `given`, ignoring case; None if none is close.

    A unit may be missing (`slo` for `slo_ms`), an end be too long (`certificate` for `cert`).
    """
    names = {name.lower(): name for name in known}
    found = get_close_matches(given.lower(), names, n=1, cutoff=MIN_SIMILARITY)
    longer = [name for name in names if name.startswith(f"{given.lower()}_")]
    shorter = [name for name in names if len(name) >= MIN_STEM_CHARACTERS and given.lower().startswith(name)]
    alike = found or (longer if len(longer) == 1 else shorter)
    return names[alike[0]] if len(alike) == 1 else None


def did_you_mean(given: str, known: Iterable[str], heading: str) -> str:
    """Return the end of an error message about an unknown name `given`, with a suggestion and the known names.

    For example `; did you mean 'symphony'? Installed: fifs, symphony`, or without a similar name `; installed: fifs,
    symphony`. `heading`: noun for the known names, in lower case.
    """
    names = sorted(known)
    meant = closest(given, names)
    listed = f"{heading}: {', '.join(names) or 'none'}"
    return f"; {listed}" if meant is None else f"; did you mean {meant!r}? {listed[0].upper()}{listed[1:]}"
