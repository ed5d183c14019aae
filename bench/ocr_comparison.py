"""Real models, real pictures: Triton's own dynamic batcher beside Tidegate, on two models of rapidocr.

    python -m bench.ocr_comparison [--model NAME] [--rounds N] [--seconds S] [--output FOLDER]

Lines of text are found in two photographs, cut to parts of random length, and prepared as rapidocr prepares them: 48
pixels high, padded on the right; for the recogniser to 320, 480, ..., for the classifier of directions to 192. Each
contender has a tritonserver of its own with one instance of the model; only one contender has load at a time. The load
is Poisson, at shares of what one instance can do with these pictures one by one. Nothing else should run meanwhile:
generator, Tidegate and tritonserver share the machine.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import cv2
import numpy as np
import rapidocr_onnxruntime
import skimage
from google.protobuf import text_format
from numpy.typing import NDArray
from rich.console import Console
from tritonclient.grpc import model_config_pb2

from demo.read_text import model_path
from tidegate.documents import ModelProfile, write_profile
from tidegate.workload import Scenario
from tidegate_loadtest.comparison.document import comparison_document
from tidegate_loadtest.comparison.page import comparison_page
from tidegate_loadtest.comparison.runs import Comparison, compare
from tidegate_loadtest.comparison.table import print_comparison
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.connection import Connection
from tidegate_loadtest.input_files import FileRequests
from tidegate_loadtest.live import Sending
from tidegate_loadtest.processes import serving_command
from tidegate_loadtest.profiler import measure_profiles
from tidegate_loadtest.progress_bar import progress_bar
from tidegate_proxy.embedded import EmbeddedTriton
from tidegate_repo_generator.generate import generate_model

PHOTOGRAPHS = ("page.png", "text.png")
LINES, HEIGHT = 96, 48
"""Pictures, and their height in pixels."""
SIZES, SAMPLES = (1, 2, 4, 8), 20
MAX_BATCH = 8
LOADS = (0.5, 0.8, 1.1)
WARMUP_S = 2.0
LATE_SHARE = 0.05
"""Of the SLO: a generator that is later than this, at its 99th percentile, fell behind."""


@dataclass(frozen=True)
class Case:
    """A model, and the pictures that it takes; widths in pixels."""

    model: str
    slo_ms: float
    shortest: int
    step: int
    longest: int


CASES = (
    Case("text_recognition", slo_ms=400, shortest=320, step=160, longest=960),
    Case("text_direction", slo_ms=50, shortest=192, step=192, longest=192),
)
"""rapidocr gives its recogniser nothing narrower than 320, and its classifier 192 always."""


@dataclass(frozen=True)
class Contender:
    """One way to serve the model."""

    name: str
    batch: int | None = None
    """Triton's dynamic batcher, without delay, up to so many rows; None: it is off."""
    timeout: bool = False
    """Its queue policy: what waits longer than 7/8 of the SLO is rejected."""
    policy: str | None = None
    """Tidegate's; None: the clients speak to Triton itself."""


CONTENDERS = (
    Contender("Triton's batcher", MAX_BATCH),
    Contender("the same, timeout", MAX_BATCH, timeout=True),
    Contender("batch 1, timeout", 1, timeout=True),
    Contender("Tidegate symphony", policy="symphony"),
)


def write_lines(folder: Path, case: Case, *, seed: int = 0) -> Counter[int]:
    """Write LINES pictures of text as the model takes them, [3, 48, width] each; how many have which width."""
    crops = list(_crops())
    rng = Random(seed)
    folder.mkdir()
    widths: Counter[int] = Counter()
    for number in range(LINES):
        crop = crops[number % len(crops)]
        part = max(1, round(crop.shape[1] * rng.uniform(0.3, 1.0)))
        left = rng.randint(0, crop.shape[1] - part)
        line = _prepared(crop[:, left : left + part], case)
        widths[line.shape[2]] += 1
        np.save(folder / f"{number:03}.npy", line)
    return widths


def _crops() -> Iterator[NDArray[np.uint8]]:
    """The lines of text that rapidocr's detector finds in the photographs."""
    reader = rapidocr_onnxruntime.RapidOCR()
    for name in PHOTOGRAPHS:
        picture = cv2.imread(str(Path(skimage.__file__).parent / "data" / name))
        boxes, _ = reader.text_det(picture)
        yield from reader.get_crop_img_list(picture, boxes)


def _prepared(crop: NDArray[np.uint8], case: Case) -> NDArray[np.float32]:
    """As rapidocr does: scaled to the height, -1 to 1, zeros on the right."""
    width = min(case.longest, max(1, round(crop.shape[1] * HEIGHT / crop.shape[0])))
    padded = max(case.shortest, -(-width // case.step) * case.step)
    scaled = cv2.resize(crop, (width, HEIGHT)).astype(np.float32).transpose(2, 0, 1) / 127.5 - 1
    return np.pad(scaled, ((0, 0), (0, 0), (0, padded - width)))


def write_model(repository: Path, case: Case, contender: Contender) -> None:
    """The model as `tidegate generate` writes it, and Triton's batcher where that is to form the batches."""
    generate_model(model_path(case.model), repository, name=case.model, max_batch=MAX_BATCH, slo_ms=case.slo_ms)
    if contender.batch is None:
        return
    file = repository / case.model / "config.pbtxt"
    config = text_format.Parse(file.read_text(), model_config_pb2.ModelConfig())
    config.max_batch_size = contender.batch
    config.dynamic_batching.SetInParent()
    if contender.timeout:
        timeout_us = round(case.slo_ms * 7 / 8 * 1000)
        config.dynamic_batching.default_queue_policy.default_timeout_microseconds = timeout_us
    file.write_text(text_format.MessageToString(config))


@contextmanager
def contenders(work: Path, case: Case, profiles: Path) -> Iterator[list[Target]]:
    """All of them, running, until the block is left."""
    with ExitStack() as running:
        targets = []
        for number, contender in enumerate(CONTENDERS):
            repository = work / f"models{number}"
            write_model(repository, case, contender)
            triton = running.enter_context(EmbeddedTriton([repository], log=work / f"triton{number}.log"))
            address = triton.grpc_address
            if contender.policy:
                serve = ("--triton", address, "--policy", contender.policy, "--profiles", str(profiles))
                command = ("serve", *serve, "--listen", "127.0.0.1:0")
                address = running.enter_context(serving_command(*command, log=work / "tidegate.errors"))
            targets.append(Target(contender.name, address))
        yield targets


async def measure(
    address: str, case: Case, folder: Path, widths: Sequence[int]
) -> tuple[dict[int, ModelProfile], float]:
    """The model's profile by width, and how long a picture of the folder takes alone, in ms: the mean."""
    async with Connection(address) as connection:
        shapes = [{"x": (3, HEIGHT, width)} for width in widths]
        profiles = await measure_profiles(connection, case.model, SIZES, shapes, samples=SAMPLES)
        request_of = await FileRequests.for_model(connection, case.model, folder, rows=1, seed=0)
        started = time.perf_counter()
        for index in range(2 * LINES):
            await connection.ask(connection.stubs[0].ModelInfer(request_of(index)))
        return dict(zip(widths, profiles, strict=True)), (time.perf_counter() - started) * 1e3 / (2 * LINES)


def scenario_of(case: Case, profile: ModelProfile, rate_rps: float, duration_s: float) -> Scenario:
    """One worker, one model, Poisson arrivals."""
    points_ms = {point.rows: point.median_ms for point in profile.points}
    model = {"name": case.model, "slo_ms": case.slo_ms, "max_batch": MAX_BATCH, "profile": {"points_ms": points_ms}}
    return Scenario.model_validate(
        {
            "name": case.model,
            "warmup_s": WARMUP_S,
            "duration_s": duration_s,
            "workers": [{"count": 1}],
            "models": [model],
            "arrivals": {"rate_rps": round(rate_rps, 2)},
        }
    )


def bench_ocr(console: Console, case: Case, *, rounds: int, duration_s: float, output: Path | None) -> None:
    """Run all loads and print them; with `output`, write a JSON document and a page for each."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        work, lines, profiles = Path(folder), Path(folder) / "lines", Path(folder) / "profiles.json"
        widths = write_lines(lines, case)
        shown = ", ".join(f"{width} px: {count}" for width, count in sorted(widths.items()))
        console.print(f"{case.model}: {LINES} lines of text, padded to widths of {shown}", highlight=False)
        typical = sorted(widths.elements())[LINES // 2]
        write_model(work / "alone", case, CONTENDERS[-1])
        with EmbeddedTriton([work / "alone"], log=work / "alone.log") as triton:
            measured, mean_ms = asyncio.run(measure(triton.grpc_address, case, lines, sorted(widths)))
        for width, profile in measured.items():
            points = ", ".join(f"{point.rows}: {point.median_ms:.1f}" for point in profile.points)
            console.print(f"ms by rows at {width} px: {points}", highlight=False)
            write_profile(profiles, profile)
        console.print(f"mean of the lines, alone: {mean_ms:.1f} ms", highlight=False)
        with contenders(work, case, profiles) as targets:
            for load in LOADS:
                rate_rps = load * 1e3 / mean_ms
                scenario = scenario_of(case, measured[typical], rate_rps, duration_s)
                title = (
                    f"{case.model}, {load:.0%} of one instance one by one: {rate_rps:.1f} requests/s, "
                    f"{rounds} rounds of {duration_s:g} s, SLO {case.slo_ms:g} ms"
                )
                compared = _compared(console, case, scenario, targets, lines, rounds)
                _show(console, compared, title, output, f"{case.model}_{load:g}")


def _compared(
    console: Console, case: Case, scenario: Scenario, targets: Sequence[Target], lines: Path, rounds: int
) -> Comparison:
    each_s = scenario.warmup_s + scenario.duration_s
    sending = Sending({}, timeout_s=10, lateness_limit_ms=LATE_SHARE * case.slo_ms, inputs={case.model: lines})
    with progress_bar(console, each_s * rounds * len(targets)) as show:
        return compare(
            scenario,
            targets,
            sending,
            rounds=rounds,
            seed=1,
            shown=lambda done, name, progress: show(done * each_s + progress.elapsed_ns / 1e9, f"{name}: {progress}"),
        )


def _show(console: Console, compared: Comparison, title: str, output: Path | None, name: str) -> None:
    print_comparison(console, compared, title)
    if output:
        output.mkdir(parents=True, exist_ok=True)
        (output / f"{name}.json").write_text(json.dumps(comparison_document(compared), indent=1) + "\n")
        (output / f"{name}.html").write_text(comparison_page(title, compared))


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m bench.ocr_comparison", description=__doc__)
    parser.add_argument("--model", choices=[case.model for case in CASES], help="only this one")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender at each load")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured window of every run")
    parser.add_argument("--output", type=Path, help="folder for the documents and pages")
    arguments = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 160)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before")
    for case in CASES:
        if arguments.model in (None, case.model):
            bench_ocr(console, case, rounds=arguments.rounds, duration_s=arguments.seconds, output=arguments.output)


if __name__ == "__main__":
    main()
