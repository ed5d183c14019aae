"""Command `tidegate check`: validates a configuration."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate.schemas import FieldError
    from tidegate_proxy.app.doctor.examination import TritonReport
    from tidegate_proxy.app.doctor.facts import Finding, Severity


def check(
    config: Annotated[Path | None, typer.Argument(help="Configuration file (YAML).")] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Ask the Tritons that the configuration names, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the configuration with every default (YAML).")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of the configuration, and check nothing.")
    ] = False,
) -> None:
    """Check a configuration of `tidegate serve`.

    Prints every error and exits with status 1, or prints one line that says the file is valid. Serves nothing.
    Example:

    tidegate check tidegate.yaml --online
    """
    import json

    from tidegate_proxy.configuration.config import ServeConfig

    if schema:
        typer.echo(json.dumps(ServeConfig.model_json_schema(), indent=2))
        return
    if config is None:
        raise typer.BadParameter("which file? Or --schema", param_hint="CONFIG")

    import asyncio
    import dataclasses
    import os

    import yaml

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors come to us as exceptions; read when it is imported

    from tidegate.host import Plugins
    from tidegate_proxy.app.config_check import check_offline, unknown_policy, warnings
    from tidegate_proxy.app.doctor.examination import examine
    from tidegate_proxy.configuration.config_file import ConfigError, read_config

    resolved: dict[str, Any] | None = None
    notices: list[FieldError] = []
    tritons: Sequence[TritonReport] = ()
    plugins = Plugins.installed()
    try:
        read = read_config(config)
    except ConfigError as error:
        problems = [*error.problems, *unknown_policy(error.document, plugins)]
    else:
        resolved = read.model_dump(mode="json")
        problems = check_offline(read, plugins)
        notices = warnings(read)
        if online and not problems:
            examination = asyncio.run(examine(read, plugins))
            tritons = examination.tritons
            problems += _field_errors(examination.findings, "error")
            notices += _field_errors(examination.findings, "warning")
    if as_json:
        document = {
            "ok": not problems,
            "errors": [dataclasses.asdict(problem) for problem in problems],
            "warnings": [dataclasses.asdict(notice) for notice in notices],
            "config": resolved,
            "tritons": [dataclasses.asdict(triton) for triton in tritons],
        }
        typer.echo(json.dumps(document, indent=2))
    else:
        if print_config and not problems:
            typer.echo(yaml.safe_dump(resolved, sort_keys=False).rstrip())
        _show(tritons)
        _complain(config, notices, problems)
        if not problems and not print_config:
            typer.echo(_summary(config, resolved or {}, notices))
    if problems:
        raise typer.Exit(1)


def _field_errors(findings: "Sequence[Finding]", severity: "Severity") -> "list[FieldError]":
    """The findings of one severity as what is said of fields."""
    from tidegate.schemas import FieldError

    return [
        FieldError(finding.where, f"{finding.what}; {finding.remedy}" if finding.remedy else finding.what)
        for finding in findings
        if finding.severity == severity
    ]


def _summary(config: Path, resolved: dict[str, Any], notices: "Sequence[FieldError]") -> str:
    """One line: the file is valid, and what it configures."""
    found = len(resolved["tritons"])
    sources = len(resolved["discovery"])
    also = f" and {sources} source{'s' * (sources != 1)} of Tritons" if sources else ""
    parts = [f"{found} Triton{'s' * (found != 1)}{also}", f"policy {resolved['policy']['name']}"]
    if notices:
        parts.append(f"{len(notices)} warning{'s' * (len(notices) != 1)}")
    return f"{config}: valid ({', '.join(parts)})"


def _show(tritons: "Sequence[TritonReport]") -> None:
    """Print what the Tritons serve."""
    from rich.console import Console
    from rich.markup import escape

    from tidegate_proxy.tritons.batching_mode import lines_of

    console = Console(soft_wrap=True, highlight=False)
    for triton in tritons:
        if triton.answers:
            console.print(f"[bold]{escape(triton.address)}[/]")
            for line in lines_of(triton.models) or ["no model"]:
                console.print(f"  {escape(line)}")


def _complain(config: Path, notices: "Sequence[FieldError]", problems: "Sequence[FieldError]") -> None:
    from rich.console import Console
    from rich.markup import escape

    from tidegate.schemas import format_field_errors

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for notice in notices:
        console.print(f"[yellow]warning:[/] {escape(str(notice))}")
    if problems:
        console.print(f"[red]error:[/] {escape(format_field_errors(str(config), problems, most=len(problems)))}")
