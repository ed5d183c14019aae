"""Recording of OCR requests by a Tidegate that serves the real models: a workload for `tidegate recommend`.

    python -m bench.ocr_recording run.jsonl [--seconds S] [--rate R]
    tidegate recommend run.jsonl

rapidocr's text recognizer and direction classifier run on the CPU behind the embedded tritonserver. Each line of text,
found by its detector in photographs, is sent to both models; lines of equal width share batches. Lines arrive in
bursts, as from pages (gamma with shape 0.5). No profile is measured; the recording has the latencies of batches.
"""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from bench.dynamic_models.baselines import generate_repository
from bench.dynamic_models.ocr import CASES
from tidegate.workload import PolicyChoice, Scenario
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.processes import serving_command
from tidegate_loadtest.scenario_run import LiveRun, run_live
from tidegate_proxy.tritons.embedded import EmbeddedTriton

MODELS = ("text_recognition", "text_direction")
SEED = 1


def record(path: Path, *, rate_rps: float, seconds: float, work: Path) -> float:
    """Serve the models and record requests; return the share of requests on time.

    Args:
        path: event log to write.
        rate_rps: requests per second.
        seconds: duration.
        work: folder for models and inputs.
    """
    cases = [case for case in CASES if case.model in MODELS]
    inputs = {}
    for case in cases:
        onnx = work / f"{case.model}.onnx"
        case.write_model(onnx)
        generate_repository(work / "models", onnx, case)
        inputs[case.model] = work / case.model
        inputs[case.model].mkdir()
        case.write_inputs(inputs[case.model])
    scenario = Scenario.model_validate(
        {
            "name": "ocr",
            "warmup_s": 2,
            "duration_s": seconds,
            "workers": [{"count": 1}],
            "models": [
                {"name": case.model, "slo_ms": case.slo_ms, "profile": {"alpha_ms": 20, "beta_ms": 1, "max_batch": 8}}
                for case in cases
            ],
            "arrivals": {"process": "gamma", "shape": 0.5, "rate_rps": rate_rps},
        }
    )
    with EmbeddedTriton([work / "models"], log=work / "triton.log") as triton:
        flags = ("--triton", triton.grpc_address, "--listen", "127.0.0.1:0", "--event-log", str(path))
        with serving_command("serve", *flags, log=work / "tidegate.log") as address:
            run = LiveRun(
                scenario, PolicyChoice(name="symphony"), SEED, SendingOptions({}, inputs=inputs), target=address
            )
            return run_live(run).result.total.attainment


def main() -> None:
    """Record requests and print the result."""
    parser = argparse.ArgumentParser(prog="python -m bench.ocr_recording", description=__doc__)
    parser.add_argument("recording", type=Path, help="the event log to write")
    parser.add_argument("--seconds", type=float, default=90.0, help="how long; default 90")
    parser.add_argument("--rate", type=float, default=24.0, help="requests per second, of both models; default 24")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        kept = record(options.recording, rate_rps=options.rate, seconds=options.seconds, work=Path(folder))
    console.print(f"{options.recording}: {kept:.1%} of the requests were on time")
    console.print(f"now: tidegate recommend {options.recording}", highlight=False)


if __name__ == "__main__":
    main()
