"""Command `tidegate doctor`: reports the scheduling of every model, problems and possible improvements."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.flags import TlsCaFlag, TlsCertFlag, TlsFlag, TlsKeyFlag, TlsServerNameFlag, tls_of
from tidegate_proxy.commands.triton_flags import (
    RepositoryFlags,
    TritonFlags,
    check_is_file,
    repositories_of,
    tritons_of,
)

if TYPE_CHECKING:
    from tidegate_proxy.app.doctor.facts import DoctorFacts, Finding
    from tidegate_proxy.configuration.config import ServeConfig


def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(help="Configuration of `tidegate serve`.", show_default=False, callback=check_is_file),
    ] = None,
    triton: TritonFlags = None,
    tls: TlsFlag = False,
    tls_ca: TlsCaFlag = None,
    tls_cert: TlsCertFlag = None,
    tls_key: TlsKeyFlag = None,
    tls_server_name: TlsServerNameFlag = None,
    profiles: Annotated[
        Path | None, typer.Option(help="Profile file written by `tidegate profile`, in place of the configuration's.")
    ] = None,
    repository: RepositoryFlags = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Diagnose Tritons, their models and the configuration.

    Queries the Tritons, and reports for every model whether and why it is scheduled, with problems and remedies.

    Errors stop Tidegate from serving, or make requests fail: the exit status is then 1. Warnings cost something, advice
    could gain something. The command serves nothing and changes nothing. Examples:

    tidegate doctor tidegate.yaml

    tidegate doctor --triton localhost:8001 --json
    """
    import json
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors come to us as exceptions; read when it is imported

    from rich.console import Console
    from rich.markup import escape

    from tidegate_proxy.app.doctor.diagnosis import restarted_tritons
    from tidegate_proxy.app.doctor.facts import Finding, grouped
    from tidegate_proxy.app.doctor.report import document_of, print_findings, print_models, print_settings, verdict
    from tidegate_proxy.configuration.config_file import ConfigError, read_config

    if config is None and not triton:
        raise typer.BadParameter("which file? Or give --triton HOST:PORT", param_hint="CONFIG")
    facts: DoctorFacts | None = None
    repositories = repositories_of(repository)
    try:
        section = tls_of(tls, tls_ca, tls_cert, tls_key, tls_server_name)
        settings = read_config(config, {"tritons": tritons_of(triton, section), "profiles": profiles})
    except ConfigError as error:
        if not as_json:
            Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/] {escape(str(error))}")
            raise typer.Exit(1) from error
        findings = [Finding("error", "configuration", problem.where, problem.what, "") for problem in error.problems]
    else:
        facts, findings = _examined(settings, repositories)
        if config is not None:
            findings = grouped([*findings, *restarted_tritons(config.parent)])
    if as_json:
        typer.echo(json.dumps(document_of(facts, findings), indent=2))
    else:
        console = Console(soft_wrap=True, highlight=False)
        if facts is not None and facts.services:
            print_models(console, facts)
            console.print()
        print_findings(console, findings)
        if facts is not None:
            print_settings(console, facts.services.values(), str(config or "a configuration"))
        console.print(f"[bold]{escape(str(config or 'command line'))}: {verdict(findings)}[/]")
    grave = ("error", "warning") if strict else ("error",)
    if any(finding.severity in grave for finding in findings):
        raise typer.Exit(1)


def _examined(settings: "ServeConfig", repositories: "list[Path]") -> "tuple[DoctorFacts | None, list[Finding]]":
    """Return the findings without Tritons and, if there is no error, those of the Tritons."""
    import asyncio

    from tidegate.host import Plugins
    from tidegate_proxy.app.config_check import check_offline, warnings
    from tidegate_proxy.app.doctor.examination import examine
    from tidegate_proxy.app.doctor.facts import Finding, grouped

    plugins = Plugins.installed()
    notices = [Finding("warning", "configuration", each.where, each.what, "") for each in warnings(settings)]
    problems = [
        Finding("error", "configuration", each.where, each.what, "") for each in check_offline(settings, plugins)
    ]
    if problems:
        return None, [*problems, *notices]
    examination = asyncio.run(examine(settings, plugins, repositories))
    return examination.facts, grouped([*examination.findings, *notices])
