"""Export of the actors as ONNX files: two linear layers with ReLU and a third one."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from tidegate_inss.learned.networks import NETWORK_SIZES, PLACING, SHARING
from tidegate_inss.learned.placement import GROUP_SIZE, PLACING_STATE
from tidegate_inss.learned.sharing import SHARING_ACTION, SHARING_STATE
from tidegate_inss.training.agents import Agents

OPSET, IR_VERSION = 17, 8
"""ONNX versions, old enough for every onnxruntime that the plugin accepts."""
ONNX_OPERATORS = {nn.ReLU: "Relu", nn.Tanh: "Tanh"}


def export(agents: Agents, folder: Path) -> None:
    """Write the networks of both stages into a folder. Raises OSError."""
    placing = network(agents.sac.served, PLACING_STATE, GROUP_SIZE)
    sharing = network(agents.td3.actor_target.mu, SHARING_STATE, SHARING_ACTION)
    for name, model in ((PLACING, placing), (SHARING, sharing)):
        onnx.checker.check_model(model, full_check=True)
        (folder / name).write_bytes(model.SerializeToString(deterministic=True))


def network(layers: nn.Sequential, inputs: int, outputs: int) -> onnx.ModelProto:
    """Return the ONNX graph from `states` to `actions`, for any number of rows.

    `layers`: the network; `inputs`, `outputs`: numbers of features.
    """
    nodes, constants, current = [], [], "states"
    for number, layer in enumerate(layers):
        following = "actions" if number == len(layers) - 1 else f"layer_{number}"
        if isinstance(layer, nn.Linear):
            for name, value in (("weight", layer.weight), ("bias", layer.bias)):
                constants.append(numpy_helper.from_array(value.detach().numpy(), f"{name}_{number}"))
            nodes.append(
                helper.make_node("Gemm", [current, f"weight_{number}", f"bias_{number}"], [following], transB=1)
            )
        else:
            nodes.append(helper.make_node(ONNX_OPERATORS[type(layer)], [current], [following]))
        current = following
    graph = helper.make_graph(
        nodes,
        "inss",
        [helper.make_tensor_value_info("states", TensorProto.FLOAT, ["rows", inputs])],
        [helper.make_tensor_value_info("actions", TensorProto.FLOAT, ["rows", outputs])],
        constants,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, producer_name="tidegate-inss", opset_imports=opsets, ir_version=IR_VERSION)
    helper.set_model_props(model, {name: str(size) for name, size in NETWORK_SIZES.items()})
    return model
