"""A client whose requests have every batch refused that they are in."""

import threading
from collections import Counter

from bench.hazards.hazard import Hazard, Result
from bench.hazards.models import Model
from bench.hazards.stage import OK, Stage, request, side_by_side

MODEL = "told"
SLO_MS, LEG_MS = 300.0, 10.0
CALLERS = 12
GOOD = 848
LEAST = 0.99


def run(stage: Stage) -> Result:
    """Good clients side by side, and one that spoils batches without a pause."""
    proxy = stage.tidegate(stage.triton(Model(MODEL, slo_ms=SLO_MS)))
    clients = [stage.client(proxy.grpc) for _ in range(CALLERS)]
    bad = stage.client(proxy.grpc)
    good, spoiling = request(MODEL, [[LEG_MS, 0]]), request(MODEL, [[LEG_MS, 1]])
    for _ in range(20):
        clients[0].call(good)
    stop, spoilt = threading.Event(), Counter[str]()

    def spoil() -> None:
        while not stop.is_set():
            spoilt[bad.call(spoiling)[0].name] += 1

    spoiler = threading.Thread(target=spoil)
    spoiler.start()
    try:
        answers = Counter(side_by_side(CALLERS, GOOD, lambda number: clients[number % CALLERS].call(good)[0].name))
    finally:
        stop.set()
        spoiler.join()
    return Result(
        f"{answers[OK.name]} of {GOOD} answered; the spoiler was refused {spoilt.total()} times",
        answers[OK.name] >= LEAST * GOOD and not spoilt[OK.name],
        {"good": dict(answers), "spoiler": dict(spoilt)},
    )


HAZARD = Hazard(
    "spoilt_batches",
    "a client that spoils the batches of others",
    "good clients: 604 of 848 answered (844 without it)",
    f"{LEAST:.0%} of the good clients' requests answered",
    run,
)
