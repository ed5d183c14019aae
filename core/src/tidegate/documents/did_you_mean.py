"""What somebody may have meant who wrote a name that there is not."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

LIKENESS: Final = 0.7
"""How like each other two names are, at least, for one to be a slip of the other (difflib's ratio; 1: equal)."""


def closest(given: str, known: Iterable[str]) -> str | None:
    """The known name that is most like the given one, capitals aside; None where none is like it."""
    names = {name.lower(): name for name in known}
    found = get_close_matches(given.lower(), names, n=1, cutoff=LIKENESS)
    return names[found[0]] if found else None


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A question behind "there is no such thing": `; did you mean 'symphony'?`. Empty where nothing is like it."""
    meant = closest(given, known)
    return "" if meant is None else f"; did you mean {meant!r}?"
