"""Extraction of a span as an ONNX model of its own."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import onnx
from onnx import TensorProto, helper

from tidegate_repo_generator.dataflow import functions_used
from tidegate_repo_generator.onnx_file import NO_NAMES
from tidegate_repo_generator.splitting.cutting import Cutter, NodeSpan, RebuiltShape
from tidegate_repo_generator.splitting.probing import Boundary
from tidegate_repo_generator.splitting.symbols import BATCH_SYMBOL

FP16_SUFFIX: Final = "_fp16"
"""Suffix of a tensor's name where it crosses a cut as float16."""
MOVED_SUFFIX: Final = "_batch_first"
"""Suffix of a tensor's name where it crosses a cut transposed, with the batch first."""


@dataclass
class Extraction:
    """Builder of ONNX models of spans, otherwise equal to the original."""

    cutter: Cutter
    fp16: bool
    """Whether to cast float32 to float16 at the end of a span, and back at the start of the next."""
    _names: set[str] = field(init=False)
    _batch: str = field(init=False)
    """Name of the batch dimension: the inputs' own if they agree, because exporters invent a new one per output."""

    def __post_init__(self) -> None:
        """Gather the names in use."""
        self._names = {value.name for value in self.cutter.flow.proto.graph.input} | set(self.cutter.flow.weights)
        self._names.update(name for node in self.cutter.flow.nodes for name in node.output)
        inputs = [value for value in self.cutter.flow.proto.graph.input if value.name in self.cutter.flow.inputs]
        names = {str(value.type.tensor_type.shape.dim[0].dim_param) for value in inputs}
        self._batch = names.pop() if len(names) == 1 and names.isdisjoint(NO_NAMES) else BATCH_SYMBOL

    def shape(self, value: str) -> list[int | str]:
        """Return the shape of a value where it crosses a cut; "" for a dynamic dimension without a name."""
        sizes = ["" if size is None else size for size in self.cutter.probe.boundary(value).shape]
        return [self._batch, *sizes[1:]]

    def sent_as(self, value: str) -> tuple[str, int]:
        """Return the name and element type of a value where it crosses a cut."""
        boundary = self.cutter.probe.boundary(value)
        name = value + MOVED_SUFFIX if boundary.axis else value
        is_cast = self.fp16 and boundary.data_type == TensorProto.FLOAT and value not in self.cutter.flow.inputs
        if is_cast:
            name += FP16_SUFFIX
        data_type = TensorProto.FLOAT16 if is_cast else boundary.data_type
        return (name if name == value else self._unique(name)), data_type

    def model(self, span: NodeSpan, outputs: Iterable[str], crossing: Iterable[str], name: str) -> Any:  # noqa: ANN401
        """Build the ModelProto of a span. `outputs`: names of its outputs; `crossing`: those that cross the next cut.

        The external weights of the original stay in place. `name`: of the graph.
        """
        flow = self.cutter.flow
        original = flow.proto
        model = onnx.ModelProto()
        for field_name in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
            setattr(model, field_name, getattr(original, field_name))
        model.opset_import.extend(original.opset_import)
        model.metadata_props.extend(original.metadata_props)
        graph = model.graph
        graph.name, graph.doc_string = name, original.graph.doc_string
        self._take_inputs(graph, span)
        for value, rebuilt in span.rebuilt.items():
            graph.node.extend(_rebuild_nodes(value, rebuilt, graph))
        self._take_nodes(graph, span)
        self._give_outputs(graph, outputs, set(crossing))
        functions = {(entry.domain, entry.name): entry for entry in original.functions}
        used = functions_used(graph.node, functions)
        model.functions.extend(entry for key, entry in functions.items() if key in used)
        self._take_weights(graph, span)
        inside = {output for node in graph.node for output in node.output} - {entry.name for entry in graph.output}
        graph.value_info.extend(entry for entry in original.graph.value_info if entry.name in inside)
        graph.quantization_annotation.extend(
            entry
            for entry in original.graph.quantization_annotation
            if entry.tensor_name in inside or entry.tensor_name in span.weights
        )
        if not any(entry.domain in {"", "ai.onnx"} for entry in model.opset_import) and any(
            node.domain == "" for node in graph.node
        ):
            model.opset_import.append(helper.make_opsetid("", 13))
        return model

    def _take_inputs(self, graph: Any, span: NodeSpan) -> None:  # noqa: ANN401
        declared = {value.name: value for value in self.cutter.flow.proto.graph.input}
        for value in sorted(span.inputs, key=self.cutter.order):
            name, data_type = self.sent_as(value)
            if value in self.cutter.flow.inputs:
                graph.input.append(self._batched(declared[value]))
                continue
            boundary = self.cutter.probe.boundary(value)
            graph.input.append(helper.make_tensor_value_info(name, data_type, self.shape(value)))
            steps: list[tuple[str, dict[str, Any]]] = []
            if data_type != boundary.data_type:
                steps.append(("Cast", {"to": boundary.data_type}))
            if boundary.axis:
                steps.append(("Transpose", {"perm": [*range(1, boundary.axis + 1), 0, *_behind(boundary)]}))
            graph.node.extend(_in_a_row(name, steps, value))

    def _take_nodes(self, graph: Any, span: NodeSpan) -> None:  # noqa: ANN401
        flow = self.cutter.flow
        own = set(flow.data_nodes[span.start : span.stop])
        for index in sorted(span.nodes):
            graph.node.append(flow.nodes[index])
            if index not in own:
                outputs = graph.node[-1].output
                for place, name in enumerate(outputs):
                    if name in span.inputs or name in span.rebuilt:
                        outputs[place] = self._unique(name + "_unused")

    def _give_outputs(self, graph: Any, outputs: Iterable[str], crossing: set[str]) -> None:  # noqa: ANN401
        declared = {value.name: value for value in self.cutter.flow.proto.graph.output}
        for value in outputs:
            if value in declared:
                graph.output.append(self._batched(declared[value]))
            if value not in crossing:
                continue
            name, data_type = self.sent_as(value)
            boundary = self.cutter.probe.boundary(value)
            steps: list[tuple[str, dict[str, Any]]] = []
            if boundary.axis:
                steps.append(("Transpose", {"perm": [boundary.axis, *range(boundary.axis), *_behind(boundary)]}))
            if data_type != boundary.data_type:
                steps.append(("Cast", {"to": data_type}))
            graph.node.extend(_in_a_row(value, steps, name))
            if name != value or value not in declared:
                graph.output.append(helper.make_tensor_value_info(name, data_type, self.shape(value)))

    def _take_weights(self, graph: Any, span: NodeSpan) -> None:  # noqa: ANN401
        weights = self.cutter.flow.weights
        # Old files list their weights among the inputs, and before IR version 4 they must.
        graph.input.extend(value for value in self.cutter.flow.proto.graph.input if value.name in span.weights)
        for name in sorted(span.weights):
            into = graph.initializer if isinstance(weights[name], TensorProto) else graph.sparse_initializer
            into.append(weights[name])

    def _batched(self, declared: Any) -> Any:  # noqa: ANN401
        value = onnx.ValueInfoProto()
        value.CopyFrom(declared)
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = self._batch
        return value

    def _unique(self, name: str) -> str:
        while name in self._names:
            name += "_"
        return name


def _behind(boundary: Boundary) -> range:
    """The dimensions behind the batch's."""
    return range(boundary.axis + 1, len(boundary.shape))


def _in_a_row(source: str, steps: list[tuple[str, dict[str, Any]]], result: str) -> list[Any]:
    """Nodes of one input, one after the other."""
    nodes = []
    for number, (operator, attributes) in enumerate(steps, start=1):
        output = result if number == len(steps) else f"{source}/{operator}"
        nodes.append(helper.make_node(operator, [source], [output], **attributes))
        source = output
    return nodes


def _rebuild_nodes(name: str, rebuilt: RebuiltShape, graph: Any) -> list[Any]:  # noqa: ANN401
    """Concat(sizes of tensors and constants), cast and made a scalar where that is what the value was."""
    value, nodes, parts = rebuilt.value, [], []

    def constant(label: str, numbers: list[int]) -> str:
        graph.initializer.append(helper.make_tensor(label, TensorProto.INT64, [len(numbers)], numbers))
        return label

    for place, element in enumerate(value.elements):
        label = f"{name}/rebuilt_{place}"
        parts.append(label)
        if isinstance(element, int):
            constant(label, [element])
            continue
        tensor, axis = rebuilt.sources[str(element)]
        nodes.append(helper.make_node("Shape", [tensor], [label + "_shape"]))
        nodes.append(helper.make_node("Gather", [label + "_shape", constant(label + "_axis", [axis])], [label], axis=0))
    steps = [("Concat", {"axis": 0})] if parts else []
    if not parts:
        parts = [constant(f"{name}/rebuilt_empty", [])]
    if value.scalar:
        steps.append(("Reshape", {}))
    steps.append(("Cast", {"to": value.data_type}))
    for number, (operator, attributes) in enumerate(steps):
        result = name if number == len(steps) - 1 else f"{name}/rebuilt_{operator}"
        inputs = [*parts, constant(f"{name}/rebuilt_scalar", [])] if operator == "Reshape" else parts
        nodes.append(helper.make_node(operator, inputs, [result], **attributes))
        parts = [result]
    return nodes
