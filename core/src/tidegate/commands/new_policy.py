"""`tidegate new-policy`: writes the distribution of a new policy from a template."""

import re
import shlex
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePath
from typing import Annotated, Final, NoReturn

import typer


def new_policy(
    name: Annotated[str, typer.Argument(help="Name of the policy, e.g. high-water.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder to write, which must not exist. [default: tidegate-NAME]"),
    ] = None,
) -> None:
    """Write a new policy package from the template.

    Write a distribution to begin with: a small policy of this name with its entry point, README and tests.
    """
    from tidegate.commands.common import describe_error
    from tidegate.host import Plugins

    if taken := Plugins.installed().policies.get(name):
        _refuse(f"a policy named {name!r} is installed already ({taken.summary}): choose another name")
    folder = output or Path(f"tidegate-{name}")
    try:
        written = write_distribution(name, folder)
    except FileExistsError:
        _refuse(f"{folder} exists already: name another folder with --output")
    except (ValueError, OSError) as error:
        _refuse(describe_error(error))
    here = shlex.quote(str(folder))
    policy = next(path for path in written if path.name == "policy.py")
    typer.echo(f"Wrote {folder}: the policy is in {folder / policy}. Next:\n")
    typer.echo(f"  pip install -e {here}'[test]'\n  pytest {here}\n  tidegate plugins {name}")
    typer.echo(f"  tidegate simulate SCENARIO.yaml --policy {name}")
    typer.echo(f"  tidegate check-policy {name}")


def _refuse(why: str) -> NoReturn:
    typer.echo(f"error: {why}", err=True)
    raise typer.Exit(1)


POLICY_NAME_PATTERN: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
"""Pattern of policy names: the name becomes that of a distribution, a module and a class."""
HOW_TO_COPY: Final = re.compile(r"^## Make it yours.*?(?=^## )", re.MULTILINE | re.DOTALL)
"""The part of the template's README that is about the template."""


def write_distribution(name: str, folder: Path) -> list[Path]:
    """Write the policy template under a name into a folder; return the written files, relative to the folder.

    `name`: lower-case letters and digits, words separated by `-`. Raises ValueError if the name has another form,
    FileExistsError if the folder exists, and OSError if it cannot be written.
    """
    if not POLICY_NAME_PATTERN.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name for a policy: small letters and digits, with - between words, as in high-water"
        )
    texts = {_renamed_path(path, name): _renamed(text, name) for path, text in _template()}
    folder.mkdir(parents=True)
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(HOW_TO_COPY.sub("", text) if path.name == "README.md" else text, encoding="utf-8")
    return sorted(texts)


def _template() -> Iterator[tuple[PurePath, str]]:
    def walk(folder: Traversable, at: PurePath) -> Iterator[tuple[PurePath, str]]:
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            if entry.is_dir():
                yield from walk(entry, at / entry.name)
            else:
                yield at / entry.name, entry.read_text(encoding="utf-8")

    return walk(files("tidegate") / "template", PurePath())


def _renamed_path(path: PurePath, name: str) -> Path:
    return Path(*(_renamed(part, name) for part in path.parts))


def _renamed(text: str, name: str) -> str:
    words = name.split("-")
    text = text.replace("[Tidegate](../../README.md)", "Tidegate")
    text = text.replace("tidegate_template", f"tidegate_{'_'.join(words)}")
    return text.replace("Template", "".join(word.capitalize() for word in words)).replace("template", name)
