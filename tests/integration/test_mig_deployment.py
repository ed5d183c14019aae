"""From a layout through the generator to GPUs that are cut as it says, and to the UUIDs that its files ask for."""

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer
import yaml
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

from tidegate_proxy import plugin as proxy_plugin
from tidegate_repo_generator import plugin as generator_plugin

pytest.importorskip("pynvml", reason="needs nvidia-ml-py, the extra `nvml` of tidegate-proxy")

from tests.proxy.tritons.mig.fake_nvml import FakeNvml, Gpu

HALF = {"type": "mig", "profile": "3g.20gb", "start": 4}


def worker(name: str, gpu: int, part: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "device": {"node": "a", "id": gpu, "product": "A100", "memory_mib": 40960},
        "slice": part,
        "device_class": "k",
        "hosts": ["m"],
    }


WORKERS = [
    worker("the large one", 0, {"type": "mig", "profile": "4g.20gb", "start": 0}),
    worker("0/0", 0, {"type": "mps", "percent": 70, "instance": HALF}),
    worker("0/1", 0, {"type": "mps", "percent": 30, "instance": HALF}),
    worker("whole", 1, {"type": "whole"}),
]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    gpus = [Gpu("GPU-00000000-2222-3333-4444-555555555555"), Gpu("GPU-00000001-2222-3333-4444-555555555555")]
    gpus[1].now = gpus[1].then = False
    fake = FakeNvml(*gpus)
    monkeypatch.setattr("tidegate_proxy.tritons.mig.nvml.import_module", lambda name: fake)
    monkeypatch.setattr("platform.node", lambda: "a")
    return gpus


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    for command in generator_plugin.tidegate_commands() + proxy_plugin.tidegate_commands():
        if command.name in {"generate", "mig"}:
            app.command(command.name)(command.run)
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done


def test_what_is_generated_is_brought_about_and_found(tmp_path: Path, gpus: list[Gpu]) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx")
    layout = {
        "models": [{"name": "m", "pipelines": [{"partitions": ["m"], "batch": 4}]}],
        "partitions": [{"name": "m", "model": "m", "blocks": [0, 1], "latency_ms": {"k": [1, 1, 1, 1]}}],
        "workers": WORKERS,
    }
    (tmp_path / "layout.json").write_text(json.dumps(layout))
    out = tmp_path / "out"
    run("generate", tmp_path / "layout.json", "--blocks", tmp_path / "m.onnx", "-o", out, "--deploy-target", "triton")
    run("mig", "apply", out, "--yes")
    assert gpus[0].cut() == {"4g.20gb": [0], "3g.20gb": [4]}
    uuids = {each.profile.name: each.parts[0].uuid for each in gpus[0].instances}
    variables = dict(line.split("=") for line in run("mig", "env", out).stdout.splitlines())
    text = (out / "compose" / "a" / "compose.yaml").read_text()
    assert set(re.findall(r"\$\{(TIDEGATE_\w+):\?", text)) == set(variables)
    wanted = ("4g.20gb", "3g.20gb", "3g.20gb")
    for (name, service), profile in zip(yaml.safe_load(text)["services"].items(), (*wanted, None), strict=True):
        (device,) = service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        assert variables.get(device[2:].split(":")[0], device) == (uuids[profile] if profile else "1"), name
    for given, profile in zip(WORKERS, wanted, strict=False):
        assert run("mig", "uuid", out, given["name"]).stdout.strip() == uuids[profile]
    assert run("mig", "uuid", out, "whole").stdout.strip() == gpus[1].uuid
