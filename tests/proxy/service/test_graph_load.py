"""Ensembles under `auto` are expanded while more requests are in flight than their steps have instances."""

import dataclasses

from tidegate.api import Model, Worker
from tidegate_proxy.messages.model_signature import ModelSignature
from tidegate_proxy.service.graph_load import ExpansionRule, groups_of
from tidegate_proxy.tritons.catalog import Catalog
from tidegate_proxy.tritons.model_graphs import GraphStage, ModelGraph

SECOND_NS = 1_000_000_000


def test_light_load_bypasses_and_contention_expands() -> None:
    rule, now_ns = ExpansionRule(3), 0

    def after(seconds: int, in_flight: int) -> bool:
        nonlocal now_ns
        for _ in range(10 * seconds):
            now_ns += SECOND_NS // 10
            rule.observe(now_ns, in_flight)
        return rule.is_expanded

    assert not rule.observe(0, 100), "what the first request meets says nothing of the mean"
    steps = [(5, 2, False), (1, 3, False), (3, 4, True), (20, 2, True), (5, 1, False), (1, 2, False)]
    assert [after(seconds, in_flight) for seconds, in_flight, _ in steps] == [expanded for _, _, expanded in steps]
    now_ns += 3600 * SECOND_NS
    assert not rule.observe(now_ns, 0)


def _graph(name: str, *members: str, mode: str = "auto") -> ModelGraph:
    stages = tuple(GraphStage(member, "", (), ((f"out {member}", member),)) for member in members)
    return ModelGraph(Model(name, 4), "1", ModelSignature(name, {}, frozenset(), 4), stages, (), mode)  # type: ignore[arg-type]


def test_ensembles_with_common_steps_are_expanded_together() -> None:
    graphs = [_graph("a", "x", "y"), _graph("b", "z"), _graph("c", "y", "w"), _graph("d", "x", mode="expanded")]
    catalog = Catalog(
        graphs={graph.model.name: graph for graph in graphs},
        workers=[Worker(number, str(number), (model,)) for number, model in enumerate("xyzwu")],
    )
    groups = groups_of(catalog)
    assert groups.keys() == {"a", "b", "c"}
    assert groups["a"] is groups["c"] is not groups["b"]
    passing = [{"a": 1, "c": 2, "d": 9, "y": 1}, {"a": 3}]
    assert groups["a"].in_flight(passing, {"x": 1, "z": 7}) == 8


def test_an_ensemble_within_another_one_counts_its_models_too() -> None:
    graphs = [
        dataclasses.replace(_graph("outer", "inner", "w"), nested=frozenset({"x", "y"})),
        _graph("inner", "x", "y"),
    ]
    catalog = Catalog(
        graphs={graph.model.name: graph for graph in graphs},
        workers=[Worker(number, str(number), (model,)) for number, model in enumerate("xyw")],
    )
    groups = groups_of(catalog)
    assert groups["outer"] is groups["inner"]
    assert groups["outer"].in_flight([{"inner": 2, "outer": 1}], {"x": 4}) == 7, "each request once"
