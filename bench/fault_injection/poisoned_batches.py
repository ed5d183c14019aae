"""Hazard: a client whose requests make their whole batch fail."""

import threading
from collections import Counter

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import OK, Rig, request, side_by_side

MODEL = "told"
SLO_MS, STAGE_MS = 300.0, 10.0
CALLERS = 12
GOOD = 848
FEWER = 0.01
"""Maximum loss of successful responses beside it; a busy machine causes some of it."""


def run(rig: Rig) -> Result:
    """Run well-behaved clients first alone, then beside a client that poisons batches without a pause."""
    proxy = rig.tidegate(rig.triton(Model(MODEL, slo_ms=SLO_MS)))
    clients = [rig.client(proxy.grpc) for _ in range(CALLERS)]
    bad = rig.client(proxy.grpc)
    good, poisoning = request(MODEL, [[STAGE_MS, 0]]), request(MODEL, [[STAGE_MS, 1]])

    def ask() -> Counter[str]:
        return Counter(side_by_side(CALLERS, GOOD, lambda number: clients[number % CALLERS].call(good)[0].name))

    rig.tell("without the poison_request")
    without = ask()
    rig.tell("with it")
    stop, poisoned = threading.Event(), Counter[str]()

    def poison() -> None:
        while not stop.is_set():
            poisoned[bad.call(poisoning)[0].name] += 1

    poison_request = threading.Thread(target=poison)
    poison_request.start()
    try:
        answers = ask()
    finally:
        stop.set()
        poison_request.join()
    return Result(
        f"{answers[OK.name]} of {GOOD} answered, {without[OK.name]} without it, {poisoned.total()} refused",
        answers[OK.name] >= without[OK.name] - FEWER * GOOD and not poisoned[OK.name],
        {"good": dict(answers), "without": dict(without), "poison_request": dict(poisoned)},
    )


HAZARD = Hazard(
    "poisoned_batches",
    "a client that poisons the batches of others",
    f"{FEWER:.0%} fewer answered than without it, at most",
    run,
)
