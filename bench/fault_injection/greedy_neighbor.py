"""Hazard: one client with four hundred requests in flight beside a client that sends one at a time."""

import threading
from statistics import median
from time import monotonic
from typing import Any

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Client, Rig, request

MODEL = "told"
UNDER_WAY, ASKED = 400, 25
BATCH_MS, SLO_MS = 20.0, 400.0
LIMIT_MS = 4 * BATCH_MS + 40
"""Maximum latency in ms: twice the two batches that are promised, plus the noise of a busy machine."""
MESSAGE = request(MODEL, [[BATCH_MS, 0]]).SerializeToString()


class Crowd:
    """A client that keeps a constant number of requests in flight."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self._over = threading.Semaphore(0)
        for _ in range(UNDER_WAY):
            self._begin()

    def stop(self) -> None:
        """Stop sending and wait for the last responses."""
        self._stop.set()
        for _ in range(UNDER_WAY):
            self._over.acquire()

    def _begin(self, _ended: Any = None) -> None:  # noqa: ANN401 - grpc is untyped
        if self._stop.is_set():
            self._over.release()
        else:
            self._client.start(MESSAGE).add_done_callback(self._begin)


def run(rig: Rig) -> Result:
    """Run the greedy and the quiet client under a policy that uses deadlines, and under FIFS."""
    triton = rig.triton(Model(MODEL, slo_ms=SLO_MS))
    words, holds, figures = [], True, {}
    for policy in ("fifs", "symphony"):
        rig.tell(policy)
        proxy = rig.tidegate(triton, policy=policy)
        neighbor = rig.client(proxy.grpc)
        _ask(neighbor)  # it learns what stages take
        alone_ms, _ = _ask(neighbor)
        crowd = Crowd(rig.client(proxy.grpc))
        beside_ms, answered = _ask(neighbor)
        crowd.stop()
        words.append(f"{policy}: p50 {alone_ms:.0f} ms alone, {beside_ms:.0f} beside, {answered} of {ASKED} answered")
        holds &= answered == ASKED and beside_ms <= LIMIT_MS
        figures[policy] = {"alone_ms": alone_ms, "beside_ms": beside_ms, "answered": answered}
    return Result("; ".join(words), holds, figures)


def _ask(client: Client) -> tuple[float, int]:
    """Median latency in ms, and how many were answered."""
    took_ms, answered = [], 0
    for _ in range(ASKED):
        began = monotonic()
        answered += client.call(MESSAGE)[0] is OK
        took_ms.append((monotonic() - began) * 1e3)
    return median(took_ms), answered


HAZARD = Hazard(
    "greedy_neighbor",
    f"a client with {UNDER_WAY} requests under way, a neighbor with one (batches of {BATCH_MS:g} ms)",
    f"all of the neighbor's answered, p50 {LIMIT_MS:g} ms or less",
    run,
)
