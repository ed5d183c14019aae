"""Hazard: a model without an SLO beside a model with one, on the same worker."""

import time
from random import Random
from typing import Any

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.models import Model
from bench.fault_injection.rig import Rig, outcome, request
from tidegate.workload.arrivals import NS_PER_S, Poisson

BATCH_MS, ROWS, SLO_MS = 20.0, 4, 150.0
PATIENT_RPS = 4.0
LOAD = 0.84
"""Load of the model with an SLO, as a share of the worker with full batches."""
URGENT_RPS = (LOAD - PATIENT_RPS * BATCH_MS / 1e3) * ROWS * 1e3 / BATCH_MS
LIMIT_S = 3.0
"""Maximum latency in seconds: `limits.no_slo_max_deferral_s` of 1 s, then fair queueing with the other model."""


def run(rig: Rig) -> Result:
    """Send Poisson arrivals to both models; measure the longest latency of the model without an SLO."""
    models = (Model("urgent", rows=ROWS, slo_ms=SLO_MS), Model("patient", rows=ROWS))
    proxy = rig.tidegate(rig.triton(*models), policy="symphony")
    window_ns = round((8 if rig.quick else 45) * NS_PER_S)
    rates = {"urgent": URGENT_RPS, "patient": PATIENT_RPS}
    clients = {name: rig.client(proxy.grpc) for name in rates}
    messages = {name: request(name, [[BATCH_MS, 0]]).SerializeToString() for name in rates}
    for name, client in clients.items():
        for _ in range(10):  # it learns what stages take
            client.call(messages[name])
    arrivals = sorted(
        (at_ns, name) for name, rate in rates.items() for at_ns in Poisson(rate).instants_ns(window_ns, Random(name))
    )
    took_s: dict[str, list[float]] = {name: [] for name in rates}
    calls: dict[str, list[Any]] = {name: [] for name in rates}
    began_ns = time.monotonic_ns()
    for at_ns, name in arrivals:
        time.sleep(max(0, at_ns - (time.monotonic_ns() - began_ns)) / NS_PER_S)
        call, sent = clients[name].start(messages[name]), time.monotonic()
        call.add_done_callback(lambda _, name=name, sent=sent: took_s[name].append(time.monotonic() - sent))
        calls[name].append(call)
    answered = {name: sum(outcome(call)[0].name == "OK" for call in each) for name, each in calls.items()}
    longest_s = max(took_s["patient"])
    shares = {name: answered[name] / len(calls[name]) for name in rates}
    return Result(
        f"worst wait {longest_s:.2f} s, {shares['patient']:.0%} of {len(calls['patient'])} answered; of the other "
        f"model {shares['urgent']:.1%} of {len(calls['urgent'])}",
        longest_s <= LIMIT_S and shares["patient"] == 1,
        {"worst_s": longest_s, "answered": shares},
    )


HAZARD = Hazard(
    "without_slo",
    f"a model without an SLO beside one with {SLO_MS:g} ms, at {LOAD:.0%} load",
    f"worst wait {LIMIT_S:g} s, all answered",
    run,
)
