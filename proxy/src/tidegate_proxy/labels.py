"""Names that clients give things, as short and as few as what is kept by name has to be: clients may be hostile."""

import hashlib
from typing import Final

LONGEST: Final = 100
"""Characters of a label."""
OTHER: Final = "other"
"""What labels become of which there are too many already."""
_DIGITS: Final = 16
"""How many digits of a digest are used."""


def digest(text: str) -> str:
    """What tells a text apart from others and says nothing else of it; "" for ""."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS] if text else ""


def label(text: str) -> str:
    """A text as it is; of one that is too long the beginning, and its digest."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - _DIGITS - 1]}#{digest(text)}"


class FirstLabels:
    """The labels that came first are kept apart; those that came when there were enough are all one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, text: str) -> str:
        """The label that stands for this one: itself, or `OTHER`."""
        if text in self._known:
            return text
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(text)
        return text
