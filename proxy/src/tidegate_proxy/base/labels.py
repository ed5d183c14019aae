"""Labels from names that clients choose, bounded in length and number, as clients may be hostile."""

import hashlib
import re
from collections import OrderedDict
from typing import Final

MAX_LABEL_CHARACTERS: Final = 100
"""Largest length of a label, in characters."""
_FADES_AFTER: Final = 100
"""Number of labels, for each that is kept apart, after which counts are halved."""
_HOUR_S: Final = 3600.0
OTHER_LABEL: Final = "other"
"""Label value for all values beyond the limit."""
_SECRET: Final = re.compile("auth|key|token|secret|passw|credential|cookie|session|signature", re.IGNORECASE)
_DIGITS: Final = 16
"""How many digits of a digest are used."""


def digest(text: str) -> str:
    """Return a short digest that distinguishes a text without revealing it; "" for ""."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS] if text else ""


def may_be_secret(name: str) -> bool:
    """Return whether a header, or gRPC metadata, of this name may carry a secret: its values are stored as digests."""
    return _SECRET.search(name) is not None


def label(text: str) -> str:
    """Return a text unmodified, or the beginning of a long one with its digest."""
    return text if len(text) <= MAX_LABEL_CHARACTERS else f"{text[: MAX_LABEL_CHARACTERS - _DIGITS - 1]}#{digest(text)}"


class FrequentLabels:
    """Set of the most frequent labels; all others share one label.

    A newcomer replaces the least frequent label once it is more frequent itself: labels that come once each, made up by
    one client, occupy no slot. Counts are halved periodically, so that the past fades.
    """

    def __init__(self, most: int) -> None:
        """Create an empty set of at most `most` labels. At most this many others may replace them per hour."""
        self._most = most
        self._known: dict[str, int] = {}
        """How often each that is kept apart has come."""
        self._newcomers: OrderedDict[str, int] = OrderedDict()
        """The same of as many others, the latest last."""
        self._seen = 0
        self._replaceable = float(most)
        """How many may be replaced now: what is learned of each is kept elsewhere for ever."""
        self._at_s = 0.0

    def of(self, text: str, now_s: float) -> str:
        """Return the label for a text at an instant of a monotonic clock: itself, or `OTHER_LABEL`."""
        self._seen += 1
        if self._seen % (_FADES_AFTER * self._most) == 0:
            self._known = {label: count // 2 for label, count in self._known.items()}
        if text in self._known:
            self._known[text] += 1
            return text
        if len(self._known) < self._most:
            self._known[text] = 1
            return text
        count = self._newcomers[text] = self._newcomers.pop(text, 0) + 1
        if len(self._newcomers) > self._most:
            self._newcomers.popitem(last=False)
        return text if count > 1 and self._takes_a_place(text, count, now_s) else OTHER_LABEL

    def _takes_a_place(self, text: str, count: int, now_s: float) -> bool:
        least = min(self._known, key=self._known.__getitem__)
        self._replaceable += (now_s - self._at_s) * self._most / _HOUR_S if self._at_s else 0.0
        self._replaceable, self._at_s = min(self._replaceable, float(self._most)), now_s
        if count <= self._known[least] or self._replaceable < 1:
            return False
        self._replaceable -= 1
        del self._known[least], self._newcomers[text]
        self._known[text] = count
        return True
