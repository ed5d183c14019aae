"""Real GPU: ResNet50 in PyTorch behind tritonserver, under Triton's batcher and under Tidegate with its defaults.

    python -m bench.gpu [--rounds N] [--seconds S] [--rates RPS ...] [--json FILE]

Needs an NVIDIA GPU and PyTorch with torchvision, which this repository does not install; without them it prints so and
ends. It also shows the device class that Tidegate reads from NVML. The network has random weights and pictures of 64 by
64 pixels. No setting of the GPU is changed.
"""

import argparse
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from bench.common import parser_of, write_json
from tidegate.workload import Scenario
from tidegate_loadtest.comparison.document import comparison_document
from tidegate_loadtest.comparison.runs import compare
from tidegate_loadtest.comparison.table import print_comparison
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.open_loop import Progress
from tidegate_loadtest.processes import serving_command
from tidegate_loadtest.progress_bar import progress_bar
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_proxy.tritons.gpus import gpus_here

MODEL, MAX_BATCH, SLO_MS = "resnet50", 32, 30.0
RATES = (20.0, 400.0, 1500.0, 3000.0)
BATCHERS = {
    "Triton": "dynamic_batching {}",
    "Triton, delay 3 ms": "dynamic_batching { max_queue_delay_microseconds: 3000 }",
    "Tidegate": "",
}
CONFIG = """
backend: "python"
max_batch_size: %d
input { name: "x" data_type: TYPE_FP32 dims: [3, 64, 64] }
output { name: "y" data_type: TYPE_FP32 dims: [1000] }
instance_group { kind: KIND_GPU count: 1 gpus: [0] }
%s
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
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-bench-gpu-")))
        targets = []
        for number, (name, batcher) in enumerate(BATCHERS.items()):
            console.print(f"starting {name}")
            folder = work / str(number)
            model = folder / "models" / MODEL
            (model / "1").mkdir(parents=True)
            (model / "config.pbtxt").write_text(CONFIG % (MAX_BATCH, batcher))
            (model / "1" / "model.py").write_text(RUNNER)
            triton = stack.enter_context(EmbeddedTriton([folder / "models"], log=folder / "triton.log"))
            address = triton.grpc_address
            if not batcher:
                (folder / "tidegate.yaml").write_text(
                    f"models: {{{MODEL}: {{slo_ms: {SLO_MS:g}, scheduling: batched}}}}\n"
                )
                command = ["serve", "--triton", address, "--listen", "127.0.0.1:0"]
                command += ["--config", str(folder / "tidegate.yaml")]
                address = stack.enter_context(serving_command(*command, log=folder / "tidegate.log"))
                kinds = re.findall(r"device_class=([^,)]+)", (folder / "tidegate.log").read_text())
                console.print(f"GPUs here: {gpus_here()}\nkind of the workers: {', '.join(sorted(set(kinds)))}")
            targets.append(Target(name, address))
        for rate_rps in options.rates:
            scenario = _scenario(rate_rps, options.seconds)
            each_s = scenario.warmup_s + scenario.duration_s
            with progress_bar(console, each_s * options.rounds * len(targets)) as show:
                compared = compare(
                    scenario,
                    targets,
                    SendingOptions({}),
                    rounds=options.rounds,
                    seed=1,
                    shown=_teller(show, each_s),
                )
            print_comparison(console, compared, f"{rate_rps:g} requests/s")
            documents.append(comparison_document(compared))
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


def _teller(show: Callable[[float, str], None], each_s: float) -> Callable[[int, str, Progress], None]:
    """Progress messages of a comparison."""
    return lambda done, name, progress: show(done * each_s + progress.elapsed_ns / 1e9, f"{name}: {progress}")


if __name__ == "__main__":
    main()
