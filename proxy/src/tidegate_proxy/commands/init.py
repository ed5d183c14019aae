"""Command `tidegate init`: writes a first configuration from what Tritons serve."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.flags import (
    TlsCaFlag,
    TlsCertFlag,
    TlsFlag,
    TlsKeyFlag,
    TlsServerNameFlag,
    check_output_file,
    tls_of,
)
from tidegate_proxy.commands.triton_flags import RepositoryFlags, TritonFlags, flag_of, repositories_of, tritons_of

if TYPE_CHECKING:
    from tidegate_proxy.app.doctor.examination import Examination


def init(
    triton: TritonFlags = None,
    tls: TlsFlag = False,
    tls_ca: TlsCaFlag = None,
    tls_cert: TlsCertFlag = None,
    tls_key: TlsKeyFlag = None,
    tls_server_name: TlsServerNameFlag = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the configuration to this file (- prints it).",
            callback=check_output_file,
        ),
    ] = Path("tidegate.yaml"),
    repository: RepositoryFlags = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a commented configuration of `tidegate serve`.

    Queries the Tritons for their models. The configuration can be served unmodified: no request is rejected that Triton
    would answer, except for models with an SLO in config.pbtxt. A comment on each model says whether and why its
    requests are scheduled. Examples:

    tidegate init --triton localhost:8001 && tidegate serve tidegate.yaml

    tidegate init --triton gpu-1:8001 --tls-ca ca.pem --tls-cert me.pem --tls-key me.key
    """
    import asyncio
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors come to us as exceptions; read when it is imported

    from rich.console import Console
    from rich.markup import escape

    from tidegate.host import Plugins
    from tidegate_proxy.app.doctor.examination import examine
    from tidegate_proxy.commands.initial_config import initial_configuration
    from tidegate_proxy.configuration.config_file import ConfigError, read_config
    from tidegate_proxy.transport.tls import TlsError, channel_context

    errors = Console(stderr=True, soft_wrap=True, highlight=False)

    def fail(words: str) -> typer.Exit:
        errors.print(f"[red]error:[/] {escape(words)}")
        return typer.Exit(1)

    if not triton:
        raise typer.BadParameter("which Triton? Its gRPC address, e.g. localhost:8001", param_hint="--triton")
    to_file = output != Path("-")
    if to_file and output.exists() and not force:
        raise fail(f"{output} is there already: replace it with --force, or write another with -o FILE")
    try:
        section = tls_of(tls, tls_ca, tls_cert, tls_key, tls_server_name)
        settings = read_config(None, {"tritons": tritons_of(triton, section)})
    except ConfigError as error:
        wrong = {f"{flag_of(problem.where)}: {problem.what}": None for problem in error.problems}
        raise fail("; ".join(wrong)) from error
    try:
        for each in settings.tritons:
            if each.tls is not None:
                channel_context(each.tls)
    except TlsError as error:
        raise fail(str(error)) from error
    examination = asyncio.run(examine(settings, Plugins.installed(), repositories=repositories_of(repository)))
    if unusable := [what for report in examination.tritons for where, what in report.problems if where == "grpc"]:
        raise fail("; ".join(unusable))
    silent = {
        report.address: frozenset(where for where, _ in report.problems if where != "grpc")
        for report in examination.tritons
    }
    name, folder = (output.name, output.absolute().parent) if to_file else ("tidegate.yaml", None)
    text = initial_configuration(examination.facts, name, silent, folder)
    if not to_file:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise fail(f"{output}: {error.strerror}") from error
    _report(examination, str(output))


def _report(examination: "Examination", file: str) -> None:
    """Print how many models are scheduled, what to paste to schedule others, and how to go on."""
    from rich.console import Console
    from rich.markup import escape

    from tidegate_proxy.app.doctor.report import print_settings, verdict

    console = Console(soft_wrap=True, highlight=False)
    scheduled = sum(service.model is not None for service in examination.facts.services.values())
    bypassed = len(examination.facts.services) - scheduled
    console.print(f"{escape(file)}: models: {scheduled} scheduled, {bypassed} bypass the scheduler")
    print_settings(console, examination.facts.services.values(), file)
    serious = [each for each in examination.findings if each.severity != "advice" and each.rule != "unreachable"]
    if serious:
        console.print(f"{verdict(serious)}: [bold]tidegate doctor {escape(file)}[/]")
    console.print(f"[bold]tidegate serve {escape(file)}[/]")
