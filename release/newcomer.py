"""Run by the Python of a clean environment: all is there, a scenario is simulated, a model of one's own is served.

It imports nothing of this repository: `python newcomer.py VERSION DISTRIBUTION...`, in a folder that may be filled.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, metadata, resources
from pathlib import Path

SCENARIO = """
duration_s: 2
workers: [{count: 2}]
models:
  - {name: resnet, slo_ms: 120, profile: {alpha_ms: 4, beta_ms: 8, max_batch: 8}}
arrivals: {process: poisson, rate_rps: 150}
policies: [{name: symphony}, {name: fifs}]
"""
PATIENCE_S = 60
"""How long a server may take to start before it is given up."""


def main() -> None:
    """All of it; an AssertionError says what is wrong."""
    wanted, *distributions = sys.argv[1:]
    for name in distributions:
        package = import_module(name.replace("-", "_"))
        assert metadata.version(name) == wanted, (name, metadata.version(name))
        assert resources.files(package).joinpath("py.typed").is_file(), name
        assert "site-packages" in str(package.__file__), f"{name} is not what was installed: {package.__file__}"
    assert _tidegate("--version") == f"tidegate {wanted}\n"
    found = json.loads(_tidegate("plugins", "--json"))
    assert found["broken"] == {}, found["broken"]
    offered = {plugin["source"] for plugin in found["plugins"]}
    # What makes models for Triton's Python backend offers Tidegate itself nothing.
    assert offered == set(distributions) - {"tidegate-triton-models"}, offered
    print(f"{len(distributions)} distributions offer {len(found['plugins'])} things to `tidegate plugins`")
    _simulate()
    print("a scenario was simulated")
    _tidegate("new-policy", "high-water")
    assert Path("tidegate-high-water/src/tidegate_high_water/policy.py").is_file()
    print("a policy to begin with was written")
    _serve()
    print("an ONNX model was generated, profiled and served behind the real Triton, with default options")
    told = subprocess.run(["tidegate-locust", "--help"], capture_output=True, text=True, check=True).stdout
    assert "--closed-loop" in told, told
    print("tidegate-locust --help lists what Tidegate adds")


def _tidegate(*arguments: object) -> str:
    command = ["tidegate", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def _simulate() -> None:
    Path("scenario.yaml").write_text(SCENARIO)
    _tidegate("simulate", "scenario.yaml", "-o", "results.json", "--html", "report.html", "--jobs", 1)
    rows = json.loads(Path("results.json").read_text())["rows"]
    assert {row["policy"] for row in rows} == {"symphony", "fifs"}
    assert Path("report.html").read_text().startswith("<!")


def _serve() -> None:
    import numpy as np  # noqa: PLC0415 - that it is there is what is tried
    from tritonclient.grpc import InferenceServerClient, InferInput  # noqa: PLC0415

    _write_model(Path("double.onnx"))
    _tidegate("generate", "double.onnx", "-o", "models", "--slo-ms", 200)
    with _running("triton", "models", "--grpc-port", 0, "--http-port", 0, "--metrics-port", 0) as triton:
        _tidegate("profile", "double", "--triton", triton, "-o", "profiles.json")
        with _running("serve", "--triton", triton, "--profiles", "profiles.json", "--listen", "127.0.0.1:0") as address:
            x = InferInput("x", [1, 4], "FP32")
            x.set_data_from_numpy(np.arange(4, dtype=np.float32).reshape(1, 4))
            y = InferenceServerClient(address).infer("double", [x]).as_numpy("y")
            assert y is not None
            assert y.tolist() == [[0, 2, 4, 6]], y


def _write_model(path: Path) -> None:
    from onnx import TensorProto, helper, save  # noqa: PLC0415 - that it is there is what is tried

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@contextmanager
def _running(*arguments: object) -> Iterator[str]:
    """A server of ours until the end of the block: its gRPC address, which it prints when it is ready."""
    log = Path(f"{arguments[0]}.log")
    with log.open("w") as file:
        server = subprocess.Popen(["tidegate", *map(str, arguments)], stdout=file, stderr=file)
    try:
        given_up = time.monotonic() + PATIENCE_S
        while not (told := [line.split() for line in log.read_text().splitlines() if line.startswith("gRPC ")]):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < given_up, f"not ready after {PATIENCE_S} s:\n{log.read_text()}"
            time.sleep(0.05)
        yield told[0][1]
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
