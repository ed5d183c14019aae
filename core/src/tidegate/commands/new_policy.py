"""`tidegate new-policy`: writes the distribution of a new policy from a template."""

import shlex
from pathlib import Path
from typing import Annotated, NoReturn

import typer


def new_policy(
    name: Annotated[str, typer.Argument(help="Name of the policy, e.g. high-water.")],
    into: Annotated[
        Path | None, typer.Option("--into", help="Folder to write, which must not exist. [default: tidegate-NAME]")
    ] = None,
) -> None:
    """Write a new policy package from the template.

    Write a distribution to begin with: a small policy of this name with its entry point, README and tests.
    """
    from tidegate.commands.common import describe_error
    from tidegate.commands.scaffold import write_distribution
    from tidegate.host import Plugins

    if taken := Plugins.installed().policies.get(name):
        _refuse(f"a policy named {name!r} is installed already ({taken.summary}): choose another name")
    folder = into or Path(f"tidegate-{name}")
    try:
        written = write_distribution(name, folder)
    except FileExistsError:
        _refuse(f"{folder} exists already: name another folder with --into")
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
