"""Ensembles run by Triton alone and by Tidegate in stages, over load: one of three emulated steps, or a real one.

    python -m bench.ensembles [--ocr] [--seconds N] [--rates RPS ...] [--json FILE]

The emulated steps are like those of OCR: detection, direction, recognition, with one emulated GPU each. With `--ocr`
the models of rapidocr run on the CPU, one instance of one thread each (`bench/ocr_ensemble.py`): keep the machine
otherwise idle. Its rates are fractions of what Triton sustains, its SLO a multiple of the latency alone; both are
measured first.

Triton is tuned: each model's queue delay is 0 or 5 % of the SLO, with or without a queue timeout, and the best at each
rate counts. The column of light load has the latency there, where Tidegate bypasses the ensemble under `auto`.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from tritonclient.grpc import service_pb2

from bench import ocr_ensemble
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
OCR_SECONDS: Final = 6.0
OCR_LOADS: Final = (0.6, 0.9, 1.3)
"""Rates of the OCR ensemble as fractions of what Triton sustains."""
OCR_LIGHT_FRACTION: Final = 0.2
"""Its rate at light load as a fraction of the same."""
OCR_SLO_FACTOR: Final = 4.0
"""Its SLO as a multiple of its median latency alone."""
CALLERS, CLOSED_S = 8, 4.0
"""Callers that find out what Triton sustains, and seconds that they take."""
TENSOR: Final = '{ name: "%s" data_type: TYPE_FP32 dims: [ 8 ] }'
DELAY_FRACTION, TIMEOUT_FRACTION = 0.05, 0.5
TUNINGS: Final[dict[str, dict[str, float]]] = {
    "no delay": {},
    "delay 5 %": {"max_queue_delay_ms": DELAY_FRACTION},
    "timeout 50 %": {"default_timeout_ms": TIMEOUT_FRACTION},
    "delay 5 %, timeout 50 %": {"max_queue_delay_ms": DELAY_FRACTION, "default_timeout_ms": TIMEOUT_FRACTION},
}
"""Queue policies of Triton's dynamic batcher as fractions of the SLO, the same for each step."""
LEAD: Final = "Triton, "


@dataclass(frozen=True)
class EnsembleLoad:
    """Ensemble, what is sent to it, and how its steps are scheduled by Tidegate."""

    name: str
    write_models: Callable[[Path, dict[str, float]], None]
    """Writes a repository; the options of Triton's batcher are in ms."""
    messages: Sequence[service_pb2.ModelInferRequest]
    slo_ms: float
    light_rps: float
    rates_rps: Sequence[float]
    batched: Sequence[str] = ()
    """Steps that Tidegate merges though their backend takes requests one by one."""

    def models_of(self, mode: str) -> dict[str, dict[str, Any]]:
        """Return the settings of models for Tidegate. `mode`: `scheduling` of the ensemble."""
        steps = {name: {"scheduling": "batched"} for name in self.batched}
        return {self.name: {"scheduling": mode, "slo_ms": self.slo_ms}, **steps}


def write_models(repository: Path, tuning: dict[str, float]) -> None:
    """Write the emulated steps and their ensemble into a repository. `tuning`: options of Triton's batcher."""
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


def emulated_load(rates_rps: Sequence[float]) -> EnsembleLoad:
    """Return the load of the emulated ensemble. `rates_rps`: requests per second; empty: the default."""
    message = service_pb2.ModelInferRequest(model_name="ocr")
    message.inputs.add(name="IMAGE", datatype="FP32", shape=[1, 8])
    message.raw_input_contents.append(np.zeros(8, np.float32).tobytes())
    return EnsembleLoad("ocr", write_models, [message], SLO_MS, LIGHT_RPS, rates_rps or RATES_RPS)


def ocr_load(rates_rps: Sequence[float], console: Console) -> EnsembleLoad:
    """Return the load of the OCR ensemble, after a look at what its Triton sustains.

    `rates_rps`: requests per second; empty: `OCR_LOADS`; `console`: where the measured capacity is shown.
    """
    messages = ocr_ensemble.requests()
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
        triton_of(Path(folder), ocr_ensemble.write_models, {}) as triton,
    ):
        alone_ms, _ = asyncio.run(measure_closed(triton.grpc_address, messages, 1))
        _, capacity_rps = asyncio.run(measure_closed(triton.grpc_address, messages, CALLERS))
    slo_ms = float(round(OCR_SLO_FACTOR * alone_ms))
    console.print(f"alone {alone_ms:.1f} ms, so the SLO is {slo_ms:g} ms; {capacity_rps:.1f} requests/s sustained")
    return EnsembleLoad(
        ocr_ensemble.ENSEMBLE,
        ocr_ensemble.write_models,
        messages,
        slo_ms,
        round(OCR_LIGHT_FRACTION * capacity_rps, 2),
        rates_rps or [round(load * capacity_rps, 1) for load in OCR_LOADS],
        ocr_ensemble.BATCHED_STEPS,
    )


async def measure_closed(
    address: str, messages: Sequence[service_pb2.ModelInferRequest], callers: int
) -> tuple[float, float]:
    """Have callers send one request after the other; return the median latency in ms, and the responses per second.

    `address`: HOST:PORT; `messages`: requests that they go through; `callers`: their number.
    """
    taken_s: list[float] = []
    async with Connection(address) as connection:
        await connection.stubs[0].ModelInfer(messages[0])
        began_s = time.monotonic()

        async def call(number: int) -> None:
            while (sent_s := time.monotonic()) < began_s + CLOSED_S:
                await connection.stubs[0].ModelInfer(messages[number % len(messages)])
                taken_s.append(time.monotonic() - sent_s)
                number += callers

        await asyncio.gather(*map(call, range(callers)))
        return 1e3 * float(np.median(taken_s)), len(taken_s) / (time.monotonic() - began_s)


@contextmanager
def triton_of(
    folder: Path, write: Callable[[Path, dict[str, float]], None], tuning: dict[str, float]
) -> Iterator[EmbeddedTriton]:
    """Run a Triton with the models until the block is left.

    `folder`: for its repository; `write`: writes that; `tuning`: options of Triton's batcher, in ms.
    """
    write(folder / "models", tuning)
    triton = EmbeddedTriton([folder / "models"]).start()
    try:
        yield triton
    finally:
        triton.stop()


async def measure(address: str, load: EnsembleLoad, rate_rps: float, seconds: float) -> dict[str, float]:
    """Send Poisson arrivals to the ensemble at an address; return attainment and latency percentiles.

    `rate_rps`: requests per second; `seconds`: length of the window.
    """
    gaps = np.random.default_rng(1).exponential(1e9 / rate_rps, round(2 * rate_rps * (seconds + WARMUP_S)) + 10)
    arrivals = np.cumsum(gaps)
    arrivals = arrivals[arrivals < (seconds + WARMUP_S) * 1e9].astype(np.int64)
    async with Connection(address) as connection:
        result = await run_open_loop(
            connection,
            arrivals.tolist(),
            lambda index: load.messages[index % len(load.messages)],
            window_ns=round(seconds * 1e9),
            warmup_ns=round(WARMUP_S * 1e9),
        )
    on_time = result.ok & (result.latency_ns <= load.slo_ms * 1e6)
    answered = result.latency_ns[result.ok] / 1e6
    return {
        "attainment": float(np.mean(on_time)),
        "p50_ms": float(np.median(answered)) if len(answered) else float("nan"),
        "p99_ms": float(np.percentile(answered, 99)) if len(answered) else float("nan"),
        "lateness_p99_ms": float(np.percentile(result.lateness_ns, 99)) / 1e6,
    }


def bench_ensembles(load: EnsembleLoad, seconds: float, console: Console) -> list[dict[str, Any]]:
    """Measure each contender at each rate and at light load; return a row for each.

    `load`: the ensemble and its requests; `seconds`: length of each window; `console`: where progress is shown.
    """
    rows: list[dict[str, Any]] = []

    def measured(contender: str, address: str) -> None:
        for rate_rps in (load.light_rps, *load.rates_rps):
            window_s = seconds if rate_rps != load.light_rps else 2 * seconds
            row = {"contender": contender, "rate_rps": rate_rps}
            rows.append({**row, **asyncio.run(measure(address, load, rate_rps, window_s))})
            console.print(rows[-1])

    for name, fractions in TUNINGS.items():
        tuning = {option: fraction * load.slo_ms for option, fraction in fractions.items()}
        with (
            tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
            triton_of(Path(folder), load.write_models, tuning) as triton,
        ):
            measured(LEAD + name, triton.grpc_address)
            if tuning:
                continue
            for mode in ("expanded", "auto"):
                config = Path(folder) / f"{mode}.yaml"
                address = {"grpc": triton.grpc_address, "http": triton.http_address}
                config.write_text(json.dumps({"tritons": [address], "models": load.models_of(mode)}))
                with proxy_before(triton, Path(folder), "--config", str(config)) as proxy:
                    measured(f"Tidegate, {mode}", proxy.grpc)
    return rows


def print_rows(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print attainment by contender and rate, and the latency at light load beside Triton's without a delay."""
    light, *rates = sorted({row["rate_rps"] for row in rows})
    found = {(row["contender"], row["rate_rps"]): row for row in rows}
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    beside_ms = found[LEAD + "no delay", light]["p50_ms"]
    lines = []
    for contender in contenders:
        p50_ms = found[contender, light]["p50_ms"]
        attained = (f"{found[contender, rate_rps]['attainment']:.1%}" for rate_rps in rates)
        lines.append((contender, f"{p50_ms:.1f} ms ({p50_ms / beside_ms:.2f})", *attained))
    print_table(console, None, ("", f"p50 at {light:g}/s", *(f"{rate_rps:g}/s" for rate_rps in rates)), lines)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = parser_of("bench.ensembles", __doc__)
    parser.add_argument("--ocr", action="store_true", help="the models of rapidocr instead of emulated ones")
    parser.add_argument("--seconds", type=float, help=f"of each window; default {SECONDS:g}, OCR: {OCR_SECONDS:g}")
    parser.add_argument("--rates", type=float, nargs="+", default=(), metavar="RPS", help="requests/s")
    options = parser.parse_args()
    console = Console(highlight=False)
    load = ocr_load(options.rates, console) if options.ocr else emulated_load(options.rates)
    rows = bench_ensembles(load, options.seconds or (OCR_SECONDS if options.ocr else SECONDS), console)
    print_rows(rows, console)
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
