"""A deployment of a model that gives back what it gets, and a controller that wants what a test tells it to want."""

import os
import threading
from pathlib import Path
from typing import Any

from tests.proxy.fixtures.deployment import write_deployment_of
from tidegate.api import hookimpl
from tidegate.control import Controller, ControllerOptions, ControllerSpec, Observation
from tidegate.schemas import (
    Device,
    Layout,
    LayoutModel,
    LayoutPartition,
    LayoutPipeline,
    LayoutWorker,
    Mps,
    WholeDevice,
    read_document,
    write_document,
)

CONFIG = """
name: "m"
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "tidegate_scheduling" value: { string_value: "batched" } }
parameters { key: "folder" value: { string_value: "%s" } }
parameters { key: "sleep_s" value: { string_value: "%g" } }
"""
MODEL = """
import json, os, time
from pathlib import Path
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        folder, self.sleep_s = Path(parameters["folder"]["string_value"]), float(parameters["sleep_s"]["string_value"])
        if (folder / "broken").exists():
            raise pb.TritonModelException("CUDA out of memory")
        mine = [folder / "hold", *(folder / f"hold-gpu{n}" for n in range(9) if f"gpu{n}" in args["model_repository"])]
        while any(hold.exists() for hold in mine):
            time.sleep(0.01)
        self.folder = folder
        self.stuck = [folder / f"stuck-gpu{n}" for n in range(9) if f"gpu{n}" in args["model_repository"]]

    def execute(self, requests):
        if (self.folder / "fails").exists():
            raise ValueError("it does not run")
        time.sleep(self.sleep_s)
        while any(stuck.exists() for stuck in self.stuck):
            time.sleep(0.01)
        return [
            pb.InferenceResponse([pb.Tensor("Y", 2 * pb.get_input_tensor_by_name(request, "X").as_numpy())])
            for request in requests
        ]
"""


def layout(
    *gpus: int, batch: int = 4, percent: int | None = None, slo_ms: float = 10000, batch_ms: float = 5.0
) -> Layout:
    """The model on these GPUs, a worker on each; all of it, or such a share."""
    return Layout(
        models=(LayoutModel(name="m", slo_ms=slo_ms, pipelines=(LayoutPipeline(partitions=("m",), batch=batch),)),),
        partitions=(LayoutPartition(name="m", model="m", blocks=(0, 1), latency_ms={"any": (batch_ms,) * batch}),),
        workers=tuple(
            LayoutWorker(
                name=f"gpu{gpu}",
                device=Device("here", gpu, "any"),
                slice=WholeDevice() if percent is None else Mps(percent=percent),
                device_class="any",
                hosts=("m",),
            )
            for gpu in gpus
        ),
    )


def write_deployment(folder: Path, first: Layout, **config: Any) -> Path:
    """What `tidegate up` starts. What the models look at is in the folder `signs`."""
    (folder / "signs").mkdir(parents=True)
    config_pbtxt = CONFIG % (folder / "signs", first.partitions[0].latency_ms["any"][0] / 1000)
    return write_deployment_of(folder, first, lambda _name: (MODEL, config_pbtxt), **config)


class ToldOptions(ControllerOptions):
    """Where it is told."""

    folder: str = ""


class Told(Controller):
    """Wants the layout that a file names, and counts in another how often it is asked. It runs in its own process."""

    Options = ToldOptions

    def step(self, observation: Observation) -> Layout | None:
        assert isinstance(self.options, ToldOptions)
        folder = Path(self.options.folder)
        with (folder / "asked").open("ab") as asked:
            asked.write(b".")
        if (folder / "hangs").exists():
            threading.Event().wait()
        if (folder / "ends").exists():
            os._exit(7)
        wants = folder / "wants.json"
        return read_document(wants, Layout) if wants.exists() else None


def tell(folder: Path, wants: Layout | None) -> None:
    """Tell the controller what to want."""
    if wants is None:
        (folder / "wants.json").unlink(missing_ok=True)
        return
    write_document(folder / "next.json", wants)
    (folder / "next.json").rename(folder / "wants.json")


class Plugin:
    """Offers it."""

    @staticmethod
    @hookimpl
    def tidegate_controllers() -> list[ControllerSpec]:
        return [ControllerSpec("told", "Wants what it is told to want", Told)]


TOLD: dict[str, Any] = {"name": "told", "interval_s": 0.05, "cooldown_s": 0, "min_improvement": 0}
