"""Graph examination: applies `rules` along the analysis of `axes`, from inputs to outputs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tidegate_repo_generator.dataflow import Dataflow, Nature
from tidegate_repo_generator.onnx_sessions import Arrays, RunError
from tidegate_repo_generator.rows.axes import VALUE_SLOTS, MixesError, RowAnalysis, RowAxis, UnknownError
from tidegate_repo_generator.rows.observation import at_other_rows, flattened, not_tensors, observe, shape_sources
from tidegate_repo_generator.rows.rules import rule_of


@dataclass(frozen=True)
class Finding:
    """Result of the examination: whether the rows of a graph are independent."""

    verdict: Literal["independent", "mixes", "unknown"]
    reason: str = ""
    """Clause that names the node; "" for independent rows."""


def examine_graph(proto: Any, folder: Path, feeds: list[Arrays]) -> Finding:  # noqa: ANN401
    """Follow the batch dimension through a model.

    `proto`: the model. `folder`: folder of its external weights. `feeds`: inputs with `ANALYZED_ROWS` rows. Raises
    RunError.
    """
    flow = Dataflow(flattened(proto, folder, feeds))
    needed = _needed(flow)
    data = [index for index in flow.data_nodes if index in needed]
    sequences = not_tensors(flow)
    shapes = [name for index in data for name in flow.nodes[index].output if name]
    shapes = [name for name in (*flow.inputs, *shapes) if name not in sequences]
    wanted: dict[str, None] = {}
    sizes: dict[str, None] = {}
    for index in data:
        node = flow.nodes[index]
        for slot, name in enumerate(node.input):
            nature = flow.nature_of(name) if name else Nature.DATA
            if nature is Nature.DATA or name in sequences:
                continue
            if nature is Nature.SHAPE or slot in VALUE_SLOTS.get(node.op_type, ()):
                wanted[name] = None
            elif name in flow.producer:
                sizes[name] = None
    for name in flow.outputs:
        if flow.nature_of(name) is Nature.SHAPE:
            wanted[name] = None
    wanted |= dict.fromkeys(shape_sources(flow))
    seen = observe(flow, folder, feeds, [*shapes, *sizes], wanted)
    doubt = ""
    try:
        others = at_other_rows(flow, folder, seen, wanted)
    except RunError as error:
        others, doubt = [], str(error)
    analysis = RowAnalysis(flow, seen, others)
    for index in data:
        node = flow.nodes[index]
        try:
            analysis.follow(index, rule_of(node))
        except MixesError as mixes:
            return Finding("mixes", f"node '{flow.label(index)}' ({node.op_type}) mixes rows: {mixes}")
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            why = f"its form is not one that is known ({error})"
            return Finding(
                "unknown", f"what node '{flow.label(index)}' ({node.op_type}) does to rows is unknown: {why}"
            )
        except UnknownError as unknown:
            return Finding(
                "unknown", f"what node '{flow.label(index)}' ({node.op_type}) does to rows is unknown: {unknown}"
            )
    finding = _outputs(analysis)
    return Finding("unknown", doubt) if doubt and finding.verdict == "independent" else finding


def _outputs(analysis: RowAnalysis) -> Finding:
    for name in analysis.flow.outputs:
        try:
            state = analysis.rows_of(name)
        except UnknownError as unknown:
            return Finding("unknown", f"where output '{name}' has its rows is unknown: {unknown}")
        if state is None:
            return Finding("mixes", f"output '{name}' has no rows of its own")
        if state != RowAxis(0):
            return Finding("mixes", f"output '{name}' has no dimension of its own for the rows in front")
    return Finding("independent")


def _needed(flow: Dataflow) -> set[int]:
    """The nodes of which an output of the model depends."""
    waiting = [flow.producer[name] for name in flow.outputs if name in flow.producer]
    needed: set[int] = set()
    while waiting:
        index = waiting.pop()
        if index not in needed:
            needed.add(index)
            waiting.extend(flow.producer[name] for name in flow.reads[index] if name in flow.producer)
    return needed
