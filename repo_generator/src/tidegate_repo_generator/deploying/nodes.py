"""Node names of a layout: replaces names invented by planners with those of real machines."""

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
    """Return the layout with nodes renamed by `names` (new by old name); "" names the only node.

    Raises GenerateError for an unknown node, and if two nodes would get one name.
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
    """Return whether Kubernetes accepts a node of that name: lowercase letters, digits, '-' and '.'."""
    return len(name) <= _LONGEST_LABEL and _KUBERNETES_NAME.fullmatch(name) is not None
