"""Hazards for a Tidegate: what is done to it, and the outcome that clients observe."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rich.console import Console
from tritonclient.grpc import service_pb2

from bench.fault_injection.kills import KILLS_AIM, KILLS_FAULT, run_kills
from bench.fault_injection.rig import (
    OK,
    PARAMETERS,
    Model,
    Rig,
    json_request,
    outcome,
    over_http,
    request,
    side_by_side,
    tensor_of,
    until,
)
from bench.replacement import replace_under_load
from bench.rolling_update import rolling_update
from tidegate.workload.arrivals import NS_PER_S, Poisson


@dataclass(frozen=True)
class Result:
    """Measurements of one run of a hazard."""

    after: str
    """The outcome in words, for the table."""
    holds: bool
    """Whether the aim of the hazard was met."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Further figures, as a JSON object."""


@dataclass(frozen=True)
class Hazard:
    """A fault caused by a client, a Triton, a disk or an operator, which must not affect others."""

    name: str
    """Name for `--only`."""
    what: str
    """Description of the fault."""
    aim: str
    """Condition under which the hazard passes."""
    run: Callable[[Rig], Result]
    """Causes the fault and measures the outcome."""


HAZARDS: list[Hazard] = []
"""All hazards, the most dangerous first."""


def hazard(what: str, aim: str) -> Callable[[Callable[[Rig], Result]], Callable[[Rig], Result]]:
    """Register a function as the hazard of its name. `what`: description of the fault; `aim`: condition to pass."""

    def register(run: Callable[[Rig], Result]) -> Callable[[Rig], Result]:
        HAZARDS.append(Hazard(run.__name__, what, aim, run))
        return run

    return register


SCRIPTED = "scripted"
"""Name of a model whose requests say how long they take."""
STAGE_MS = 5.0


def imitations() -> list[dict[str, str]]:
    """Return different parameters whose concatenated names and values are equal."""
    written = service_pb2.ModelInferRequest()
    written.parameters["a"].string_param = "x"
    value = written.parameters["a"].SerializeToString().hex()
    return [
        {"a": "x", "b": "y"}, {f"a={value};b": "y"}, {"a": "x"}, {"b": "y"}, {}, {"a": "x;b=y"}, {"a=x;b": "y"},
        {"('a', 'x'), ('b'": "y"}, {"a\0x\0b": "y"}, {"ab": "xy"},
    ]  # fmt: skip


@hazard("parameters whose names imitate the merge keys of others", "0 wrong, 0 failed")
def merge_keys(rig: Rig) -> Result:
    """Send all requests at once before a busy worker, so that they queue side by side."""
    triton, callers = rig.triton(Model("parameters", PARAMETERS)), 16
    kinds = imitations()
    direct = rig.client(triton.grpc_address)
    messages = [request("parameters", [[3.0, 0]], **parameters) for parameters in kinds]
    expected = [float(tensor_of(direct.call(message)[1])[0, 0]) for message in messages]
    proxy = rig.tidegate(triton, policy="fifs")
    clients = [rig.client(proxy.grpc) for _ in range(callers)]
    requests = 1000 if rig.quick else 10_000

    def ask(number: int) -> str:
        kind = number % len(kinds)
        code, answer = clients[number % callers].call(messages[kind])
        if code is not OK:
            return "failed"
        return "well" if float(tensor_of(answer)[0, 0]) == expected[kind] else "wrong"

    answers = Counter(side_by_side(callers, requests, ask))
    return Result(
        f"{answers['wrong']} wrong, {answers['failed']} failed of {requests}, {len(set(expected))} kinds",
        answers["well"] == requests and len(set(expected)) == len(kinds),
        dict(answers),
    )


HANG_LIMIT_S = 10.0
"""Maximum seconds until an error: `limits.health_timeout_s` of 4 s, plus time for a busy machine."""


@hazard(
    "a Triton that hangs (SIGSTOP), calls of gRPC and HTTP in flight, scheduled and bypassed",
    f"all clients have an error within {HANG_LIMIT_S:g} s",
)
def hung_triton(rig: Rig) -> Result:
    """Stop a Triton during calls over gRPC and HTTP, to a scheduled and a bypassed model."""
    triton = rig.triton(Model("scheduled"), Model("passed", scheduling="bypass"))
    proxy, rows = rig.tidegate(triton), [[0.0, 0.0]]
    client = rig.client(proxy.grpc)

    def over_grpc(model: str) -> bool:
        return client.call(request(model, rows), timeout_s=60)[0] is OK

    def http(model: str) -> bool:
        try:
            return over_http(proxy.http, f"/v2/models/{model}/infer", json_request(rows))[0] == 200
        except OSError:
            return False  # cut off

    ways = [(ask, model) for ask in (over_grpc, http) for model in ("scheduled", "passed")]
    if not all(ask(model) for ask, model in ways):
        raise SystemExit("not answered before the Triton was stopped")

    def ended_after_s(number: int) -> float:
        ask, model = ways[number]
        began = time.monotonic()
        ask(model)
        return time.monotonic() - began

    with ThreadPoolExecutor(len(ways)) as pool:
        os.kill(triton.pid, signal.SIGSTOP)
        try:
            seconds = list(pool.map(ended_after_s, range(len(ways))))
        finally:
            os.kill(triton.pid, signal.SIGCONT)
    names = [f"{'gRPC' if ask is over_grpc else 'HTTP'} {model}" for ask, model in ways]
    found = dict(zip(names, seconds, strict=True))
    words = "error after " + ", ".join(f"{took:.1f} s ({name})" for name, took in found.items())
    return Result(words, max(seconds) <= HANG_LIMIT_S, found)


@hazard(
    "two slow stages among the first eight, SLO 100 ms: how long no answer is given",
    "answers again within 1 s",
)
def slow_first_runs(rig: Rig) -> Result:
    """Start a new Tidegate for each duration of the slow executions, then send requests at a steady rate."""
    triton = rig.triton(Model(SCRIPTED, slo_ms=100.0))
    seconds: dict[str, float] = {}
    for slow_ms in (1000,) if rig.quick else (350, 1000, 3000):
        rig.tell(f"{slow_ms} ms")
        client = rig.client(rig.tidegate(triton, policy="symphony").grpc)
        for number in range(8):
            client.call(request(SCRIPTED, [[slow_ms if number in (3, 5) else STAGE_MS, 0]]))
        began = time.monotonic()
        answered: list[float] = []

        def note(call: Any, answered: list[float] = answered) -> None:  # noqa: ANN401 - grpc is untyped
            if call.code() is OK:
                answered.append(time.monotonic())

        while not answered and time.monotonic() - began < 40:
            client.start(request(SCRIPTED, [[STAGE_MS, 0]])).add_done_callback(note)
            time.sleep(0.025)
        seconds[f"{slow_ms} ms"] = (answered[0] if answered else time.monotonic()) - began
    words = ", ".join(f"{took:.2f} s after stages of {slow}" for slow, took in seconds.items())
    return Result(words, max(seconds.values()) <= 1.0, seconds)


@hazard(
    f"lone requests on an idle worker, SLO 100 ms, stages of {STAGE_MS:g} ms, three busy processes beside",
    "neither policy drops any",
)
def lone_requests(rig: Rig) -> Result:
    """Send one request at a time beside processes that keep the CPUs busy."""
    triton, requests = rig.triton(Model(SCRIPTED, slo_ms=100.0)), 40
    message = request(SCRIPTED, [[STAGE_MS, 0]])
    dropped = {}
    for policy in ("symphony", "fifs"):
        rig.tell(policy)
        client = rig.client(rig.tidegate(triton, policy=policy).grpc)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
        try:
            dropped[policy] = 0
            for _ in range(requests):
                dropped[policy] += client.call(message)[0] is not OK
                time.sleep(0.02)
        finally:
            for process in busy:
                process.kill()
                process.wait()
    words = ", ".join(f"{policy} drops {count} of {requests}" for policy, count in dropped.items())
    return Result(words, not any(dropped.values()), dropped)


BATCH_MS, BATCH_ROWS = 20.0, 4
PATIENT_RPS, LOAD_FRACTION = 4.0, 0.84
"""Rate of the model without an SLO, and load of the worker with full batches of both."""
WAIT_LIMIT_S = 3.0
"""Maximum latency in seconds: `limits.no_slo_max_deferral_s` of 1 s, then fair queueing with the other model."""


@hazard(
    f"a model without an SLO beside one with 150 ms, at {LOAD_FRACTION:.0%} load",
    f"worst wait {WAIT_LIMIT_S:g} s, all answered",
)
def without_slo(rig: Rig) -> Result:
    """Send Poisson arrivals to both models; measure the longest latency of the model without an SLO."""
    models = (Model("urgent", rows=BATCH_ROWS, slo_ms=150.0), Model("patient", rows=BATCH_ROWS))
    proxy = rig.tidegate(rig.triton(*models), policy="symphony")
    window_ns = round((8 if rig.quick else 45) * NS_PER_S)
    urgent_rps = (LOAD_FRACTION - PATIENT_RPS * BATCH_MS / 1e3) * BATCH_ROWS * 1e3 / BATCH_MS
    rates = {"urgent": urgent_rps, "patient": PATIENT_RPS}
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
        longest_s <= WAIT_LIMIT_S and shares["patient"] == 1,
        {"worst_s": longest_s, "answered": shares},
    )


def _rolling(rig: Rig, *, killed: bool = False, listed: bool = False) -> Result:
    outcomes, took_s = rolling_update(4000 if rig.quick else 10_000, killed=killed, listed=listed)
    lost = outcomes["sent"] - outcomes["answered"]
    return Result(f"{lost} of {outcomes['sent']} not answered; it took {took_s:.0f} s", not lost, dict(outcomes))


@hazard("a rolling update of the Tritons under load, to another batch size", "every request answered")
def rolling_tritons(rig: Rig) -> Result:
    """Restart the Tritons by SIGTERM."""
    return _rolling(rig)


@hazard("a rolling update of Tritons that are killed", "every request answered")
def killed_tritons(rig: Rig) -> Result:
    """Restart the Tritons by SIGKILL."""
    return _rolling(rig, killed=True)


@hazard("a rolling update of Tritons to new addresses, which a file lists", "every request answered")
def listed_tritons(rig: Rig) -> Result:
    """Replace the Tritons by others, as pods are."""
    return _rolling(rig, listed=True)


@hazard("Tidegate replaced by a new process on the same ports under load", "no request fails")
def replaced_tidegate(rig: Rig) -> Result:
    """Replace the Tidegate repeatedly under load over gRPC and HTTP."""
    requests, replacements = (2000, 1) if rig.quick else (10_000, 3)
    found = replace_under_load(requests, replacements, Console(quiet=True))
    failed, total = found.failed.total(), found.failed.total() + found.answered.total()
    words = f"{failed} of {total} failed, {found.replacements} replacement(s), longest {found.longest_ms:.0f} ms"
    return Result(words, not failed and found.replacements == replacements, found.figures())


CANCELLED_COUNT, AT_ONCE_COUNT = 10_000, 500
CANCEL_LIMIT_S = 10.0


@hazard(
    f"{CANCELLED_COUNT:,} requests that wait, cancelled at once: until none is left",
    f"{CANCEL_LIMIT_S:g} s or less, the client's own time included",
)
def cancellations(rig: Rig) -> Result:
    """Cancel requests queued behind a running one; half as many must take about half as long, so that time is
    linear.
    """
    proxy = rig.tidegate(rig.triton(Model(SCRIPTED)), policy="fifs", limits={"execution_timeout_s": 600})
    running = rig.client(proxy.grpc).start(request(SCRIPTED, [[600_000, 0]]), timeout_s=600)
    until(lambda: b'tidegate_batch_rows_count{model="scripted"} 1' in over_http(proxy.metrics, "/metrics")[1], 60)

    def queued() -> float:
        page = over_http(proxy.metrics, "/metrics")[1].decode()
        lines = [line for line in page.splitlines() if line.startswith("tidegate_queue_length{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    seconds = {}
    for many in (CANCELLED_COUNT // 2, CANCELLED_COUNT):
        rig.tell(f"{many}")
        client = rig.client(proxy.grpc)
        message = request(SCRIPTED, [[0, 0]]).SerializeToString()
        in_flight: list[Any] = []
        for count in range(AT_ONCE_COUNT, many + 1, AT_ONCE_COUNT):
            # gRPC's core gives up calls at random while a thousand of them wait to be taken in.
            in_flight += [client.start(message, timeout_s=120) for _ in range(AT_ONCE_COUNT)]
            if until(lambda count=count: queued() >= count, 60) is None:  # type: ignore[misc]
                raise SystemExit(f"{queued():.0f} of {count} requests were queued")
        began = time.monotonic()
        for call in in_flight:
            call.cancel()
        until(lambda: queued() == 0, 60)
        seconds[str(many)] = time.monotonic() - began
    running.cancel()
    words = ", ".join(f"{took:.1f} s for {many}" for many, took in seconds.items())
    return Result(words, seconds[str(CANCELLED_COUNT)] <= CANCEL_LIMIT_S, seconds)


DRAIN_S, EXIT_S = 3.0, 1.5
"""Drain timeout, and the seconds that a process takes to exit beyond it."""


@hazard(
    f"SIGTERM while calls of a minute are in flight over gRPC and HTTP, drain_timeout_s {DRAIN_S:g}",
    f"ends within drain_timeout_s and {EXIT_S:g} s",
)
def drain_budget(rig: Rig) -> Result:
    """Shut down during calls of a minute, to a scheduled and a bypassed model."""
    triton = rig.triton(Model("scheduled"), Model("passed", scheduling="bypass"))
    proxy = rig.tidegate(triton, drain_timeout_s=DRAIN_S)
    client = rig.client(proxy.grpc)
    http_ends: Counter[str] = Counter()

    def ask(model: str) -> None:
        try:
            status, _ = over_http(proxy.http, f"/v2/models/{model}/infer", json_request([[60_000.0, 0.0]]))
            http_ends[str(status)] += 1
        except OSError:
            http_ends["cut off"] += 1

    models = ("scheduled", "passed")
    threads = [threading.Thread(target=ask, args=(model,)) for model in models]
    calls = [client.start(request(model, [[60_000, 0]]), timeout_s=90) for model in models]
    for thread in threads:
        thread.start()
    until(lambda: b"tidegate_in_flight_bytes 0.0" not in over_http(proxy.metrics, "/metrics")[1], 20)
    time.sleep(0.5)  # the others are in flight, too
    began = time.monotonic()
    proxy.send(signal.SIGTERM)
    proxy.wait(60)
    took_s = time.monotonic() - began
    ended = Counter(outcome(call)[0].name for call in calls)
    for thread in threads:
        thread.join()
    words = f"ended after {took_s:.1f} s of {DRAIN_S:g}; gRPC: {dict(ended)}, HTTP: {dict(http_ends)}"
    return Result(words, DRAIN_S - 0.5 <= took_s <= DRAIN_S + EXIT_S, {"took_s": took_s})


@hazard(KILLS_FAULT, KILLS_AIM)
def kills(rig: Rig) -> Result:
    """Run kills, overload and shutdown one after the other, on one cluster."""
    return Result(*run_kills(rig))
