"""Load of ensembles under `scheduling: auto`: which of them are expanded into stages just now.

A bypassed request holds an instance of one of its steps, or waits for one. With more requests in flight than instances,
some wait: their steps may share batches, so to expand pays. With fewer, each stage would only cost a network hop.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp
from typing import Final

from tidegate_proxy.tritons.catalog import Catalog
from tidegate_proxy.tritons.model_graphs import ModelGraph

LOAD_WINDOW_NS: Final = 1_000_000_000
"""Time constant of the mean number of requests in flight."""
RETURN_FRACTION: Final = 0.5
"""Fraction of the instances below which ensembles bypass again, so that they do not alternate."""


class ExpansionRule:
    """Rule that decides by the mean number of requests in flight whether ensembles with common steps are expanded."""

    def __init__(self, instances: int) -> None:
        """Create the rule. `instances`: number of instances of all their steps together."""
        self._instances = instances
        self._mean = 0.0
        self._observed_ns: int | None = None
        self.is_expanded = False

    def observe(self, now_ns: int, in_flight: int) -> bool:
        """Return whether a request that arrives now is expanded; `in_flight`: requests that are there already."""
        weight = 0.0 if self._observed_ns is None else 1 - exp((self._observed_ns - now_ns) / LOAD_WINDOW_NS)
        self._observed_ns = now_ns
        self._mean += weight * (in_flight - self._mean)
        limit = self._instances * (RETURN_FRACTION if self.is_expanded else 1.0)
        self.is_expanded = self._mean >= limit
        return self.is_expanded


@dataclass(frozen=True, slots=True)
class GraphGroup:
    """Ensembles that have steps in common, directly or through others: they are expanded together."""

    graphs: tuple[str, ...]
    members: frozenset[str]
    rule: ExpansionRule

    def in_flight(self, passing: Iterable[Mapping[str, int]], waiting: Mapping[str, int]) -> int:
        """Return the number of requests at the models of the group.

        `passing`: bypassed requests by model at each Triton; `waiting`: scheduled requests by model.
        """
        names = self.members.union(self.graphs)
        return sum(of_triton.get(name, 0) for of_triton in passing for name in names) + sum(
            waiting.get(name, 0) for name in self.members
        )


def groups_of(catalog: Catalog) -> dict[str, GraphGroup]:
    """Return the group of each ensemble under `auto`, by name."""
    pending = {name: graph for name, graph in sorted(catalog.graphs.items()) if graph.mode == "auto"}
    groups: dict[str, GraphGroup] = {}
    while pending:
        first = next(iter(pending))
        group = _take_group(pending, first)
        members = frozenset[str]().union(*(graph.members for graph in group.values()))
        instances = sum(not members.isdisjoint(worker.hosts) for worker in catalog.workers)
        found = GraphGroup(tuple(group), members, ExpansionRule(max(1, instances)))
        groups.update(dict.fromkeys(group, found))
    return groups


def _take_group(pending: dict[str, ModelGraph], first: str) -> dict[str, ModelGraph]:
    """Remove and return the ensembles that are connected with the first one."""
    group = {first: pending.pop(first)}
    members = set(group[first].members)
    while connected := [name for name, graph in pending.items() if not members.isdisjoint(graph.members)]:
        for name in connected:
            group[name] = pending.pop(name)
            members |= group[name].members
    return group
