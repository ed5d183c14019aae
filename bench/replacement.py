"""Replacement under load: a second Tidegate process takes over the same ports again and again, and no request fails.

    python -m bench.faults --only replaced_tidegate

Clients over gRPC and HTTP send one request after the other without retries; their libraries reconnect when gRPC's
GOAWAY or HTTP's `Connection: close` says so.
"""

import http.client
import json
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from rich.console import Console

from bench.fuzz import echo_models
from bench.fuzz_inputs import MODEL, good_request
from bench.proxy_process import ProxyProcess, proxy_before
from tidegate_proxy.tritons.embedded import EmbeddedTriton

CALLERS = 4
"""Number of callers over gRPC, and of callers over HTTP."""
DRAIN_S = 6.0
SERVE = f"""
version: 1
listen: {{grpc: "127.0.0.1:0", reuse_port: true}}
drain_timeout_s: {DRAIN_S}
"""
INFER = "/inference.GRPCInferenceService/ModelInfer"
JSON_BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]})


@dataclass
class Findings:
    """Results of a run."""

    answered: Counter[str] = field(default_factory=Counter)
    """Successful requests by protocol."""
    failed: Counter[str] = field(default_factory=Counter)
    """Failed requests by protocol and error."""
    replacements: int = 0
    longest_ms: float = 0.0
    """Longest latency of a request in ms."""

    def figures(self) -> dict[str, Any]:
        """Return the results as a JSON object."""
        counts = {"answered": dict(self.answered), "failed": dict(self.failed)}
        return {**counts, "replacements": self.replacements, "longest_ms": self.longest_ms}


class Load:
    """Callers that send one request after the other until stopped."""

    def __init__(self, grpc_address: str, http_address: str, pause_s: float = 0.0) -> None:
        """Start the callers.

        `grpc_address`: HOST:PORT; `http_address`: HOST:PORT; `pause_s`: seconds between a response and the next
        request.
        """
        self.findings = Findings()
        self._pause_s = pause_s
        self._grpc, self._http = grpc_address, http_address
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=way) for way in (self._over_grpc, self._over_http) * CALLERS]
        for thread in self._threads:
            thread.start()

    @property
    def done(self) -> int:
        """Number of requests that ended."""
        return self.findings.answered.total() + self.findings.failed.total()

    def stop(self) -> Findings:
        """Stop the callers and return the results."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.findings

    def _over_grpc(self) -> None:
        message = good_request().SerializeToString()
        # A connection of its own: channels to one address share theirs otherwise.
        with grpc.insecure_channel(self._grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            infer = channel.unary_unary(INFER)
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    infer(message, timeout=60)
                    self._note("gRPC", began)
                except grpc.RpcError as error:
                    self._note("gRPC", began, f"{error.code().name} {error.details()}")

    def _over_http(self) -> None:
        connection = http.client.HTTPConnection(self._http, timeout=60)
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                connection.request("POST", f"/v2/models/{MODEL}/infer", JSON_BODY)
                answer = connection.getresponse()
                body = answer.read()
                self._note("HTTP", began, "" if answer.status == 200 else f"{answer.status} {body.decode()}")
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._note("HTTP", began, repr(error))
        connection.close()

    def _note(self, protocol: str, began: float, failure: str = "") -> None:
        """Count a request; then pause."""
        with self._lock:
            took_ms = (time.monotonic() - began) * 1e3
            self.findings.longest_ms = max(self.findings.longest_ms, took_ms)
            if failure:
                self.findings.failed[f"{protocol}: {failure}"] += 1
            else:
                self.findings.answered[protocol] += 1
        self._stop.wait(self._pause_s)


def replace_under_load(
    requests: int,
    replacements: int,
    console: Console,
    max_connection_age_s: float | None = None,
    pause_s: float = 0.0,
) -> Findings:
    """Replace a Tidegate repeatedly under load.

    `requests`: minimum number of requests; `replacements`: number of replacements; `max_connection_age_s`: limit of the
    proxy, seconds; `pause_s`: pause of a caller between requests, seconds.
    """
    age = f"limits: {{max_connection_age_s: {max_connection_age_s}}}\n" if max_connection_age_s else ""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ExitStack() as running:
        work = Path(folder)
        echo_models(work / "models", {MODEL: ("FP32", "-1")})
        config = work / "tidegate.yaml"
        config.write_text(SERVE + age + "tritons: [localhost:8001]\n")
        triton = running.enter_context(EmbeddedTriton([work / "models"]))
        flags = ["--config", str(config), "--drain-timeout-s", str(DRAIN_S)]

        def start(number: int, *more: str) -> tuple[ExitStack, ProxyProcess]:
            home = work / str(number)
            home.mkdir()
            one = running.enter_context(ExitStack())
            return one, one.enter_context(proxy_before(triton, home, *flags, *more))

        old, proxy = start(0)
        addresses = ["--listen", proxy.grpc, "--listen-http", proxy.http, "--listen-metrics", proxy.metrics]
        load = Load(proxy.grpc, proxy.http, pause_s)
        try:
            for number in range(1, replacements + 1):
                while load.done < requests * number / (replacements + 1):
                    time.sleep(0.05)
                new, _ = start(number, *addresses)
                old.close()
                old = new
                load.findings.replacements += 1
                console.print(f"replaced {number} times: {load.done} requests, {load.findings.failed.total()} failed")
            while load.done < requests:
                time.sleep(0.05)
        finally:
            findings = load.stop()
    return findings
