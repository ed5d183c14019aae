"""Real GPU: ResNet50 in PyTorch behind tritonserver, under Triton's batcher and under Tidegate with its defaults.

    python -m bench.gpu [--rounds N] [--seconds S] [--rates RPS ...] [--json FILE]

Needs an NVIDIA GPU and PyTorch with torchvision, which this repository does not install; without them it prints so and
ends. It also shows the device class that Tidegate reads from NVML. The network has random weights and pictures of 64 by
64 pixels. No setting of the GPU is changed.
"""

import argparse
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.common import parser_of, write_json
from bench.dynamic_models.baselines import Batcher, Contender, compared, running
from tidegate.workload import Scenario
from tidegate_loadtest.comparison.document import comparison_document
from tidegate_loadtest.live import SendingOptions
from tidegate_proxy.tritons.gpus import gpus_here

MODEL, MAX_BATCH, SLO_MS = "resnet50", 32, 30.0
RATES = (20.0, 400.0, 1500.0, 3000.0)
CONFIG = """
backend: "python"
max_batch_size: %d
input { name: "x" data_type: TYPE_FP32 dims: [3, 64, 64] }
output { name: "y" data_type: TYPE_FP32 dims: [1000] }
instance_group { kind: KIND_GPU count: 1 gpus: [0] }
"""
RUNNER = """
import numpy as np
import torch
import torchvision
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        torch.manual_seed(0)
        self._net = torchvision.models.resnet50(weights=None).eval().cuda()
        for rows in range(1, 33):
            self._run(torch.zeros(rows, 3, 64, 64))

    def _run(self, x):
        with torch.inference_mode():
            return self._net(x.cuda()).cpu()

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        y = self._run(torch.from_numpy(np.concatenate(inputs))).numpy()
        answers, start = [], 0
        for rows in map(len, inputs):
            tensor = pb_utils.Tensor("y", y[start : start + rows])
            answers.append(pb_utils.InferenceResponse(output_tensors=[tensor]))
            start += rows
        return answers
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare Triton and Tidegate at every rate."""
    parser = parser_of("bench.gpu", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each at each rate; default 3")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run; default 5")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="requests per second")
    parsed = parser.parse_args(arguments)
    console = Console()
    if why := _missing():
        console.print(f"bench.gpu is skipped: {why}")
        return
    _run(console, parsed)


def _missing() -> str | None:
    """What it would take; None: all is here."""
    if not gpus_here():
        return "NVML finds no GPU here"
    try:
        import torch  # noqa: PLC0415 - of no extra
        import torchvision  # type: ignore[import-not-found] # noqa: F401, PLC0415
    except ImportError as error:
        return f"{error}; pip install torch torchvision"
    return None if torch.cuda.is_available() else "PyTorch sees no GPU"


def _run(console: Console, options: argparse.Namespace) -> None:
    documents = []
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-gpu-") as folder:
        work = Path(folder)
        model, config = work / "models" / MODEL, work / "tidegate.yaml"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(CONFIG % MAX_BATCH)
        (model / "1" / "model.py").write_text(RUNNER)
        config.write_text(f"models: {{{MODEL}: {{slo_ms: {SLO_MS:g}, scheduling: batched}}}}\n")
        chosen = [
            Contender("Triton", Batcher(MAX_BATCH)),
            Contender("Triton, delay 3 ms", Batcher(MAX_BATCH, 3.0)),
            Contender("Tidegate", config=config),
        ]
        with running(work, work / "models", MODEL, chosen, lambda name: console.print(f"starting {name}")) as targets:
            kinds = re.findall(r"device_class=([^,)]+)", (work / "2" / "tidegate.log").read_text())
            console.print(f"GPUs here: {gpus_here()}\nkind of the workers: {', '.join(sorted(set(kinds)))}")
            for rate_rps in options.rates:
                scenario, title = _scenario(rate_rps, options.seconds), f"{rate_rps:g} requests/s"
                found = compared(console, scenario, targets, SendingOptions({}), options.rounds, title)
                documents.append(comparison_document(found))
    write_json(options.json, documents)


def _scenario(rate_rps: float, seconds: float) -> Scenario:
    return Scenario.model_validate(
        {
            "version": 1,
            "name": f"{MODEL} at {rate_rps:g}/s",
            "warmup_s": 2,
            "duration_s": seconds,
            "workers": [{"count": 1}],
            "models": [
                {
                    "name": MODEL,
                    "slo_ms": SLO_MS,
                    "profile": {"alpha_ms": 0.1, "beta_ms": 5, "max_batch": MAX_BATCH},
                }
            ],
            "arrivals": {"process": "poisson", "rate_rps": rate_rps},
        }
    )


if __name__ == "__main__":
    main()
