"""Rolling update under load: Tritons are restarted one after the other with another `max_batch_size`.

    python -m bench.faults --only rolling_tritons killed_tritons listed_tritons

Each Triton is terminated, or killed, and its successor serves the new model on the same port; the next follows when
Tidegate uses the successor. With `listed` the successor has another address, as a new pod has: a file lists the
Tritons, and the old one ends as soon as the list has the new one.
"""

import asyncio
import json
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random

from bench.proxy_process import proxy_process
from demo.emulated import Fleet
from tidegate.workload.arrivals import NS_PER_S, Poisson
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.emulated import write_profiles
from tidegate_loadtest.model_inputs import RandomRequests
from tidegate_loadtest.open_loop import run_open_loop
from tidegate_proxy.tritons.embedded import EmbeddedTriton

MODEL = "emulated"
TRITONS, RATE_RPS = 3, 200.0
ALPHA_MS, BETA_MS, SLO_MS = 1.0, 8.0, 10_000.0
BATCHES = (8, 32)
"""`max_batch_size` before and after."""
GRACE_S = 10.0


class Update:
    """Tritons of the old model that are updated one after the other."""

    def __init__(self, work: Path, running: ExitStack, *, killed: bool, listed: bool) -> None:
        self._running = running
        self._grace_s = 0.0 if killed else GRACE_S
        old, new = (Fleet(1, ALPHA_MS, BETA_MS, SLO_MS, batch) for batch in BATCHES)
        old.write_gpu(work / "old", MODEL)
        new.write_gpu(work / "new", MODEL)
        self._new = work / "new"
        self._tritons = [self._start(work / "old") for _ in range(TRITONS)]
        profiles = write_profiles(work / "profiles.json", new.scenario(MODEL), 0)
        self._list = work / "tritons.json" if listed else None
        if self._list:
            self._write_list()
            config = work / "tidegate.yaml"
            config.write_text(json.dumps({"tritons": {"file": self._list.name}}))
            flags = ["--config", str(config)]
        else:
            flags = [word for triton in self._tritons for word in ("--triton", triton.grpc_address)]
        flags += ["--listen", "127.0.0.1:0", "--profiles", str(profiles)]
        self._proxy = running.enter_context(proxy_process(work, *flags))

    async def run(self, requests: int) -> tuple[Counter[str], float]:
        """Send requests during the update; return their outcomes and the length of the update in seconds."""
        window_ns = round(requests / RATE_RPS * NS_PER_S)
        arrivals_ns = list(Poisson(RATE_RPS).instants_ns(window_ns, Random(1)))
        updating = asyncio.create_task(self._update())
        async with Connection(self._proxy.grpc) as connection:
            inputs = await RandomRequests.for_model(connection, MODEL, rows=1, shapes={}, seed=1)
            run = await run_open_loop(connection, arrivals_ns, inputs, window_ns=window_ns, timeout_s=60.0)
        took_s = await updating
        outcomes = Counter({"answered": int(run.ok.sum())})
        outcomes.update(run.summary(SLO_MS).failed)
        outcomes["sent"] = len(arrivals_ns)
        return outcomes, took_s

    async def _update(self) -> float:
        began_s = time.monotonic()
        for number, triton in enumerate(self._tritons):
            await asyncio.sleep(2.0)
            if self._list:
                self._tritons[number] = await asyncio.to_thread(self._start, self._new)
                self._write_list()
                await asyncio.to_thread(triton.stop)
                while self._proxy.log.count("triton left") <= number:
                    await asyncio.sleep(0.1)
                continue
            port = int(triton.grpc_address.rpartition(":")[2])
            await asyncio.to_thread(triton.stop)
            self._tritons[number] = await asyncio.to_thread(self._start, self._new, port)
            while self._proxy.log.count("triton back") <= number:
                await asyncio.sleep(0.1)
        return time.monotonic() - began_s

    def _write_list(self) -> None:
        assert self._list
        fresh = self._list.with_suffix(".new")
        fresh.write_text(json.dumps([triton.grpc_address for triton in self._tritons]))
        fresh.replace(self._list)

    def _start(self, repository: Path, port: int = 0) -> EmbeddedTriton:
        triton = EmbeddedTriton([repository], grpc_port=port, grace_s=self._grace_s)
        self._running.callback(triton.stop)
        return triton.start()


def rolling_update(requests: int, *, killed: bool, listed: bool = False) -> tuple[Counter[str], float]:
    """Run an update; return the outcomes of the requests and its length in seconds.

    `requests`: number of requests; `killed`: whether Tritons are killed instead of terminated; `listed`: whether
    successors have other addresses, which a file lists.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ExitStack() as running:
        return asyncio.run(Update(Path(folder), running, killed=killed, listed=listed).run(requests))
