"""Ensembles: one of three emulated steps, run by Triton alone and by Tidegate in stages, over load.

    python -m bench.ensembles [--seconds N] [--rates RPS ...] [--json FILE]

The steps are like those of OCR: detection, direction, recognition, with one emulated GPU each. Triton is tuned: each
model's queue delay is 0 or 5 % of the SLO, with or without a queue timeout, and the best at each rate counts. The last
table is the latency at light load, where Tidegate bypasses the ensemble unless configured otherwise.
"""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from tritonclient.grpc import service_pb2

from bench.common import parser_of, print_table, write_json
from bench.proxy_process import proxy_before
from demo.emulated import write_models as write_emulated
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.open_loop import run_open_loop
from tidegate_proxy.tritons.embedded import EmbeddedTriton

STEPS: Final = {
    "detection": {"alpha_ms": 3.0, "beta_ms": 30.0},
    "direction": {"alpha_ms": 0.5, "beta_ms": 6.0},
    "recognition": {"alpha_ms": 6.0, "beta_ms": 20.0},
}
"""Latency of a batch by step: `alpha_ms` for each row, `beta_ms` for the batch."""
MAX_ROWS: Final = 16
SLO_MS: Final = 300.0
RATES_RPS: Final = (60.0, 110.0, 140.0)
LIGHT_RPS: Final = 3.0
SECONDS, WARMUP_S = 10.0, 4.0
TENSOR: Final = '{ name: "%s" data_type: TYPE_FP32 dims: [ 8 ] }'
TUNINGS: Final[dict[str, dict[str, float]]] = {
    "no delay": {},
    "delay 5 %": {"max_queue_delay_ms": SLO_MS / 20},
    "timeout 50 %": {"default_timeout_ms": SLO_MS / 2},
    "delay 5 %, timeout 50 %": {"max_queue_delay_ms": SLO_MS / 20, "default_timeout_ms": SLO_MS / 2},
}
"""Queue policies of Triton's dynamic batcher, the same for each step."""


def write_models(repository: Path, tuning: dict[str, float]) -> None:
    """Write the steps and the ensemble `ocr` into a repository. `tuning`: options of Triton's batcher for each step."""
    models = [{"name": name, "profile": {**latency, "max_batch": MAX_ROWS}} for name, latency in STEPS.items()]
    write_emulated(repository, models, tuning)
    tensors = ["IMAGE", *(f"after_{name}" for name in list(STEPS)[:-1]), "TEXT"]
    steps = ",\n".join(
        f'{{ model_name: "{name}" model_version: -1 input_map {{ key: "INPUT0" value: "{tensors[number]}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{tensors[number + 1]}" }} }}'
        for number, name in enumerate(STEPS)
    )
    (repository / "ocr" / "1").mkdir(parents=True)
    (repository / "ocr" / "config.pbtxt").write_text(
        f'platform: "ensemble" max_batch_size: {MAX_ROWS}\ninput {TENSOR % "IMAGE"}\noutput {TENSOR % "TEXT"}\n'
        f"ensemble_scheduling {{ step [ {steps} ] }}\n"
    )


@contextmanager
def triton_of(folder: Path, tuning: dict[str, float]) -> Iterator[EmbeddedTriton]:
    """Run a Triton with the models until the block is left. `folder`: for its repository."""
    write_models(folder / "models", tuning)
    triton = EmbeddedTriton([folder / "models"]).start()
    try:
        yield triton
    finally:
        triton.stop()


async def measure(address: str, rate_rps: float, seconds: float) -> dict[str, float]:
    """Send Poisson arrivals to the ensemble at an address; return attainment and latency percentiles.

    `rate_rps`: requests per second; `seconds`: length of the window.
    """
    message = service_pb2.ModelInferRequest(model_name="ocr")
    message.inputs.add(name="IMAGE", datatype="FP32", shape=[1, 8])
    message.raw_input_contents.append(np.zeros(8, np.float32).tobytes())
    gaps = np.random.default_rng(1).exponential(1e9 / rate_rps, round(2 * rate_rps * (seconds + WARMUP_S)) + 10)
    arrivals = np.cumsum(gaps)
    arrivals = arrivals[arrivals < (seconds + WARMUP_S) * 1e9].astype(np.int64)
    async with Connection(address) as connection:
        result = await run_open_loop(
            connection,
            arrivals.tolist(),
            lambda _index: message,
            window_ns=round(seconds * 1e9),
            warmup_ns=round(WARMUP_S * 1e9),
        )
    on_time = result.ok & (result.latency_ns <= SLO_MS * 1e6)
    answered = result.latency_ns[result.ok] / 1e6
    return {
        "attainment": float(np.mean(on_time)),
        "p50_ms": float(np.median(answered)) if len(answered) else float("nan"),
        "p99_ms": float(np.percentile(answered, 99)) if len(answered) else float("nan"),
        "lateness_p99_ms": float(np.percentile(result.lateness_ns, 99)) / 1e6,
    }


def bench_ensembles(rates_rps: Sequence[float], seconds: float, console: Console) -> list[dict[str, Any]]:
    """Measure each contender at each rate and at light load; return a row for each.

    `rates_rps`: requests per second; `seconds`: length of each window; `console`: where progress is shown.
    """
    rows: list[dict[str, Any]] = []

    def measured(contender: str, address: str) -> None:
        for rate_rps in (LIGHT_RPS, *rates_rps):
            window_s = seconds if rate_rps != LIGHT_RPS else 2 * seconds
            row = {"contender": contender, "rate_rps": rate_rps}
            rows.append({**row, **asyncio.run(measure(address, rate_rps, window_s))})
            console.print(rows[-1])

    for name, tuning in TUNINGS.items():
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, triton_of(Path(folder), tuning) as triton:
            measured(f"Triton, {name}", triton.grpc_address)
            if tuning:
                continue
            for mode in ("expanded", "auto"):
                config = Path(folder) / f"{mode}.yaml"
                models = {"ocr": {"scheduling": mode, "slo_ms": SLO_MS}}
                address = {"grpc": triton.grpc_address, "http": triton.http_address}
                config.write_text(json.dumps({"tritons": [address], "models": models}))
                with proxy_before(triton, Path(folder), "--config", str(config)) as proxy:
                    measured(f"Tidegate, {mode}", proxy.grpc)
    return rows


def print_rows(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print attainment by contender and rate, and the latency at light load."""
    light, *rates = sorted({row["rate_rps"] for row in rows})
    lines = []
    for contender in dict.fromkeys(row["contender"] for row in rows):
        of = {row["rate_rps"]: row for row in rows if row["contender"] == contender}
        attained = (f"{of[rate_rps]['attainment']:.1%}" for rate_rps in rates)
        lines.append((contender, f"{of[light]['p50_ms']:.1f} ms", *attained))
    print_table(console, None, ("", "p50 light", *(f"{rate_rps:g}/s" for rate_rps in rates)), lines)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = parser_of("bench.ensembles", __doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measured window; default 10")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES_RPS, metavar="RPS", help="requests/s")
    options = parser.parse_args()
    console = Console(highlight=False)
    rows = bench_ensembles(options.rates, options.seconds, console)
    print_rows(rows, console)
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
