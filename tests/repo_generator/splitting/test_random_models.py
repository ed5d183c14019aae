"""Random graphs, cut anywhere: what is not refused answers what the whole answers, batches regrouped included."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.examples import examples
from tidegate_repo_generator.dataflow import SplitError
from tidegate_repo_generator.splitting.blocks import Blocks, open_model
from tidegate_repo_generator.splitting.cutting import CutRefused
from tidegate_repo_generator.splitting.symbols import BATCH_SYMBOL

WIDTH = 4
VECTOR = (
    "Relu",
    "Exp",
    "Add",
    "Mul",
    "MatMul",
    "AddWeight",
    "Reshape",
    "Roundabout",
    "ExpandZeros",
    "Rows",
    "If",
    "Flat",
)


@st.composite
def models(draw: st.DrawFn) -> Any:
    """A graph over [n, 4] tensors, each node on any tensors before it, with shape arithmetic and transposes between."""
    nodes: list[Any] = []
    weights = [numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32)[::-1].copy(), "w")]
    weights += [numpy_helper.from_array(np.arange(WIDTH, dtype=np.float32) / WIDTH, "v")]
    weights += [numpy_helper.from_array(np.array([i]), f"i{i}") for i in range(2)]
    weights += [numpy_helper.from_array(np.array(i), f"s{i}") for i in range(2)]
    weights += [numpy_helper.from_array(np.array([-1, size]), name) for name, size in (("flat", 2), ("full", WIDTH))]
    weights.append(numpy_helper.from_array(np.array([[0, 1], [1, 0.5]], dtype=np.float32), "half"))
    weights += [numpy_helper.from_array(np.array([WIDTH]), "width"), numpy_helper.from_array(np.array(True), "yes")]
    inputs = ["x", "u"][: draw(st.integers(1, 2))]
    tensors = list(inputs)

    def add(operator: str, read: list[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, read, [name], **attributes))
        return name

    for number in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(VECTOR))
        one, two = tensors[-1], draw(st.sampled_from(tensors))
        out = f"t{number}"
        if kind in {"Relu", "Exp"}:
            add("Relu" if kind == "Relu" else "Sigmoid", [one], out)
        elif kind in {"Add", "Mul"}:
            add("Tanh", [add(kind, [one, two], out + "a")], out)
        elif kind in {"MatMul", "AddWeight"}:
            add("MatMul" if kind == "MatMul" else "Add", [one, "w" if kind == "MatMul" else "v"], out)
        elif kind == "Reshape":  # to [n, 4], with n from another tensor
            rows = add("Gather", [add("Shape", [two], out + "s"), "i0"], out + "g", axis=0)
            add("Reshape", [one, add("Concat", [rows, "width"], out + "c", axis=0)], out)
        elif kind == "Roundabout":
            turned = add("Transpose", [one], out + "t", perm=[1, 0])
            costly = draw(st.booleans())
            moved = add(*(("MatMul", ["w", turned]) if costly else ("Neg", [turned])), out + "n")
            add("Transpose", [moved], out, perm=[1, 0])
        elif kind == "Flat":  # rows and features in one dimension, between which there is no cut
            flat = add("Reshape", [one, "flat"], out + "f")
            add("Reshape", [add("MatMul", [flat, "half"], out + "m"), "full"], out)
        elif kind == "ExpandZeros":
            zeros = add("ConstantOfShape", [add("Shape", [two], out + "s")], out + "z")
            add("Add", [one, zeros], out)
        elif kind == "Rows":  # a row's number in the batch, times zero
            count = add("Gather", [add("Shape", [two], out + "s"), "s0"], out + "g", axis=0)
            rows = add("Cast", [add("Range", ["s0", count, "s1"], out + "r")], out + "f", to=TensorProto.FLOAT)
            column = add("Unsqueeze", [add("Sub", [rows, rows], out + "0"), "i1"], out + "u")
            add("Add", [one, column], out)
        else:
            branches = {
                key: helper.make_graph(
                    [helper.make_node(operator, [one, two], [out + key])],
                    key,
                    [],
                    [helper.make_tensor_value_info(out + key, TensorProto.FLOAT, None)],
                )
                for key, operator in (("then_branch", "Max"), ("else_branch", "Min"))
            }
            add("If", ["yes"], out, **branches)
        tensors.append(out)
    outputs = sorted({tensors[-1], draw(st.sampled_from(tensors[len(inputs) :]))})
    infos = [[helper.make_tensor_value_info(name, 1, ["n", WIDTH]) for name in names] for names in (inputs, outputs)]
    graph = helper.make_graph(nodes, "random", *infos, initializer=weights)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def run(model: Any, live: dict[str, Any]) -> dict[str, Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_outputs()]
    return dict(zip(names, session.run(names, {e.name: live[e.name] for e in session.get_inputs()}), strict=True))


@settings(max_examples=examples(0.3), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(models(), st.data())
def test_any_cuts_that_are_possible(tmp_path: Path, model: Any, data: st.DataObject) -> None:
    onnx.checker.check_model(model)
    onnx.save(model, tmp_path / "model.onnx")
    cutter, inputs, source = open_model(tmp_path / "model.onnx", {})
    if cutter.end < 2:
        return
    positions = sorted(data.draw(st.sets(st.integers(1, cutter.end - 1), min_size=1, max_size=3)))
    try:
        blocks = Blocks(cutter, source, positions)
        count = len(blocks.spans)
        middle = sorted(data.draw(st.sets(st.integers(1, count - 1), max_size=count)) | {0, count})
        parts = [blocks.model(first, last) for first, last in pairwise(middle)]
    except CutRefused as refusal:
        event("refused")
        assert "there is no cut" in str(refusal) or "nothing that depends" in str(refusal)
        return
    except SplitError as error:
        event("empty block")
        assert "is sent on" in str(error) or "depend on no input" in str(error)
        return
    event(f"{count} blocks")
    for values in blocks.crossings:
        assert all(cutter.probe.boundary(value).shape[0] == BATCH_SYMBOL for value in values)
    generator = np.random.default_rng(0)
    feed = {tensor.name: generator.standard_normal((5, WIDTH)).astype(np.float32) for tensor in inputs}
    whole = run(model, feed)
    live = dict(feed)
    for part in parts:
        onnx.checker.check_model(part)
        # Rows meet others from partition to partition.
        alone = [run(part, {name: value[rows] for name, value in live.items()}) for rows in (slice(0, 2), slice(2, 5))]
        live |= {name: np.concatenate([piece[name] for piece in alone]) for name in alone[0]}
    for name, expected in whole.items():
        np.testing.assert_allclose(live[name], expected, rtol=1e-5, atol=1e-6)
