"""Sequences stay with one Triton each, however many come and go beside it.

Rendezvous hashing: every Triton has a rank for a sequence, drawn from both their names, and the highest one that lives
has it. When one is lost only its own sequences move; when it is back only those that were its own return. Source:
D. G. Thaler, C. V. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates" (IEEE/ACM ToN 6(1), 1998).
"""

import re
from collections.abc import Sequence
from hashlib import blake2b

from tidegate_proxy.backend import Backend

_SEQUENCE_ID = re.compile(rb'"sequence_id"\s*:\s*(?:"((?:[^"\\]|\\.)*)"|(\d+))')


def keeper(sequence: str, backends: Sequence[Backend]) -> Backend:
    """The Triton, of at least one, that a sequence stays with. `sequence`: its model and id, in one text."""

    def rank(backend: Backend) -> bytes:
        return blake2b(f"{backend.address} {sequence}".encode(), digest_size=8).digest()

    return max(backends, key=rank)


def sequence_in_json(body: bytes) -> str:
    """The id of the sequence that an HTTP inference belongs to, "" for none, from the beginning of its body.

    A quotation mark within a JSON string is escaped: what looks like the key is the key. Whether the rest is
    well-formed is Triton's to say.
    """
    found = _SEQUENCE_ID.search(body)
    if found is None:
        return ""
    text, number = found.groups()
    if text is not None:
        return str(text.decode(errors="replace"))
    return str(int(number) or "") if len(number) <= 20 else ""
