"""Tritons that answer probes and fail at their work: ejected for a while, as Envoy's outlier detection has it.

A Triton is an outlier that fails many times in a row, or for a large share of what it is given, while others do well:
where all fail alike the requests are bad, not the Tritons. Never more than a share of the Tritons is ejected at a time,
and never the last one that has a model. Each further ejection of a Triton lasts longer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc

from tidegate_proxy.backend import Backend
from tidegate_proxy.catalog import Catalog
from tidegate_proxy.configuration.config import Ejection

_OF_TRITON: Final = frozenset(
    {
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.UNAVAILABLE,
    }
)
"""What a Triton says that fails; other errors are of the request."""
_QUEUE_FULL: Final = "maximum queue size"
"""In what Triton says, with UNAVAILABLE, when its own queue is full: it has too much to do, and fails at nothing."""


def is_failure(code: grpc.StatusCode, details: str) -> bool:
    """Whether an error speaks against the Triton that gave it."""
    return code in _OF_TRITON and _QUEUE_FULL not in details


@dataclass(slots=True)
class _Record:
    """What one Triton did lately."""

    in_row: int = 0
    """Failures since it last did well."""
    well: int = 0
    failed: int = 0
    """In the present window."""
    began_ns: int = 0
    """Of the window."""
    ejections: int = 0
    """So many of late, which make the next one longer."""
    total: int = 0
    """All of its ejections."""
    until_ns: int = 0
    """When the last of them ends."""
    out: bool = False

    @property
    def share(self) -> float:
        """Of what it was given in the window, what failed."""
        return self.failed / max(1, self.well + self.failed)


@dataclass
class Outliers:
    """Keeps count."""

    limits: Callable[[], Ejection]
    """What counts; may give another at any time."""
    _records: dict[Backend, _Record] = field(default_factory=dict)

    def did_well(self, backend: Backend) -> None:
        """It answered a call."""
        record = self._record(backend)
        record.in_row = 0
        record.well += 1

    def failed(self, backend: Backend, now_ns: int, catalog: Catalog, backends: Sequence[Backend]) -> str | None:
        """It failed a call; if it is to be ejected for that, why: it counts as ejected from then on.

        `backends`: all Tritons.
        """
        record = self._record(backend)
        limits = self.limits()
        if now_ns - record.began_ns > limits.window_s * 1e9:
            for each in self._records.values():
                each.well = each.failed = 0
                each.began_ns = now_ns
        record.in_row += 1
        record.failed += 1
        reason = self._why(backend, record, backends)
        if reason is None or not backend.alive or not self._can_spare(backend, catalog, backends):
            return None
        if now_ns - record.until_ns > limits.max_s * 1e9:
            record.ejections = 0
        record.ejections += 1
        record.total += 1
        record.out = True
        record.in_row = record.well = record.failed = 0
        lasts_s = min(limits.max_s, limits.base_s * record.ejections)
        record.until_ns = now_ns + round(lasts_s * 1e9)
        return f"{reason}; it is ejected for {lasts_s:g} s"

    def is_out(self, backend: Backend, now_ns: int, catalog: Catalog) -> bool:
        """Whether it is ejected still. It is not where nobody else that lives has one of its models."""
        record = self._record(backend)
        record.out = record.out and now_ns < record.until_ns and _others_have_all(backend, catalog)
        return record.out

    def ejections(self, backends: Sequence[Backend]) -> dict[str, tuple[int, bool]]:
        """Of each Triton, by address: how often it was ejected, and whether it is."""
        return {
            backend.address: (record.total, record.out) for backend in backends for record in [self._record(backend)]
        }

    def _record(self, backend: Backend) -> _Record:
        return self._records.get(backend) or self._records.setdefault(backend, _Record())

    def _why(self, backend: Backend, record: _Record, backends: Sequence[Backend]) -> str | None:
        others = [self._record(other) for other in backends if other is not backend and other.alive]
        limits = self.limits()
        in_row = bool(limits.consecutive_errors) and record.in_row >= limits.consecutive_errors
        if in_row and any(other.in_row == 0 for other in others):
            return f"it failed {record.in_row} times in a row"
        if record.well + record.failed >= limits.min_requests and record.share >= limits.error_rate:
            well, failed = sum(other.well for other in others), sum(other.failed for other in others)
            if failed <= record.share / 2 * (well + failed):
                return f"it failed {record.failed} of {record.well + record.failed} calls"
        return None

    def _can_spare(self, backend: Backend, catalog: Catalog, backends: Sequence[Backend]) -> bool:
        out = sum(self._record(other).out for other in backends)
        return out < int(self.limits().max_share * len(backends)) and _others_have_all(backend, catalog)


def _others_have_all(backend: Backend, catalog: Catalog) -> bool:
    """Whether what a Triton has is also had by others that live."""
    if any(
        backend in hosts and not any(other.alive for other in hosts if other is not backend)
        for hosts in catalog.hosts.values()
    ):
        return False
    mine, elsewhere = set[str](), set[str]()
    for worker in catalog.workers:
        other = catalog.backend_of[worker.id]
        if other is backend:
            mine.update(worker.hosts)
        elif other.alive:
            elsewhere.update(worker.hosts)
    return mine <= elsewhere
