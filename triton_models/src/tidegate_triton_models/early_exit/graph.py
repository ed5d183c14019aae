"""Early-exit network as an ONNX graph: stages of convolutions, each followed by a head and an `If`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tidegate_triton_models.early_exit.digits import CLASSES, SIZE

Widths = tuple[tuple[int, ...], ...]
STAGE_CHANNELS: Widths = ((64, 128), (128,), (256,), (256,))
"""Channels of the convolutions of each stage. A stage computes about four times as much as the one before it."""
POOLED_FIELDS = 2
"""Number of fields per side over which a head averages the channels of a stage."""
FIRST_STRIDE = 2
"""Stride of the first convolution; the others have stride 1."""
OPSET, IR_VERSION = 17, 8
"""ONNX versions that every onnxruntime supported by `onnx_runner` can read."""

Constants = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Head:
    """Classifier at an exit: scores = features @ weights + bias, over the features of all stages so far."""

    weights: NDArray[np.float32]
    """Array of shape [features, CLASSES]."""
    bias: NDArray[np.float32]
    """Array of shape [CLASSES]."""
    sure: float
    """Margin of the best score over the second best from which a row leaves here; the last head answers any row."""


def drawn_filters(seed: int, stages: Widths) -> Constants:
    """Draw the weights and biases of all convolutions, by name (He initialization)."""
    rng = np.random.default_rng(seed)
    filters: Constants = {}
    channels = 1
    for stage, widths in enumerate(stages):
        for layer, width in enumerate(widths):
            scale = np.sqrt(2 / (channels * 9))
            filters[f"weights_{stage}_{layer}"] = rng.normal(0, scale, (width, channels, 3, 3)).astype(np.float32)
            filters[f"bias_{stage}_{layer}"] = rng.normal(0, 0.1, width).astype(np.float32)
            channels = width
    return filters


def trunk(filters: Constants, stages: Widths) -> onnx.ModelProto:
    """Build all stages without heads: from `image` to `features_0`, `features_1`, ..., each [rows, features]."""
    nodes = [node for stage, widths in enumerate(stages) for node in _stage(stage, len(widths))]
    outputs = {f"features_{stage}": TensorProto.FLOAT for stage in range(len(stages))}
    return _model(_graph("trunk", nodes, outputs, _image(), filters))


def network(filters: Constants, stages: Widths, heads: Sequence[Head]) -> onnx.ModelProto:
    """Build the whole network: from `image` to `scores`, [rows, CLASSES] FP32, and `depth`, [rows, 1] INT64.

    The largest score is the answer. The depth is the exit at which the row left, counted from 1.
    """
    constants = {**filters, "one": np.array([1]), "two": np.array([2])}
    constants["best_over_second"] = np.array([[1], [-1]], np.float32)
    for number, head in enumerate(heads):
        constants |= {f"head_{number}": head.weights, f"head_bias_{number}": head.bias}
    constants |= {f"sure_{number}": np.array(head.sure, np.float32) for number, head in enumerate(heads[:-1])}
    nodes = [
        helper.make_node("Shape", ["image"], ["rows"], start=0, end=1),
        helper.make_node("Concat", ["rows", "one"], ["column"], axis=0),
        *_from_stage(0, stages),
        helper.make_node("Identity", ["scores_0_on"], ["scores"]),
        helper.make_node("Identity", ["depth_0_on"], ["depth"]),
    ]
    outputs = [
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", CLASSES]),
        helper.make_tensor_value_info("depth", TensorProto.INT64, ["rows", 1]),
    ]
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    return _model(helper.make_graph(nodes, "early_exit", _image(), outputs, initializers))


def _from_stage(stage: int, stages: Widths) -> list[onnx.NodeProto]:
    """A stage, its head and, within an `If`, all stages after it: `scores_{stage}_on` and `depth_{stage}_on`.

    The names of the outer graphs are seen within: `left_{stage}` are the rows, [rows, 1], that go on after it.
    """
    features = [f"features_{each}" for each in range(stage + 1)]
    here, on = (f"scores_{stage}", f"depth_{stage}"), (f"scores_{stage}_on", f"depth_{stage}_on")
    depth = helper.make_tensor("depth", TensorProto.INT64, [1], [stage + 1])
    nodes = [
        *_stage(stage, len(stages[stage])),
        helper.make_node("Concat", features, [f"seen_{stage}"], axis=1),
        helper.make_node("Gemm", [f"seen_{stage}", f"head_{stage}", f"head_bias_{stage}"], [here[0]]),
        helper.make_node("ConstantOfShape", ["column"], [here[1]], value=depth),
    ]
    if stage == len(stages) - 1:
        return nodes + [helper.make_node("Identity", [name], [result]) for name, result in zip(here, on, strict=True)]
    deeper = (f"scores_{stage + 1}_on", f"depth_{stage + 1}_on")
    types = (TensorProto.FLOAT, TensorProto.INT64)
    nodes += [
        helper.make_node("TopK", [here[0], "two"], [f"top_{stage}", f"which_{stage}"]),
        helper.make_node("MatMul", [f"top_{stage}", "best_over_second"], [f"margin_{stage}"]),
        helper.make_node("Less", [f"margin_{stage}", f"sure_{stage}"], [f"unsure_{stage}"]),
    ]
    before = [f"left_{stage - 1}"] if stage else []
    nodes += [
        helper.make_node("And" if before else "Identity", [*before, f"unsure_{stage}"], [f"left_{stage}"]),
        helper.make_node("Cast", [f"left_{stage}"], [f"left_number_{stage}"], to=TensorProto.INT32),
        helper.make_node("ReduceMax", [f"left_number_{stage}"], [f"any_number_{stage}"], keepdims=0),
        helper.make_node("Cast", [f"any_number_{stage}"], [f"any_{stage}"], to=TensorProto.BOOL),
    ]
    stopped = tuple(f"{name}_stopped" for name in here)
    stop = [helper.make_node("Identity", [name], [result]) for name, result in zip(here, stopped, strict=True)]
    ran = tuple(f"{name}_ran" for name in here)
    nodes.append(
        helper.make_node(
            "If",
            [f"any_{stage}"],
            ran,
            then_branch=_graph(f"after_{stage}", _from_stage(stage + 1, stages), dict(zip(deeper, types, strict=True))),
            else_branch=_graph(f"stop_{stage}", stop, dict(zip(stopped, types, strict=True))),
        )
    )
    nodes += [
        helper.make_node("Where", [f"unsure_{stage}", later, own], [result])
        for later, own, result in zip(ran, here, on, strict=True)
    ]
    return nodes


def _stage(stage: int, layers: int) -> list[onnx.NodeProto]:
    """`hidden_{stage}`, pictures of its last channels, and `features_{stage}`."""
    current = f"hidden_{stage - 1}" if stage else "image"
    nodes = []
    for layer in range(layers):
        step = FIRST_STRIDE if stage == layer == 0 else 1
        summed, result = f"sum_{stage}_{layer}", f"layer_{stage}_{layer}"
        filters = [f"weights_{stage}_{layer}", f"bias_{stage}_{layer}"]
        how = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [step] * 2}
        nodes += [
            helper.make_node("Conv", [current, *filters], [summed], **how),
            helper.make_node("Relu", [summed], [result]),
        ]
        current = result
    field = SIZE // FIRST_STRIDE // POOLED_FIELDS
    averaging = {"kernel_shape": [field] * 2, "strides": [field] * 2}
    return [
        *nodes,
        helper.make_node("Identity", [current], [f"hidden_{stage}"]),
        helper.make_node("AveragePool", [current], [f"averages_{stage}"], **averaging),
        helper.make_node("Flatten", [f"averages_{stage}"], [f"features_{stage}"]),
    ]


def _image() -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["rows", 1, SIZE, SIZE])]


def _graph(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    outputs: dict[str, int],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    constants: Constants | None = None,
) -> onnx.GraphProto:
    """A graph whose outputs, all [rows, ...], are known by their types."""
    infos = [helper.make_tensor_value_info(output, kind, ["rows", None]) for output, kind in outputs.items()]
    values = [numpy_helper.from_array(value, key) for key, value in (constants or {}).items()]
    return helper.make_graph(nodes, name, inputs, infos, values)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model
