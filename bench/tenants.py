"""Priority classes, quotas and noisy tenants, live: emulated GPUs behind tritonserver and Tidegate, and simulated.

    python -m bench.tenants [--seconds S] [--seed N] [--json FILE]

Two workers host two models. Cases: an urgent class at 40 % and another at 110 % of what they can do, with and without
priorities; a tenant at four times its rate limit; a tenant at 300 % beside one at 30 %, with and without tenants.
Clients are an open loop. Keep the machine otherwise idle.
"""

import asyncio
import json
import random
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from tritonclient.grpc import service_pb2

from bench.common import parser_of, print_table, write_json
from bench.proxy_process import proxy_process
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, draw_requests
from tidegate_loadtest.emulated import GPU_RESOURCE, write_emulated_model, write_profiles
from tidegate_loadtest.processes import serving_command
from tidegate_proxy.tritons.backend import INFER_METHOD

ALPHA_MS, BETA_MS, MAX_BATCH_ROWS, WORKER_COUNT = 10.0, 60.0, 8, 2
SLO_MS = 600.0
CAPACITY_RPS = WORKER_COUNT * MAX_BATCH_ROWS / (ALPHA_MS * MAX_BATCH_ROWS + BETA_MS) * 1000
HIGH = {"name": "live", "models": ["ocr"], "load": 0.4}
LOW = {"name": "batch", "models": ["embed"], "load": 1.1}
CALM = {"name": "calm", "models": ["ocr"], "load": 0.3}
ATTACK = {"name": "attack", "models": ["ocr"], "load": 3.0, "clients": 50}
LIMIT_RPS = 20.0
CASES: dict[str, list[dict[str, Any]]] = {
    "classes": [HIGH | {"priority": 1}, LOW | {"priority": 2}],
    "no classes": [HIGH, LOW],
    "quota": [
        {"name": "limited", "models": ["ocr"], "load": 4 * LIMIT_RPS / CAPACITY_RPS, "requests_per_s": LIMIT_RPS}
    ],
    "attack, tenants": [CALM, ATTACK],
    "attack, no tenants": [CALM, ATTACK],
}


def scenario_of(case: str, seconds: float, seed: int) -> Scenario:
    """Return a case as a scenario."""
    tenants = CASES[case]
    loads = {name: sum(each["load"] for each in tenants if name in each["models"]) for name in ("ocr", "embed")}
    profile = {"alpha_ms": ALPHA_MS, "beta_ms": BETA_MS, "max_batch": MAX_BATCH_ROWS}
    models = [{"name": name, "slo_ms": SLO_MS, "profile": profile, "weight": load} for name, load in loads.items()]
    return Scenario.model_validate(
        {
            "name": case,
            "seed": seed,
            "warmup_s": 0,
            "duration_s": seconds,
            "workers": [{"count": WORKER_COUNT, "gpu": "emulated"}],
            "models": models,
            "arrivals": {"process": "poisson", "rate_rps": CAPACITY_RPS * sum(loads.values())},
            "tenants": [] if case == "attack, no tenants" else tenants,
        }
    )


async def send(address: str, scenario: Scenario, seed: int) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Send the requests of a case; return by tenant how many were sent, on time, and over the rate limit."""
    sent, on_time, limited = Counter[str](), Counter[str](), Counter[str]()
    named = CASES[scenario.name]
    drawn = draw_requests(scenario.model_copy(update={"tenants": []}), seed)
    rng, calls = random.Random(seed), []
    async with grpc.aio.insecure_channel(address) as channel:
        infer = channel.unary_unary(INFER_METHOD)

        async def call(model: str, tenant: str, client: int) -> None:
            message = service_pb2.ModelInferRequest(model_name=model)
            message.inputs.add(name="INPUT0", datatype="FP32", shape=(1, 8))
            message.raw_input_contents.append(np.zeros(8, np.float32).tobytes())
            metadata = (("x-tenant", tenant), ("x-client", f"{tenant}{client}"))
            began_s = time.monotonic()
            try:
                await infer(message.SerializeToString(), timeout=30, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                limited[tenant] += error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            else:
                on_time[tenant] += time.monotonic() - began_s <= SLO_MS / 1000

        start_s = time.monotonic()
        for request in drawn:
            users = [each for each in named if request.model in each["models"]]
            (tenant,) = rng.choices(users, [each["load"] for each in users])
            await asyncio.sleep(max(0.0, start_s + request.arrival_ns / 1e9 - time.monotonic()))
            sent[tenant["name"]] += 1
            calls.append(
                asyncio.create_task(call(request.model, tenant["name"], rng.randrange(tenant.get("clients", 1))))
            )
        await asyncio.gather(*calls)
    return sent, on_time, limited


def worker_seconds(metrics: str) -> dict[str, float]:
    """Return the worker time of each tenant by the metrics page."""
    with urllib.request.urlopen(f"http://{metrics}/metrics") as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    samples = [each for family in families for each in family.samples if each.name == "tidegate_gpu_seconds_total"]
    tenants = {each.labels["tenant"] for each in samples}
    return {name: sum(each.value for each in samples if each.labels["tenant"] == name) for name in tenants}


def run(case: str, triton: str, seconds: float, seed: int, work: Path) -> list[dict[str, Any]]:
    """Run a case live and simulated; return a row for each tenant."""
    scenario, tenants = scenario_of(case, seconds, seed), CASES[case]
    fields = ("weight", "priority", "requests_per_s")
    named = {each["name"]: {key: each[key] for key in fields if key in each} or {"weight": 1} for each in tenants}
    config = {"tritons": [triton], "listen": {"grpc": "127.0.0.1:0", "metrics": "127.0.0.1:0"}}
    config |= {"policy": "symphony", "clients": {"by": "metadata", "key": "x-client"}}
    config["profiles"] = str(work / "profiles.json")
    if scenario.tenants:
        config["tenants"] = {"by": "metadata", "key": "x-tenant", "named": named}
    file = work / "tidegate.json"
    file.write_text(json.dumps(config))
    with proxy_process(work, "--config", str(file)) as proxy:
        sent, on_time, limited = asyncio.run(send(proxy.grpc, scenario, seed))
        busy = worker_seconds(proxy.metrics)
    simulated = {each.tenant: each for each in simulate(RunSpec(scenario, PolicyChoice(name="symphony"), seed)).tenants}
    rows = []
    for name, count in sent.items():
        sim = simulated.get(name)
        rows.append(
            {
                "case": case,
                "tenant": name,
                "sent": count,
                "admitted": count - limited[name],
                "on_time": on_time[name] / max(1, count - limited[name]),
                "worker_fraction": busy.get(name, 0.0) / (WORKER_COUNT * seconds),
                "simulated_in_time": sim.attainment if sim else None,
                "simulated_worker_fraction": sim.worker_fraction if sim else None,
            }
        )
    return rows


def main() -> None:
    """Run all cases and print a table."""
    parser = parser_of("bench.tenants", __doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    console, rows = Console(), []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        work = Path(folder)
        scenario = scenario_of("classes", options.seconds, options.seed)
        for model in scenario.models:
            write_emulated_model(work / "models", scenario, model, scenario.workers, seed=0, batching=None)
        write_profiles(work / "profiles.json", scenario, 0)
        ports = [word for name in ("grpc", "http", "metrics") for word in (f"--{name}-port", "0")]
        limits = ("--", f"--rate-limit-resource={GPU_RESOURCE}-0:{WORKER_COUNT}", "--rate-limit=execution_count")
        command = ("triton", *ports, str(work / "models"), *limits)
        triton = stack.enter_context(serving_command(*command, log=work / "triton.errors"))
        for case in CASES:
            rows += run(case, triton, options.seconds, options.seed, work)
    cells = ([f"{value:.3f}" if isinstance(value, float) else value for value in row.values()] for row in rows)
    print_table(console, None, list(rows[0]), cells)
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
