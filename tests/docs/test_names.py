"""Names in the pages exist: commands, their flags and metrics; how-tos stay short."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel

from checks.vocabulary import FORMER_NAMES
from tests.command_line import APP
from tidegate_proxy.configuration.config import ServeConfig

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
NOT_SECTIONS = {"controller", "policy"}
"""Also sections of a scenario, with other fields, or names of modules."""
NOT_METRICS = re.compile(
    r"tidegate_(proxy|loadtest|symphony|ppipe|orloj|inss|paris_elsa|baselines|repo_generator|triton_models|kv|"
    r"batch|late|input_limits|policies|planners|controllers|observers|commands|my\w*|slo_ms|scheduling|on_deadline_miss)\b"
)


def _text(page: Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8").partition(FORMER_NAMES)[0]


@cache
def _commands() -> dict[str, Any]:
    """The commands of `tidegate`, by name: typer brings a click of its own."""
    return dict(vars(typer.main.get_command(APP))["commands"])


def _code(text: str) -> Iterator[str]:
    """Indented lines, lines of fences, and spans of code."""
    joined = re.sub(r"\\\n\s*", " ", text)
    yield from re.findall(r"^    (.+)$", joined, re.MULTILINE)
    for block in re.findall(r"^```(?:sh|console)?\n(.*?)^```", joined, re.MULTILINE | re.DOTALL):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", joined)


def test_commands_and_flags_exist() -> None:
    assert {page: wrong for page in PAGES if (wrong := list(_wrong_commands(_text(page))))} == {}


def _wrong_commands(text: str) -> Iterator[str]:
    for line in _code(text):
        found = re.search(r"(?:^|[\s$&;(])tidegate ([a-z][a-z-]+)(?=[\s`)]|$)(.*)", line)
        if found is None:
            continue
        command = _commands().get(found[1])
        if command is None:
            yield f"tidegate {found[1]}"
            continue
        if hasattr(command, "commands"):
            continue
        known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
        given = re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", found[2].partition(" -- ")[0].partition(" && ")[0])
        yield from (f"tidegate {found[1]} {flag}" for flag in given if flag not in known | {"--help"})


def test_metrics_exist() -> None:
    for page in PAGES:
        if page.parts[0] == "docs":
            names = set(re.findall(r"(?<![\w./-])tidegate_[a-z_]+[a-z](?![\w./(-])", _text(page)))
            known = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names if not NOT_METRICS.match(name)}
            assert [name for name in known if f"`{name}`" not in METRICS and name + "_" not in METRICS] == [], page


def test_a_how_to_is_short() -> None:
    words = {page: len(_text(page).split()) for page in HOW_TO}
    assert {page: count for page, count in words.items() if count > MAX_HOW_TO_WORDS} == {}


def _fields(annotation: object) -> dict[str, object]:
    """The fields of the models in an annotation: of `Model | None`, `list[Model]`, `dict[str, Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {name: field.annotation for name, field in annotation.model_fields.items()}
    return {name: each for part in get_args(annotation) for name, each in _fields(part).items()}


def _is_option(path: str) -> bool:
    fields: dict[str, object] = _fields(ServeConfig)
    for step in path.split("."):
        if step in {"N", "NAME", "*"} or step.isdigit():
            continue
        if step not in fields:
            return False
        fields = _fields(fields[step])
        if not fields:  # a value, or options of a plugin, whose names are its own
            return True
    return True


def test_options_exist() -> None:
    """Options of the configuration that a page writes with their sections, as `limits.max_connections`."""
    sections = set(_fields(ServeConfig)) - NOT_SECTIONS
    for page in PAGES:
        paths = set(re.findall(r"`([a-z_]+(?:\.(?:[a-z_]+|N|\*))+)(?:: [^`]*)?`", _text(page)))
        assert [path for path in paths if path.partition(".")[0] in sections and not _is_option(path)] == [], page


def test_modules_that_are_run_exist() -> None:
    for page in PAGES:
        modules = re.findall(r"python -m ((?:bench|demo|release|docsite|checks)[\w.]*)", _text(page))
        paths = [ROOT / module.replace(".", "/") for module in set(modules)]
        assert [path for path in paths if not (path.is_dir() or path.with_suffix(".py").exists())] == [], page
