"""Whether requests merge enough where no batch waits: while all workers are busy, a queue grows by itself."""

from collections.abc import Sequence
from math import ceil

from tidegate_symphony.outlook import Outlook

SPARE = 0.3
"""The share of the workers' time that has to be left: chance needs it. With 0.2 the goodput of InceptionResNetV2, with
0.05 that of ResNet50, too, was 3 to 8 % less, as batches started where waiting was due."""
HALVINGS = 12
"""The cycle is found to so many bits of the longest SLO."""


def merges_by_itself(rates: Sequence[tuple[Outlook, float]], workers: int) -> bool:
    """Whether all are in time if every batch starts as soon as a worker is idle. `rates`: rows per nanosecond.

    Each kind is then served once per cycle, in batches of what arrived meanwhile. The cycle is the shortest with which
    the workers bear the load; even who has waited for a whole one has to be in time by what may be promised.
    """
    slos_ns = [outlook.slo_ns for outlook, rate in rates if rate and outlook.slo_ns is not None]
    longest_ns = max(slos_ns, default=0)
    borne = (1 - SPARE) * workers
    if not longest_ns or _asked(rates, longest_ns) > borne:
        return False
    shortest_ns, cycle_ns = 0.0, float(longest_ns)
    for _ in range(HALVINGS):
        middle_ns = (shortest_ns + cycle_ns) / 2
        if _asked(rates, middle_ns) > borne:
            shortest_ns = middle_ns
        else:
            cycle_ns = middle_ns
    return all(
        cycle_ns + outlook.profile.planned_ns(_rows(outlook, rate, cycle_ns)) <= outlook.slo_ns
        for outlook, rate in rates
        if rate and outlook.slo_ns is not None
    )


def _asked(rates: Sequence[tuple[Outlook, float]], cycle_ns: float) -> float:
    """How many workers are busy all the time with batches of what arrives in a cycle."""
    asked = 0.0
    for outlook, rate in rates:
        rows = _rows(outlook, rate, cycle_ns)
        asked += rate * outlook.profile.expected_ns(rows) / max(1.0, min(rows, rate * cycle_ns))
    return asked


def _rows(outlook: Outlook, rate: float, cycle_ns: float) -> int:
    """What arrives in a cycle, in whole rows, at least 1 and no more than is worth merging."""
    return max(1, min(outlook.most_rows, ceil(rate * cycle_ns)))
