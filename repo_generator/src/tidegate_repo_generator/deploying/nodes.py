"""What the nodes of a layout are really called: planners invent names, and containers are told where to run by them."""

import re
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from tidegate.schemas import Layout
from tidegate_repo_generator.model import GenerateError

_PART: Final = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_KUBERNETES_NAME: Final = re.compile(rf"{_PART}(\.{_PART})*")
_LONGEST_LABEL: Final = 63


def with_nodes(layout: Layout, names: Mapping[str, str]) -> Layout:
    """The layout with other names for its nodes: `names`, by those that it has; "" where it has one node.

    Raises GenerateError for a node that there is not, and for two that would be one.
    """
    nodes = list(dict.fromkeys(worker.device.node for worker in layout.workers))
    renamed = dict(names)
    if "" in renamed:
        if len(nodes) > 1:
            raise GenerateError(f"--node {renamed['']}: say of which it is the name; the layout has {', '.join(nodes)}")
        renamed[nodes[0]] = renamed.pop("")
    if unknown := sorted(set(renamed) - set(nodes)):
        raise GenerateError(
            f"--node {unknown[0]}={renamed[unknown[0]]}: the layout has no such node; it has {', '.join(nodes)}"
        )
    called: dict[str, str] = {}
    for node in nodes:
        name = renamed.get(node, node)
        if name in called:
            raise GenerateError(f"--node: {called[name]!r} and {node!r} would both be {name!r}: give each its own name")
        called[name] = node
    if not renamed:
        return layout
    workers = tuple(
        worker.model_copy(
            update={"device": replace(worker.device, node=renamed.get(worker.device.node, worker.device.node))}
        )
        for worker in layout.workers
    )
    return layout.model_copy(update={"workers": workers})


def can_name_kubernetes_node(name: str) -> bool:
    """Whether a node of Kubernetes may be called so: of small letters, digits, '-' and '.'."""
    return len(name) <= _LONGEST_LABEL and _KUBERNETES_NAME.fullmatch(name) is not None
