"""Priority classes, quotas and noisy tenants, live: emulated GPUs behind tritonserver and Tidegate, and simulated.

    python -m bench.tenants [--seconds S] [--seed N] [--json FILE]

Two workers host two models. Cases: an urgent class at 40 % and another at 110 % of what they can do, with and without
priorities; a tenant at four times its rate limit; a tenant at 300 % beside one at 30 %, with and without tenants.
Clients are an open loop. Keep the machine otherwise idle.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.common import console_of, parser_of, print_table, write_json
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario
from tidegate_loadtest.emulated import emulated_cluster
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.scenario_run import LiveRun, run_live

ALPHA_MS, BETA_MS, MAX_BATCH_ROWS, WORKER_COUNT = 10.0, 60.0, 8, 2
SLO_MS = 600.0
CAPACITY_RPS = WORKER_COUNT * MAX_BATCH_ROWS / (ALPHA_MS * MAX_BATCH_ROWS + BETA_MS) * 1000
HIGH = {"name": "live", "models": ["ocr"], "load": 0.4}
LOW = {"name": "batch", "models": ["embed"], "load": 1.1}
CALM = {"name": "calm", "models": ["ocr"], "load": 0.3}
ATTACK = {"name": "attack", "models": ["ocr"], "load": 3.0, "clients": 50}
LIMIT_RPS = 20.0
WITHOUT_TENANTS = "attack, no tenants"
"""Case in which Tidegate knows no tenants."""
CASES: dict[str, list[dict[str, Any]]] = {
    "classes": [HIGH | {"priority": 1}, LOW | {"priority": 2}],
    "no classes": [HIGH, LOW],
    "quota": [
        {"name": "limited", "models": ["ocr"], "load": 4 * LIMIT_RPS / CAPACITY_RPS, "requests_per_s": LIMIT_RPS}
    ],
    "attack, tenants": [CALM, ATTACK],
    WITHOUT_TENANTS: [CALM, ATTACK],
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
            "tenants": tenants,
        }
    )


def run(case: str, seconds: float, seed: int, work: Path) -> list[dict[str, Any]]:
    """Run a case live and simulated; return a row for each tenant. `work`: an empty folder."""
    scenario, choice = scenario_of(case, seconds, seed), PolicyChoice(name="symphony")
    sent = LiveRun(scenario, choice, seed, SendingOptions({}))
    simulated = {}
    if case == WITHOUT_TENANTS:
        unknown = scenario.model_copy(update={"tenants": []})
        with emulated_cluster(unknown, choice, seed, work) as cluster:
            live = run_live(replace(sent, target=cluster.address)).result
    else:
        live = run_live(sent, work=work).result
        simulated = {each.tenant: each for each in simulate(RunSpec(scenario, choice, seed)).tenants}
    return [
        {
            "case": case,
            "tenant": tenant.tenant,
            "sent": tenant.requests,
            "admitted": tenant.requests - tenant.rate_limited,
            "on_time": tenant.attainment,
            "worker_fraction": tenant.worker_fraction,
            "simulated_on_time": other and other.attainment,
            "simulated_worker_fraction": other and other.worker_fraction,
        }
        for tenant in live.tenants
        for other in [simulated.get(tenant.tenant)]
    ]


def main() -> None:
    """Run all cases and print a table."""
    parser = parser_of("bench.tenants", __doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    console, rows = console_of(160), []
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
            rows += run(case, options.seconds, options.seed, Path(folder))
    cells = ([f"{value:.3f}" if isinstance(value, float) else value for value in row.values()] for row in rows)
    print_table(console, None, list(rows[0]), cells)
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
