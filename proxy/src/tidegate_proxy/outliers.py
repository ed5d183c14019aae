"""Tritons that answer probes and fail at their work: ejected for a while, as Envoy's outlier detection has it.

A Triton is an outlier that fails many times in a row, or for a large share of what it is given, while others do well:
where all fail alike the requests are bad, not the Tritons. What fails for one client only may be that client's doing,
who can make many a model raise: unless there is no other, it has to fail for another one, too. Never more than a share
of the Tritons is ejected at a time, and never the last one that has a model. Each further ejection of a Triton lasts
longer.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import grpc

from tidegate_proxy.backend import Backend
from tidegate_proxy.catalog import Catalog
from tidegate_proxy.settings import InForce

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


ENOUGH: Final = 2
"""Clients for whom a Triton fails many times in a row, where there are so many."""
MOST_OF_ONE: Final = 0.75
"""The most of its failures that may be one client's, where there are others."""


def is_failure(code: grpc.StatusCode, details: str) -> bool:
    """Whether an error speaks against the Triton that gave it."""
    return code in _OF_TRITON and _QUEUE_FULL not in details


@dataclass(slots=True)
class _Record:
    """What one Triton did lately."""

    in_row: int = 0
    """Failures since it last did well."""
    in_row_of: set[str] = field(default_factory=set)
    """Whose requests those were."""
    well: int = 0
    failed: int = 0
    """In the present window."""
    failed_of: Counter[str] = field(default_factory=Counter)
    """How many failed, by whose requests those were: of a batch all of theirs."""
    began_ns: int = 0
    """The beginning of the window."""
    ejections: int = 0
    """So many of late, which make the next one longer."""
    total: int = 0
    """All of its ejections."""
    until_ns: int = 0
    """When the last of them ends."""
    out: bool = False

    @property
    def share(self) -> float:
        """The share that failed of what it was given in the window."""
        return self.failed / max(1, self.well + self.failed)

    def fail(self, owners: Collection[str]) -> None:
        """One more call of these failed."""
        self.in_row += 1
        self.in_row_of.update(owners)
        self.failed += 1
        self.failed_of.update(owners)

    def forget(self) -> None:
        """Begin to count anew."""
        self.in_row = self.well = self.failed = 0
        self.in_row_of.clear()
        self.failed_of.clear()


@dataclass
class Outliers:
    """Keeps count."""

    in_force: InForce
    """What counts."""
    _records: dict[Backend, _Record] = field(default_factory=dict)
    _owners: set[str] = field(default_factory=set)
    """Some of those whose calls have ended in the present window."""
    _owners_before: set[str] = field(default_factory=set)
    """And in the one before."""

    def did_well(self, backend: Backend, owner: str) -> None:
        """It answered a call of a client, or a batch with one."""
        record = self._record(backend)
        record.well += 1
        if record.in_row:
            record.in_row = 0
            record.in_row_of.clear()
        if len(self._owners) < ENOUGH:
            self._owners.add(owner)

    def failed(
        self, backend: Backend, owners: Collection[str], now_ns: int, catalog: Catalog, backends: Sequence[Backend]
    ) -> str | None:
        """It failed a call; if it is to be ejected for that, why: it counts as ejected from then on.

        `owners`: whose requests were in it; `backends`: all Tritons.
        """
        record = self._record(backend)
        limits = self.in_force.settings.ejection
        if now_ns - record.began_ns > limits.window_s * 1e9:
            self._owners_before, self._owners = self._owners, set()
            for each in self._records.values():
                each.well = each.failed = 0
                each.failed_of.clear()
                each.began_ns = now_ns
        self._owners.update(islice(owners, ENOUGH))
        record.fail(owners)
        reason = self._why(backend, record, backends)
        if reason is None or not backend.alive or not self._can_spare(backend, catalog, backends):
            return None
        if now_ns - record.until_ns > limits.max_s * 1e9:
            record.ejections = 0
        record.ejections += 1
        record.total += 1
        record.out = True
        record.forget()
        lasts_s = min(limits.max_s, limits.base_s * record.ejections)
        record.until_ns = now_ns + round(lasts_s * 1e9)
        return f"{reason}; it is ejected for {lasts_s:g} s"

    def is_out(self, backend: Backend, now_ns: int, catalog: Catalog) -> bool:
        """Whether it is ejected still. It is not where nobody else that lives has one of its models."""
        record = self._record(backend)
        record.out = record.out and now_ns < record.until_ns and _others_have_all(backend, catalog)
        return record.out

    def ejections(self, backends: Sequence[Backend]) -> dict[str, tuple[int, bool]]:
        """How often each Triton was ejected, and whether it is, by address."""
        return {
            backend.address: (record.total, record.out) for backend in backends for record in [self._record(backend)]
        }

    def _record(self, backend: Backend) -> _Record:
        return self._records.get(backend) or self._records.setdefault(backend, _Record())

    def _why(self, backend: Backend, record: _Record, backends: Sequence[Backend]) -> str | None:
        others = [self._record(other) for other in backends if other is not backend and other.alive]
        limits = self.in_force.settings.ejection
        is_alone = len(self._owners | self._owners_before) < ENOUGH
        in_row = bool(limits.consecutive_errors) and record.in_row >= limits.consecutive_errors
        if in_row and (is_alone or len(record.in_row_of) >= ENOUGH) and any(other.in_row == 0 for other in others):
            return f"it failed {record.in_row} times in a row"
        of_several = max(record.failed_of.values()) <= MOST_OF_ONE * record.failed
        in_share = record.well + record.failed >= limits.min_requests and record.share >= limits.error_rate
        if in_share and (is_alone or of_several):
            well, failed = sum(other.well for other in others), sum(other.failed for other in others)
            if failed <= record.share / 2 * (well + failed):
                return f"it failed {record.failed} of {record.well + record.failed} calls"
        return None

    def _can_spare(self, backend: Backend, catalog: Catalog, backends: Sequence[Backend]) -> bool:
        out = sum(self._record(other).out for other in backends)
        most = int(self.in_force.settings.ejection.max_share * len(backends))
        return out < most and _others_have_all(backend, catalog)


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
