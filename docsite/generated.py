"""Pages that are generated with the site: commands, the options of plugins, the API, files."""

from typing import Final

import typer
from typer.cli import get_docs_for_click

from docsite.places import API, ROOT
from tidegate.cli import build_app
from tidegate.commands.plugins import PluginOffer, offers_of
from tidegate.host import Plugins

KINDS: Final = {"policy": "Policies", "planner": "Planners", "controller": "Controllers", "observer": "Observers"}
NO_SEARCH: Final = "---\nsearch: {exclude: true}\n---\n"
"""Frontend matter of pages that the search does not list."""
LANGUAGES: Final = {".py": "python", ".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}


def commands() -> str:
    """Every command with its arguments and options, from the commands themselves."""
    app = build_app(Plugins.installed())
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="tidegate")
    text = get_docs_for_click(obj=command, ctx=context, name="tidegate")
    return text.partition("\n**Commands**:")[2].partition("\n## ")[2].join(["## ", ""])


def options() -> str:
    """Every option of every plugin, by kind and name."""
    by_kind: dict[str, list[PluginOffer]] = {}
    for offer in offers_of(Plugins.installed()):
        by_kind.setdefault(offer.kind, []).append(offer)
    return "\n".join(
        line
        for kind, offers in by_kind.items()
        if kind in KINDS
        for line in [f"## {KINDS[kind]}", "", *map(_section, offers)]
    )


def _section(offer: PluginOffer) -> str:
    lines = [f"### {offer.name}", "", f"{offer.summary}. From `{offer.source}`.", ""]
    if offer.options:
        lines += ["| option | type | default | |", "|---|---|---|---|"]
        for each in offer.options:
            default = "must be given" if each.default is None else f"`{_cell(each.default)}`"
            lines.append(f"| `{each.name}` | {_cell(each.type)} | {default} | {_cell(each.description)} |")
    elif offer.kind == "planner":
        lines.append(f"`tidegate plan {offer.name} --help` lists the options of the command.")
    else:
        lines.append("It has no options.")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def api(package: str) -> str:
    """The page of one package of `tidegate`."""
    return f"# tidegate.{package}\n\n::: tidegate.{package}\n"


def api_pages() -> dict[str, str]:
    """All pages of the API, by their place in the site."""
    return {f"reference/api/{package}.md": api(package) for package in API}


def file_as_it_is(path: str) -> str:
    """A page that shows a file of the repository."""
    file = ROOT / path
    language = LANGUAGES.get(file.suffix, "text")
    return f"{NO_SEARCH}# `{path}`\n\n~~~~{language}\n{file.read_text(encoding='utf-8')}\n~~~~\n"
