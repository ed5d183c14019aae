"""A model that Triton never merges, since nothing in its config says so, and whose answers depend on all rows."""

from collections import Counter

import numpy as np

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import NORMALIZED, Model
from bench.fault_injection.rig import OK, Rig, request_of, side_by_side, tensor_of

MODEL = "normalized"
CALLERS = 16


def run(rig: Rig) -> Result:
    """Many callers at a time, each with rows of its own."""
    proxy = rig.tidegate(rig.triton(Model(MODEL, NORMALIZED, scheduling="")))
    clients = [rig.client(proxy.grpc) for _ in range(4)]
    draw = np.random.default_rng(1)
    requests = 1000 if rig.quick else 10_000
    arrays = [draw.uniform(1, 100, (1 + number % 3, 4)).astype(np.float32) for number in range(requests)]

    def ask(number: int) -> str:
        code, answer = clients[number % len(clients)].call(request_of(MODEL, arrays[number]))
        if code is not OK:
            return "failed"
        expected = arrays[number] / arrays[number].sum()
        return "well" if np.allclose(tensor_of(answer), expected, rtol=1e-4) else "wrong"

    answers = Counter(side_by_side(CALLERS, requests, ask))
    return Result(
        f"{answers['wrong']} wrong, {answers['failed']} failed of {requests}",
        answers["well"] == requests,
        dict(answers),
    )


HAZARD = Hazard(
    "all_rows",
    "a model without dynamic_batching whose answers depend on all rows of their request",
    "661 of 898 answers wrong (direct: 0 of 502)",
    "0 wrong, 0 failed",
    run,
)
