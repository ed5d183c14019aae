"""Models in ONNX's text form, the architectures that onnx ships, and a comparison apart from the splitter's own."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

Arrays = dict[str, NDArray[Any]]
SaveText = Callable[..., Path]
RunAll = Callable[..., Arrays]


@pytest.fixture
def save_text(tmp_path: Path) -> SaveText:
    """`save_text(body, weights={}, header=..., functions="", name="model.onnx")` -> the file.

    `body`: the graph in ONNX's text form.
    """

    def save(
        body: str,
        weights: dict[str, NDArray[Any]] | None = None,
        header: str = '<ir_version: 8, opset_import: ["" : 17]>',
        functions: str = "",
        name: str = "model.onnx",
    ) -> Path:
        model = parser.parse_model(header + body + functions)
        tensors = [numpy_helper.from_array(array, key) for key, array in (weights or {}).items()]
        model.graph.initializer.extend(tensors)
        onnx.checker.check_model(model, full_check=False)
        onnx.save(model, tmp_path / name)
        return tmp_path / name

    return save


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.fixture
def run_all() -> RunAll:
    """`run_all(files, feed)` -> all tensors by name, after the models ran in a row."""

    def run(paths: Iterable[Path], feed: Arrays) -> Arrays:
        live = dict(feed)
        for path in paths:
            opened = session(path)
            names = [entry.name for entry in opened.get_outputs()]
            taken = {entry.name: live[entry.name] for entry in opened.get_inputs()}
            live |= dict(zip(names, opened.run(names, taken), strict=True))
        return live

    return run


def with_weights(source: Path, target: Path) -> None:
    """Give a light model of onnx's, whose weights are all constant, random ones of a sane scale.

    Weights of convolutions and dense layers are He-initialized, those of normalizations near 1 and 0; the last layer is
    scaled so that the softmax behind it is not saturated.
    """
    model = onnx.load(source)
    graph, generator = model.graph, np.random.default_rng(0)
    dims = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    sizes = {tensor.name: tensor for tensor in graph.initializer}
    readers: dict[str, tuple[str, int, str]] = {}
    for node in graph.node:
        for slot, name in enumerate(node.input):
            readers.setdefault(name, (node.op_type, slot, node.output[0]))
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            dims[node.output[0]] = numpy_helper.to_array(sizes[node.input[0]]).tolist()

    def values(name: str) -> NDArray[np.float32]:
        kind, slot, output = readers.get(name, ("", 0, ""))
        while kind == "Unsqueeze":
            kind, slot, output = readers[output]
        noise = generator.standard_normal(dims[name])
        if kind in {"Conv", "Gemm"} and slot == 1:
            noise *= np.sqrt(2 / np.prod(dims[name][1:]))
            return noise.astype(np.float32)
        center = 1 if (kind, slot) in {("BatchNormalization", 1), ("BatchNormalization", 4), ("Mul", 1)} else 0
        return (center + 0.05 * noise).astype(np.float32)

    weights = {name for name in dims if name not in sizes or sizes[name].data_type == onnx.TensorProto.FLOAT}
    listed = {value.name for value in graph.input}
    kept = [tensor for tensor in graph.initializer if tensor.name not in weights]
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    del graph.initializer[:], graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    for name in sorted(weights):
        graph.initializer.append(numpy_helper.from_array(values(name), name))
        if name not in listed:
            graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims[name]))
    onnx.save(model, target)
    softmax = next((node for node in graph.node if node.op_type == "Softmax"), None)
    if softmax is not None:
        graph.output.append(onnx.ValueInfoProto(name=softmax.input[0]))
        opened = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        entry = opened.get_inputs()[0]
        feed = {entry.name: generator.standard_normal(entry.shape).astype(np.float32)}
        spread = float(opened.run([softmax.input[0]], feed)[0].std())
        last = [node for node in graph.node if node.op_type in {"Conv", "Gemm"}][-1]
        for tensor in graph.initializer:
            if tensor.name in last.input[1:]:
                scaled = numpy_helper.to_array(tensor) / np.float32(spread)
                tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))
        graph.output.pop()
        onnx.save(model, target)


@pytest.fixture(scope="session")
def light_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`light_model("resnet50")` -> the file, with weights."""
    folder = tmp_path_factory.mktemp("light")

    def make(name: str) -> Path:
        target = folder / f"{name}.onnx"
        if not target.exists():
            with_weights(Path(onnx.__file__).parent / "backend/test/data/light" / f"light_{name}.onnx", target)
        return target

    return make
