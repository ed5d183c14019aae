"""Hazard: faults under load. Tritons are killed one after the other, load is tripled, and the proxy is shut down.

Every request must end exactly once, and the clients' counts must equal Tidegate's.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bench.fault_injection.rig import Rig
from bench.proxy_process import proxy_process
from demo.emulated import Fleet
from tidegate.api import NS_PER_MS
from tidegate.workload.arrivals import NS_PER_S, Poisson
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.emulated import write_profiles
from tidegate_loadtest.model_inputs import RandomRequests
from tidegate_loadtest.open_loop import run_open_loop
from tidegate_loadtest.result import DROP_STATUSES, OK_STATUS, RunResult
from tidegate_proxy.tritons.embedded import EmbeddedTriton

MODEL = "emulated"
FLEET = Fleet(gpus=4, alpha_ms=10.18, beta_ms=36.736, slo_ms=140.0, max_batch=16)
"""Emulated GPUs with InceptionResNetV2 on a 1080Ti (Table 2 of the Symphony paper), twice as slow, so that a load
generator can send three times their capacity.
"""
WAY_MS = 1.5
"""First estimate of what an execution takes beyond the emulated GPU's time, in ms."""
SHARE = 0.7
KILL_EVERY_S, RESTART_AFTER_S = 10.0, 2.0
BIN_S, RECOVERED = 0.5, 0.9
OVERLOAD, GOODPUT_AIM = 3.0, 0.95
PEAK_SHARES = (0.9, 1.0, 1.1)
KILLS_FAULT = (
    f"{FLEET.gpus} Tritons at {SHARE:.0%} load killed one after the other, {OVERLOAD:g} times the load, then SIGTERM"
)
KILLS_AIM = "no request lost, every one ends once, all counts agree"
ANSWER_WITHIN_S = 10.0
"""Seconds after which a client counts its request as lost."""


@dataclass(frozen=True)
class Durations:
    """Lengths of the phases, in seconds."""

    kills_s: float
    peak_s: float
    overload_s: float
    drain_timeout_s: float = 4.0


FULL, QUICK = Durations(120.0, 10.0, 60.0), Durations(12.0, 4.0, 6.0)


@dataclass(frozen=True)
class Kill:
    """One killed Triton."""

    worker: int
    at_s: float
    """Seconds from the start of the run to the kill."""
    back_s: float
    """Seconds from the kill until the successor is ready."""


class Bench:
    """An emulated cluster, and the measurements on it."""

    def __init__(self, tell: Callable[[str], None], durations: Durations, work: Path, running: ExitStack) -> None:
        self._tell = tell
        self._durations = durations
        self._running = running
        self._repository = work / "models"
        FLEET.write_gpu(self._repository, MODEL)
        self._tritons = [self._triton() for _ in range(FLEET.gpus)]
        longer = replace(FLEET, beta_ms=FLEET.beta_ms + WAY_MS).scenario(MODEL)
        profiles = write_profiles(work / "profiles.json", longer, 0)
        addresses = [word for triton in self._tritons for word in ("--triton", triton.grpc_address)]
        flags = ("--listen", "127.0.0.1:0", "--profiles", str(profiles), *addresses)
        self._proxy = running.enter_context(proxy_process(work, *flags))
        self._answered = 0
        self._seed = 0

    async def run(self) -> dict[str, Any]:
        """Run all phases one after the other; return their figures as a JSON object."""
        spans = self._durations
        self._tell("Tritons are killed")
        figures: dict[str, Any] = {"kills": await self._kills()}
        self._tell("peak goodput")
        peaks = [await self._load(share, spans.peak_s) for share in PEAK_SHARES]
        peak_rps = max(run.summary(FLEET.slo_ms).goodput_rps for run in peaks)
        before_mib = self._proxy.usage()["memory_mib"]
        self._tell("overload")
        overload = await self._load(OVERLOAD, spans.overload_s)
        summary = overload.summary(FLEET.slo_ms)
        figures["overload"] = {
            "offered_rps": summary.offered_rps,
            "peak_rps": peak_rps,
            "goodput_rps": summary.goodput_rps,
            "of_peak": summary.goodput_rps / peak_rps,
            "fell_behind": overload.fell_behind,
            "failed": dict(summary.failed),
            "rss_before_mib": before_mib,
            "rss_after_mib": self._proxy.usage()["memory_mib"],
        }
        self._tell("SIGTERM")
        figures["drain"] = await self._drain()
        return figures

    async def _kills(self) -> dict[str, Any]:
        duration_s = self._durations.kills_s
        kills: list[Kill] = []
        began_s = time.monotonic()

        async def kill_in_turn() -> None:
            for number in range(round(duration_s / KILL_EVERY_S)):
                at_s = KILL_EVERY_S * (number + 0.5)
                await asyncio.sleep(began_s + at_s - time.monotonic())
                worker = number % FLEET.gpus
                killed_s = time.monotonic()
                os.kill(self._tritons[worker].pid, signal.SIGKILL)
                await asyncio.sleep(RESTART_AFTER_S)
                self._tritons[worker] = await asyncio.to_thread(self._triton, self._tritons[worker])
                kills.append(Kill(worker, killed_s, time.monotonic() - killed_s))

        killing = asyncio.create_task(kill_in_turn())
        run = await self._load(SHARE, duration_s)
        await killing
        zero_s = run.began_ns / NS_PER_S
        each = [
            {
                "worker": kill.worker,
                "at_s": kill.at_s - zero_s,
                "back_s": kill.back_s,
                **_around(run, kill.at_s - zero_s),
            }
            for kill in kills
        ]
        summary = run.summary(FLEET.slo_ms)
        return {
            "offered_rps": summary.offered_rps,
            "attainment": summary.attainment,
            "issued": summary.issued,
            "failed": dict(summary.failed),
            "messages": dict(run.messages),
            "fell_behind": run.fell_behind,
            "each": each,
        }

    async def _drain(self) -> dict[str, Any]:
        half_s = self._durations.drain_timeout_s / 2
        asyncio.get_running_loop().call_later(half_s, self._proxy.send, signal.SIGTERM)
        run = await self._load(SHARE, self._durations.drain_timeout_s)
        # What was on its way at that instant may be refused; what had arrived may not.
        before = run.issued_ns < (half_s - 0.05) * NS_PER_S
        in_vain = ~np.isin(run.status, [OK_STATUS, *DROP_STATUSES.values()])
        code = self._proxy.wait(30)
        counts = re.findall(r"(accepted|answered|failed|cancelled|dropped) (\d+)", self._proxy.output)
        return {
            "issued_before": int(before.sum()),
            "lost": int((before & in_vain).sum()),
            "refused_after": int((~before & in_vain).sum()),
            "exit_code": code,
            "tally": {name: int(count) for name, count in counts},
            "answered_by_clients_count": self._answered,
        }

    async def _load(self, share: float, duration_s: float) -> RunResult:
        """Poisson arrivals at this share of what any scheduler can reach."""
        self._seed += 1
        window_ns = round(duration_s * NS_PER_S)
        arrivals_ns = list(Poisson(share * FLEET.staggered_rps()).instants_ns(window_ns, Random(self._seed)))
        async with Connection(self._proxy.grpc) as connection:
            requests = await RandomRequests.for_model(connection, MODEL, rows=1, shapes={}, seed=self._seed)
            run = await run_open_loop(connection, arrivals_ns, requests, window_ns=window_ns, timeout_s=ANSWER_WITHIN_S)
        if len(run.status) != len(arrivals_ns):
            raise SystemExit(f"{len(arrivals_ns)} requests were sent, {len(run.status)} have ended")
        self._answered += int(run.ok.sum())
        return run

    def _triton(self, dead: EmbeddedTriton | None = None) -> EmbeddedTriton:
        """A Triton with one worker, in place of a dead one."""
        port = 0
        if dead:
            port = int(dead.grpc_address.rpartition(":")[2])
            dead.stop()
        triton = EmbeddedTriton([self._repository], grpc_port=port, grace_s=0)
        self._running.callback(triton.stop)
        return triton.start()


def _around(run: RunResult, at_s: float) -> dict[str, float]:
    """Attainment of what was due in the second after a kill and until the next, and when all was well again."""
    due_s = run.scheduled_ns / NS_PER_S - at_s
    on_time = run.ok & (run.latency_ns <= FLEET.slo_ms * NS_PER_MS)
    bins = [(start, start + BIN_S) for start in np.arange(0, KILL_EVERY_S / 2, BIN_S)]
    shares = [(end, on_time[(due_s >= start) & (due_s < end)]) for start, end in bins]
    bad = [end for end, mine in shares if len(mine) and mine.mean() < RECOVERED]
    return {
        "first_second": float(on_time[(due_s >= 0) & (due_s < 1)].mean()),
        "until_next": float(on_time[(due_s >= 0) & (due_s < KILL_EVERY_S)].mean()),
        "recovered_s": float(max(bad, default=0.0)),
    }


def run_kills(rig: Rig) -> tuple[str, bool, dict[str, Any]]:
    """Run all phases; return the outcome in words, whether the aim is met, and the figures."""
    durations = QUICK if rig.quick else FULL
    figures = asyncio.run(Bench(rig.tell, durations, rig.folder(), rig.running).run())
    kills, overload, drain = figures["kills"], figures["overload"], figures["drain"]
    recovered_s = max((kill["recovered_s"] for kill in kills["each"]), default=0.0)
    told = ", ".join(f"{count} {status}" for status, count in kills["failed"].items()) or "none"
    behind = [name for name in ("kills", "overload") if figures[name]["fell_behind"]]
    complaints = _complaints(figures)
    words = [
        f"{len(kills['each'])} kills: attainment {kills['attainment']:.1%} of {kills['issued']}, not answered: {told}, "
        f"recovered within {recovered_s:.1f} s",
        f"overload: goodput {overload['of_peak']:.0%} of the peak, memory {overload['rss_before_mib']:.0f} to "
        f"{overload['rss_after_mib']:.0f} MiB",
        f"SIGTERM: {drain['lost']} of {drain['issued_before']} lost, exit status {drain['exit_code']}",
        *complaints,
        *(["the load generator fell behind: distrust the figures"] if behind else []),
    ]
    return "; ".join(words), not complaints, figures


def _complaints(figures: dict[str, Any]) -> list[str]:
    drain, tally = figures["drain"], figures["drain"]["tally"]
    ended = sum(count for name, count in tally.items() if name != "accepted")
    checks = {
        "requests were lost at SIGTERM": drain["lost"] == 0,
        "Tidegate did not exit well": drain["exit_code"] == 0,
        "a request did not end, or ended twice": tally.get("accepted") == ended,
        "clients have another count of answers": tally.get("answered") == drain["answered_by_clients_count"],
        "a client waited in vain": all(
            "CLIENT_TIMEOUT" not in figures[name]["failed"] for name in ("kills", "overload")
        ),
    }
    return [complaint for complaint, is_well in checks.items() if not is_well]
