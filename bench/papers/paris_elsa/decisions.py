"""How long ELSA takes to decide, by the number of workers."""

from time import perf_counter_ns
from typing import Any

import numpy as np

from bench.papers.paris_elsa.measured import PRODUCT, PROFILES
from tidegate.api import Model, Profile, Request, RequestArrived, Setup, Worker, WorkerReady, ms_to_ns
from tidegate.schemas import Device, Mig
from tidegate_paris_elsa.policy import Elsa, ElsaOptions

WORKERS = (4, 16, 64, 256, 1024, 4096)
ROWS = 32
WAITING = 2
"""Requests that wait for each worker."""


def time_decisions(workers: int, decisions: int = 5000) -> dict[str, Any]:
    """Microseconds to place a request and to run the next one of a worker, all of them busy: p50 and p99.

    A fifth of the workers are of each size of slices.
    """
    names = list(PROFILES.values())
    profiles = [
        Profile.linear("m", alpha_ms=8 / size, beta_ms=4, max_rows=ROWS, device_class=f"{PRODUCT}/{PROFILES[size]}")
        for size in PROFILES
    ]
    fleet = [
        Worker(number, f"w{number}", ("m",), device=Device("n", number, PRODUCT), slice=Mig(names[number % 5], 0))
        for number in range(workers)
    ]
    policy = Elsa(Setup((Model("m", ROWS, merge_limit=1),), tuple(fleet), tuple(profiles)), ElsaOptions())
    step_ns = ms_to_ns(20) // workers
    now_ns, number = 0, 0
    placed_us, run_us = [], []

    def arrive() -> float:
        nonlocal number
        rows = 1 + number * 7 % ROWS
        event = RequestArrived(now_ns, Request(number, "m", rows, now_ns, now_ns + ms_to_ns(60)))
        number += 1
        began_ns = perf_counter_ns()
        policy.handle(event)
        return (perf_counter_ns() - began_ns) / 1000

    for _ in range((1 + WAITING) * workers):
        arrive()
    for _ in range(decisions):
        now_ns += step_ns
        placed_us.append(arrive())
        event = WorkerReady(now_ns, number % workers, now_ns)
        began_ns = perf_counter_ns()
        policy.handle(event)
        run_us.append((perf_counter_ns() - began_ns) / 1000)
    return {
        "workers": workers,
        "place_p50_us": float(np.quantile(placed_us, 0.5)),
        "place_p99_us": float(np.quantile(placed_us, 0.99)),
        "run_p50_us": float(np.quantile(run_us, 0.5)),
        "run_p99_us": float(np.quantile(run_us, 0.99)),
    }
