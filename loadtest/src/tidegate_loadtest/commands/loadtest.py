"""Command `tidegate loadtest`: runs a scenario live."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.flags import (
    HtmlOption,
    JsonFlag,
    OutputOption,
    PoliciesOption,
    SeedsOption,
    TlsCaFlag,
    TlsCertFlag,
    TlsFlag,
    TlsKeyFlag,
    TlsServerNameFlag,
    tls_of,
)
from tidegate_loadtest.commands.sending_flags import (
    ChannelsOption,
    InputsOption,
    LatenessOption,
    ShapesOption,
    TimeoutOption,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tidegate_loadtest.open_loop import Progress
    from tidegate_loadtest.scenario_run import LiveResult


def loadtest(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).")],
    policy: PoliciesOption = None,
    seed: SeedsOption = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="[NAME=]HOST:PORT",
            help="gRPC address of a running Triton or Tidegate, and its name in the results. [default: emulate "
            "the cluster]",
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(metavar="RPS,RPS,...", help="Rates to run at, in requests per second. [default: the scenario's]"),
    ] = None,
    limit: Annotated[
        float, typer.Option(min=0, max=1, help="Highest fraction of bad requests of every model, with --rates.")
    ] = 0.01,
    as_json: JsonFlag = False,
    output: OutputOption = None,
    html_file: HtmlOption = None,
    shape: ShapesOption = None,
    inputs: InputsOption = None,
    channels: ChannelsOption = 1,
    timeout_s: TimeoutOption = 30.0,
    lateness_limit_ms: LatenessOption = 5.0,
    tls: TlsFlag = False,
    tls_ca: TlsCaFlag = None,
    tls_cert: TlsCertFlag = None,
    tls_key: TlsKeyFlag = None,
    tls_server_name: TlsServerNameFlag = None,
) -> None:
    """Run a scenario live against Triton or Tidegate.

    Sends the same requests as `tidegate simulate`, at the same instants, and reports the same figures.

    Without --target the scenario's cluster is emulated on this machine: real tritonservers whose models have the
    latency of its profiles, with `tidegate serve` in front of them for each policy (policy `triton`: Triton's own
    dynamic batcher, without Tidegate). With --target the server at that address is measured, once for each seed;
    the results name it NAME, or as --policy says, or by its address. Examples:

    tidegate loadtest scenario.yaml --policy symphony --policy triton --html live.html

    tidegate loadtest scenario.yaml --target tidegate=localhost:8101 -o live.json

    tidegate loadtest scenario.yaml --target gateway:8101 --tls-ca ca.pem

    tidegate loadtest scenario.yaml --target localhost:8101 --rates 100,200,300,400 --seed 1 --seed 2 --html load.html
    """
    from rich.console import Console

    from tidegate.commands.common import console_for_tables, errors_explained, origin, title_of, write_results

    console = console_for_tables(quiet=as_json)
    with errors_explained(), own_errors_explained():
        from tidegate.sim.report import simulate_page
        from tidegate.workload import layout_of, read_scenario
        from tidegate_loadtest.connection import LoadTestError
        from tidegate_loadtest.input_files import parse_inputs
        from tidegate_loadtest.live import SendingOptions
        from tidegate_loadtest.progress_bar import progress_bar
        from tidegate_loadtest.rate_sweep import load_verdicts, parse_rates, rate_sweep_page, run_rate_sweep
        from tidegate_loadtest.scenario_run import live_document, live_verdicts, plan_runs, run_live
        from tidegate_loadtest.server_slos import slo_warnings
        from tidegate_loadtest.shapes import parse_shapes

        document = read_scenario(scenario, for_server=target is not None)
        sending = SendingOptions(
            parse_shapes(shape or ()),
            channels,
            timeout_s,
            lateness_limit_ms,
            inputs=parse_inputs(inputs or ()),
            tls=tls_of(tls, tls_ca, tls_cert, tls_key, tls_server_name),
        )
        if sending.tls is not None and target is None:
            raise LoadTestError("--tls is for a server that runs: name it with --target")
        seeds, gantt_s = seed or [document.seed], 2.0 if html_file else 0.0
        runs = plan_runs(document, policy or (), seeds, sending, target=target, gantt_s=gantt_s)
        for warning in slo_warnings(runs[0].target, document) if runs[0].target else ():
            Console(stderr=True, soft_wrap=True).print(f"warning: {warning}", style="yellow", markup=False)
        each_s = document.warmup_s + document.duration_s
        where = f"live on {target or 'emulated GPUs'}"
        if rates is not None:
            tried = parse_rates(rates)
            with progress_bar(Console(stderr=True), each_s * len(runs) * len(tried)) as show_rate:

                def at_rate(done: int, what: str, progress: "Progress | None") -> None:
                    show_rate(done * each_s + (min(progress.elapsed_ns / 1e9, each_s) if progress else 0.0), what)

                sweep = run_rate_sweep(document, runs, tried, limit, at_rate)
            heading = f"{title_of(document, rate=False)}, {len(tried)} rates, {where}"
            print_lives(console, heading, sweep.lives, load_verdicts(sweep), by_rate=True)
            written = sweep.document()
            write_results(
                console,
                written,
                output,
                html_file,
                lambda: rate_sweep_page(heading, sweep, written, origin(), target=target),
                as_json=as_json,
            )
            return
        lives = []
        with progress_bar(Console(stderr=True), each_s * len(runs)) as show:
            for done, run in enumerate(runs):
                show(done * each_s, f"{run.name}: starting")

                def shown(progress: "Progress", done: int = done, name: str = run.name) -> None:
                    show(done * each_s + min(progress.elapsed_ns / 1e9, each_s), f"{name}: {progress}")

                lives.append(run_live(run, progress=shown))
        title = f"{title_of(document)}, {where}"
        verdicts = live_verdicts(document, lives, workers=None if target else len(layout_of(document).workers))
        print_lives(console, title, lives, verdicts)
        written = live_document(document, lives)
        write_results(
            console,
            written,
            output,
            html_file,
            lambda: simulate_page(
                title,
                document,
                [live.result for live in lives],
                written,
                origin(),
                target=target,
                verdicts=verdicts,
            ),
            as_json=as_json,
        )


@contextmanager
def own_errors_explained() -> Iterator[None]:
    """Convert known errors to one line and exit status 1; end on SIGTERM as on Ctrl-C, so that processes stop."""
    import signal

    from rich.console import Console
    from rich.markup import escape

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        from tidegate_loadtest.connection import LoadTestError

        try:
            yield
        except LoadTestError as error:
            errors.print(f"[red]error:[/] {escape(str(error))}")
            raise typer.Exit(1) from error
    except ModuleNotFoundError as error:
        if error.name != "tidegate_triton_models":
            raise
        hint = escape('pip install "tidegate-loadtest[emulated]", or name a running server with --target')
        errors.print(f"[red]error:[/] emulated GPUs need {error.name}, which is not installed: {hint}")
        raise typer.Exit(1) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def print_lives(
    console: "Console", title: str, lives: "Sequence[LiveResult]", verdicts: "Sequence[str]", *, by_rate: bool = False
) -> None:
    """Print the results, the first message of each failure, and the verdicts. `by_rate`: with the rate of each run."""
    from tidegate.commands.common import TableColumn, print_table, print_tenants, result_columns

    results = [live.result for live in lives]
    columns = result_columns(results)
    if by_rate:
        columns.insert(1, TableColumn("rate /s", lambda result: f"{result.total.rate_rps:,.4g}"))
    print_table(console, columns, results, title)
    print_tenants(console, results)
    for live in lives:
        for status, message in live.seen.run.messages.items():
            console.print(f"{live.run.name}: first {status}: {message}", markup=False)
    for verdict in verdicts:
        console.print(verdict, style="bold red" if "not measured" in verdict else "bold", markup=False)
