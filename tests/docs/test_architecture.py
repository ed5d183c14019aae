"""The way in and the map are true: what they name is there."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
LINKED = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NAMED = set(re.findall(r"`((?:core|proxy|plugins|loadtest|repo_generator|triton_models)/[\w./]+)`", ARCHITECTURE))


def test_the_layers_are_those_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["tidegate_proxy"])
    drawn = ARCHITECTURE.split("## The proxy's layers")[1].split("```")[1]
    assert re.findall(r"^(\w+) ", drawn, re.MULTILINE) == layers


def test_what_the_map_names_is_there() -> None:
    assert [path for path in sorted(NAMED) if not (ROOT / path).exists()] == []


def test_links_lead_somewhere() -> None:
    links = {
        (document.relative_to(ROOT), link)
        for document in LINKED
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    }
    assert [each for each in links if "://" not in each[1] and not (ROOT / each[0].parent / each[1]).exists()] == []


@pytest.mark.slow
def test_arrows_are_imports_and_all_imports_go_along_arrows() -> None:
    diagram = ARCHITECTURE.split("```mermaid")[1].split("```")[0]
    node_of = {
        package: node
        for node, label in re.findall(r'(\w+)\["([^"<]+)', diagram)
        for package in re.findall(r"tidegate[\w.]*", label)
    }
    arrows = {
        (start, end.strip()) for start, ends in re.findall(r"(\w+) --> ([\w& ]+)", diagram) for end in ends.split("&")
    }
    imported = {
        (node_of[_room(module)], node_of[_room(other)])
        for module, other in _imports()
        if _room(module) in node_of and _room(other) in node_of and node_of[_room(module)] != node_of[_room(other)]
    }
    assert len(set(node_of.values())) == 17
    assert arrows <= imported
    reached = set(arrows)
    while more := {(a, d) for a, b in reached for c, d in arrows if b == c} - reached:
        reached |= more
    assert imported <= reached


def _imports() -> Iterator[tuple[str, str]]:
    """Every import of one of our modules, anywhere in a module of ours."""
    files = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for source in [*ROOT.glob("*/src"), *ROOT.glob("plugins/*/src")]
        for path in source.rglob("*.py")
    }
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from ((module, name.name) for name in node.names if name.name in files)
            elif isinstance(node, ast.ImportFrom) and node.module in files:
                inner = (f"{node.module}.{name.name}" for name in node.names)
                yield from ((module, each if each in files else node.module) for each in inner)


def _room(module: str) -> str:
    steps = module.split(".")
    return ".".join(steps[:2]) if steps[0] == "tidegate" else steps[0]
