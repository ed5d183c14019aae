"""Sequences that have begun: each keeps its Triton until it ends, whatever Tritons join, or its model drains there."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from tidegate_proxy.tritons.backend import Backend

DEFAULT_IDLE_S: Final = 1.0
"""Triton's default of max_sequence_idle_microseconds, in seconds: a longer pause ends a sequence."""
MAX_OPEN: Final = 100_000
"""Number of sequences that are remembered; clients choose their ids."""


def keeper(sequence: str, backends: Sequence[Backend]) -> Backend:
    """Return the Triton, of at least one, that keeps a new sequence. `sequence`: its model and id, in one text."""

    def rank(backend: Backend) -> bytes:
        return blake2b(f"{backend.address} {sequence}".encode(), digest_size=8).digest()

    return max(backends, key=rank)


@dataclass(slots=True)
class _OpenSequence:
    backend: Backend
    seen_s: float


class OpenSequences:
    """Triton of each sequence that has begun and may go on. Call only from the event loop."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, str], _OpenSequence] = OrderedDict()
        """The sequences by model and id, the one without a request for longest first."""

    def route(
        self, now_s: float, model: str, sequence: str, candidates: Sequence[Backend], present: Sequence[Backend]
    ) -> Backend:
        """Return the Triton of a sequence, which has a request now.

        Args:
            now_s: time of a monotonic clock.
            model: the model.
            sequence: id of the sequence.
            candidates: Tritons for new sequences, at least one.
            present: live Tritons that have the model, also those that are about to unload it.
        """
        key = model, sequence
        known = self._open.pop(key, None)
        if known is None or known.backend not in present:
            known = _OpenSequence(keeper(f"{model} {sequence}", candidates), now_s)
            if len(self._open) >= MAX_OPEN:
                self._open.popitem(last=False)
        known.seen_s = now_s
        self._open[key] = known
        return known.backend

    def end(self, model: str, sequence: str) -> None:
        """Forget a sequence whose last request was sent."""
        self._open.pop((model, sequence), None)

    def count(self, now_s: float, model: str, backend: Backend, idle_s: Mapping[str, float]) -> int:
        """Return the number of a model's sequences at a Triton that may go on.

        `idle_s`: longest pause of a sequence in seconds, by model.
        """
        limit_s = idle_s.get(model, DEFAULT_IDLE_S)
        return sum(
            name == model and each.backend is backend and now_s - each.seen_s <= limit_s
            for (name, _), each in self._open.items()
        )
