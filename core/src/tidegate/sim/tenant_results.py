"""Results of a run by tenant: requests on time, rejections, and the part of the worker time."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidegate.sim.record import ANSWERED, FIRST_DROP, RunRecord
from tidegate.workload import RequestSequence
from tidegate.workload.tenants import RATE_LIMITED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate.sim.result import RunResult

TENANT_COLUMNS = (
    "policy",
    "seed",
    "tenant",
    "priority",
    "weight",
    "requests",
    "on time",
    "rate limited",
    "worker time",
)


@dataclass(frozen=True)
class TenantResult:
    """Results of one tenant. Counts cover requests that arrived in the window."""

    tenant: str
    priority: int
    weight: float
    requests: int
    on_time: int
    rate_limited: int
    """Number of requests above its rate limit; the others were admitted."""
    attainment: float
    """Fraction of the admitted requests that was answered on time; 1 if there were none."""
    worker_s: float
    """Worker time in seconds, from the start of the warm-up on, each batch divided by rows."""
    worker_fraction: float
    """Fraction of the time of all workers in that period, until the end of the window."""


def tenant_results(
    record: RunRecord, requests: RequestSequence, start_ns: int, end_ns: int, workers: float
) -> list[TenantResult]:
    """Return the results of each tenant, in the order of the scenario; empty without tenants.

    `start_ns`, `end_ns`: the measured window. `workers`: mean number of workers.
    """
    tenancy = requests.tenancy
    if tenancy is None:
        return []
    tenant = np.array(tenancy.tenant, dtype=np.int64)
    outcome = np.frombuffer(record.outcome, dtype=np.uint8)
    measured = np.array(requests.at_ns, dtype=np.int64) >= start_ns
    limited = FIRST_DROP + record.reasons.index(RATE_LIMITED) if RATE_LIMITED in record.reasons else -1
    results = []
    for index, spec in enumerate(tenancy.specs):
        mine = outcome[measured & (tenant == index)]
        on_time, rejected = int((mine == ANSWERED).sum()), int((mine == limited).sum())
        admitted = len(mine) - rejected
        worker_s = record.tenant_ns[index] / 1e9
        results.append(
            TenantResult(
                spec.name,
                spec.priority,
                spec.weight,
                len(mine),
                on_time,
                rejected,
                round(on_time / admitted, 6) if admitted else 1.0,
                round(worker_s, 6),
                round(worker_s / (end_ns / 1e9 * workers), 6),
            )
        )
    return results


def tenant_lines(results: "Sequence[RunResult]") -> list[list[str]]:
    """Return the cells of `TENANT_COLUMNS` for each run and tenant."""
    return [
        [
            result.total.policy,
            str(result.total.seed),
            each.tenant,
            str(each.priority),
            f"{each.weight:g}",
            f"{each.requests:,}",
            f"{each.attainment:.2%}",
            f"{each.rate_limited:,}",
            f"{each.worker_fraction:.1%}",
        ]
        for result in results
        for each in result.tenants
    ]
