"""A graph of the configuration that does not fit the models is refused with the place and the remedy."""

import re
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tidegate_proxy.configuration.config import GraphConfig
from tidegate_proxy.tritons.backend import BackendError
from tidegate_proxy.tritons.model_graphs import inner_first, models_within, why_not_expandable
from tidegate_proxy.tritons.operator_graphs import ensemble_config_of, operator_graph_order

CUT_TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output [ { name: "L" data_type: TYPE_FP32 dims: [ -1, 3 ] }, { name: "N" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
READ_TENSORS = """
input [
  { name: "X" data_type: TYPE_FP32 dims: [ 2, 3 ] },
  { name: "O" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
]
output { name: "T" data_type: TYPE_STRING dims: [ 1 ] }
"""
CONFIGS = {
    name: text_format.Parse(f'name: "{name}" max_batch_size: {rows} {tensors}', model_config_pb2.ModelConfig())
    for name, rows, tensors in (("cut", 8, CUT_TENSORS), ("read", 4, READ_TENSORS))
}
CUT: dict[str, Any] = {"model": "cut", "input_map": {"X": "IMAGE"}, "output_map": {"L": "lines"}}
READ: dict[str, Any] = {"model": "read", "input_map": {"X": "lines"}, "output_map": {"T": "TEXT"}}
GRAPH: dict[str, Any] = {"inputs": ("IMAGE",), "outputs": ("TEXT",), "steps": (CUT, READ)}


def _config_of(**changes: Any) -> model_config_pb2.ModelConfig:
    return ensemble_config_of("ocr", GraphConfig.model_validate({**GRAPH, **changes}), CONFIGS)


def test_a_graph_is_written_as_the_config_of_an_ensemble() -> None:
    config = _config_of()
    assert (config.name, config.platform, config.max_batch_size) == ("ocr", "ensemble", 4)
    assert [(each.name, each.data_type, list(each.dims)) for each in (*config.input, *config.output)] == [
        ("IMAGE", model_config_pb2.TYPE_FP32, [-1, 3]),
        ("TEXT", model_config_pb2.TYPE_STRING, [1]),
    ]
    assert [(step.model_name, step.model_version) for step in config.ensemble_scheduling.step] == [
        ("cut", -1),
        ("read", -1),
    ]
    assert why_not_expandable(config, {"cut", "read"}, {}) == ""
    assert why_not_expandable(config, {"read"}, {"cut": "decoupled"}) == "step 0 (cut) is not scheduled: decoupled"
    assert _config_of(max_batch_size=2).max_batch_size == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": (CUT, {**READ, "model": "write"})}, "steps.1: no Triton has model 'write'; load it"),
        ({"steps": (CUT, {**READ, "output_map": {"U": "TEXT"}})}, "output_map: 'read' has no output 'U'; it has T"),
        ({"steps": (CUT, {**READ, "input_map": {"Y": "lines"}})}, "steps.1.input_map: 'read' has no input 'Y'"),
        ({"steps": (CUT, {**READ, "input_map": {"O": "IMAGE"}})}, "'read' needs input 'X'; map a tensor to it"),
        ({"steps": (CUT, {**READ, "input_map": {"X": "rows"}})}, "no step makes tensor 'rows'; make it with"),
        ({"outputs": ("BOXES",)}, "ocr.outputs: no step makes tensor 'BOXES'; name one of IMAGE, TEXT, lines"),
        ({"inputs": ("IMAGE", "MASK")}, "ocr.inputs: no step takes tensor 'MASK'; leave it out"),
        ({"steps": (CUT, CUT, READ)}, "tensor 'lines' already comes from step 0 (cut); give it another name"),
        (
            {"steps": ({**CUT, "output_map": {"N": "lines"}}, READ)},
            "input 'X' of 'read' is FP32 [2, 3], and tensor 'lines' from step 0 (cut) is INT32 [1]; map another",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BackendError, match=re.escape(words)):
        _config_of(**changes)


def test_a_cycle() -> None:
    step = {**CUT, "input_map": {"X": "a"}, "output_map": {"L": "b"}}
    back = {**CUT, "input_map": {"X": "b"}, "output_map": {"L": "a", "N": "IMAGE2"}}
    config = _config_of(steps=(CUT, READ, step, back))
    assert why_not_expandable(config, {"cut", "read"}, {}).startswith("its steps form a cycle (")


def test_an_ensemble_follows_those_that_are_its_steps() -> None:
    steps = {"outer": ("inner", "cut"), "inner": ("read", "innermost"), "innermost": ("read",)}
    assert inner_first(steps) == (["innermost", "inner", "outer"], {})
    assert models_within("outer", steps) == {"inner", "innermost", "cut", "read"}
    assert models_within("read", steps) == frozenset()
    circle = {"a": ("b",), "b": ("read", "c"), "c": ("a",), "d": ("a", "e"), "e": ("cut",), "f": ("f",)}
    order, cycles = inner_first(circle)
    assert order == ["e", "d"]
    assert cycles.keys() == {"a", "b", "c", "f"}
    assert cycles["a"] in ("a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c")
    assert cycles["f"] == "f -> f"
    assert models_within("a", circle) == {"a", "b", "c", "read"}


def test_a_step_may_be_an_ensemble() -> None:
    config = _config_of()
    assert why_not_expandable(config, {"read"}, {"cut": "an ensemble"}, {"cut"}) == ""
    assert operator_graph_order(
        {
            "outer": GraphConfig.model_validate({**GRAPH, "steps": ({**CUT, "model": "inner"}, READ)}),
            "inner": GraphConfig.model_validate(GRAPH),
        }
    ) == ["inner", "outer"]
