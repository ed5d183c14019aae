"""Which tests stay together when several processes share them out (`pytest -n`): those that share a Triton."""

from collections.abc import Sequence
from typing import Any

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Say which group it belongs to: xdist looks as soon as all are collected."""
    item.add_marker(pytest.mark.xdist_group(_group(item)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what waits for servers; what only computes fills the gaps."""
    items.sort(key=lambda item: _fixture(item, "start_triton") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """See that they are kept together: with pytest 9.2 xdist 3.8 silently does not (pytest-dev/pytest-xdist#1386)."""
    if node.config.option.dist == "loadgroup" and not all("@" in name for name in ids):
        pytest.exit("this pytest-xdist cannot keep the tests of a group together with this pytest", returncode=4)


def _group(item: pytest.Item) -> str:
    """The tests of a file, or those that have the Triton of a folder, and the policy before it, in common.

    Each by itself where the file says that they have nothing in common (`pytest.mark.apart`).
    """
    if item.get_closest_marker("apart"):
        return item.nodeid
    triton = _fixture(item, "triton")
    if triton is None or _fixture(item, "start_triton") is None:
        return item.path.stem
    parameters: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
    return f"triton of {triton}{parameters.get('policy', '')}"


def _fixture(item: pytest.Item, name: str) -> str | None:
    """The file or folder whose fixture of this name a test uses; None where it uses none."""
    if name not in getattr(item, "fixturenames", ()):
        return None
    definitions: dict[str, list[pytest.FixtureDef[object]]] = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    return str(definitions[name][-1].baseid) if name in definitions else None
