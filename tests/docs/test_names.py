"""Names in the pages exist: commands, their flags and metrics; how-tos stay short."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from tidegate.cli import build_app
from tidegate.host import Plugins

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT)
    for path in (*ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("plugins/*/README.md"),
                 ROOT / "README.md", ROOT / "CHANGELOG.md")
    if "decisions" not in path.parts
)  # fmt: skip
METRICS = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
HOW_TO = sorted(path.relative_to(ROOT) for path in ROOT.glob("docs/how-to/*.md"))
MAX_HOW_TO_WORDS = 600
NOT_METRICS = re.compile(
    r"tidegate_(proxy|loadtest|symphony|ppipe|orloj|inss|paris_elsa|baselines|repo_generator|triton_models|kv|"
    r"batch|late|input_limits|policies|planners|controllers|observers|commands|my\w*|slo_ms|scheduling|on_deadline_miss)\b"
)


@cache
def _commands() -> dict[str, Any]:
    """The commands of `tidegate`, by name: typer brings a click of its own."""
    return dict(vars(typer.main.get_command(build_app(Plugins.installed())))["commands"])


def _code(text: str) -> Iterator[str]:
    """Indented lines, lines of fences, and spans of code."""
    joined = re.sub(r"\\\n\s*", " ", text)
    yield from re.findall(r"^    (.+)$", joined, re.MULTILINE)
    for block in re.findall(r"^```(?:sh|console)?\n(.*?)^```", joined, re.MULTILINE | re.DOTALL):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", joined)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_commands_and_flags_exist(page: Path) -> None:
    wrong = []
    for line in _code((ROOT / page).read_text(encoding="utf-8")):
        found = re.search(r"(?:^|[\s$&;(])tidegate ([a-z][a-z-]+)(?=[\s`)]|$)(.*)", line)
        if found is None:
            continue
        command = _commands().get(found[1])
        if command is None:
            wrong.append(f"tidegate {found[1]}")
            continue
        if hasattr(command, "commands"):
            continue
        known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
        given = re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", found[2].partition(" -- ")[0].partition(" && ")[0])
        wrong += [f"tidegate {found[1]} {flag}" for flag in given if flag not in known | {"--help"}]
    assert wrong == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parts[0] == "docs"], ids=str)
def test_metrics_exist(page: Path) -> None:
    names = set(re.findall(r"(?<![\w./-])tidegate_[a-z_]+[a-z](?![\w./(-])", (ROOT / page).read_text(encoding="utf-8")))
    known = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names if not NOT_METRICS.match(name)}
    assert [name for name in sorted(known) if f"`{name}`" not in METRICS and name + "_" not in METRICS] == []


@pytest.mark.parametrize("page", HOW_TO, ids=str)
def test_a_how_to_is_short(page: Path) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= MAX_HOW_TO_WORDS
