"""Command `tidegate compare`: the same load on several servers."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.commands.flags import (
    HtmlOption,
    JsonFlag,
    OutputOption,
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
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from tidegate.workload import Scenario
    from tidegate_loadtest.comparison.targets import Target
    from tidegate_loadtest.live import SendingOptions
    from tidegate_loadtest.open_loop import Progress


def compare(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).")],
    more_targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=HOST:PORT", help="Further servers to compare.", show_default=False),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--targets",
            "--target",
            metavar="NAME=HOST:PORT",
            help="gRPC addresses of running servers, two at least; the first is the baseline. [default: emulate "
            "a cluster for each policy of the scenario]",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Emulate only this policy, by name or label. Repeatable. [default: all of the scenario]"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs against each target, interleaved.")] = 5,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the first round; each further round adds 1. [default: the scenario's]"),
    ] = None,
    as_json: JsonFlag = False,
    output: OutputOption = None,
    html_file: HtmlOption = None,
    inputs: InputsOption = None,
    shape: ShapesOption = None,
    channels: ChannelsOption = 1,
    timeout_s: TimeoutOption = 30.0,
    lateness_limit_ms: LatenessOption = 5.0,
    tls: TlsFlag = False,
    tls_ca: TlsCaFlag = None,
    tls_cert: TlsCertFlag = None,
    tls_key: TlsKeyFlag = None,
    tls_server_name: TlsServerNameFlag = None,
) -> None:
    """Compare servers under the same load, with intervals.

    Sends the same load to several servers, one after the other, in rounds; reports which is better, with confidence.

    In each round every target gets the same requests at the same instants, and another one is first; round number i
    has the seed of the first plus i. Differences are taken within the rounds, with 95 % confidence intervals
    (Student's t, cut to possible values). Everything is checked before any load is sent. Exit status 1: the
    comparison could not begin, or ended before its last round.

    --tls and the related options apply to all targets except those written as NAME=grpc://HOST:PORT.

    Without --targets each policy of the scenario gets a cluster of emulated GPUs on this machine, as in `tidegate
    loadtest`. Examples:

    tidegate compare scenario.yaml --targets direct=localhost:8001 tidegate=localhost:8101 --html compared.html

    tidegate compare scenario.yaml --targets direct=grpc://localhost:8001 tidegate=gateway:8101 --tls-ca ca.pem

    tidegate compare scenario.yaml --policy triton --policy symphony --rounds 3 -o compared.json
    """
    from rich.console import Console

    from tidegate.commands.common import console_for_tables, errors_explained, origin, title_of, write_results
    from tidegate_loadtest.commands.loadtest import own_errors_explained

    console = console_for_tables(quiet=as_json)
    with errors_explained(), own_errors_explained():
        from tidegate.workload import read_scenario
        from tidegate_loadtest.comparison.document import comparison_document
        from tidegate_loadtest.comparison.page import comparison_page
        from tidegate_loadtest.comparison.runs import compare as run_comparison
        from tidegate_loadtest.comparison.table import print_comparison
        from tidegate_loadtest.input_files import parse_inputs
        from tidegate_loadtest.live import SendingOptions
        from tidegate_loadtest.progress_bar import progress_bar
        from tidegate_loadtest.shapes import parse_shapes

        document = read_scenario(scenario, for_server=bool(targets or more_targets))
        sending = SendingOptions(
            parse_shapes(shape or ()),
            channels,
            timeout_s,
            lateness_limit_ms,
            inputs=parse_inputs(inputs or ()),
            tls=tls_of(tls, tls_ca, tls_cert, tls_key, tls_server_name),
        )
        first_seed = document.seed if seed is None else seed
        errors = Console(stderr=True)
        given = [*(targets or ()), *(more_targets or ())]
        with _targets(errors, document, given, policy or (), first_seed, sending) as servers:
            each_s = document.warmup_s + document.duration_s
            with progress_bar(errors, each_s * rounds * len(servers)) as show:

                def shown(done: int, name: str, progress: "Progress") -> None:
                    show(done * each_s + min(progress.elapsed_ns / 1e9, each_s), f"{name}: {progress}")

                compared = run_comparison(document, servers, sending, rounds=rounds, seed=first_seed, shown=shown)
        where = "" if given else ", emulated GPUs"
        count = len(compared.complete)
        title = f"{title_of(document)}, {count} round{'s' * (count != 1)}{where}"
        print_comparison(console, compared, title)
        written = comparison_document(compared)
        write_results(
            console,
            written,
            output,
            html_file,
            lambda: comparison_page(title, compared, written, origin()),
            as_json=as_json,
        )
        if compared.stopped:
            raise typer.Exit(1)


@contextmanager
def _targets(
    errors: "Console",
    scenario: "Scenario",
    given: "Sequence[str]",
    policies: "Sequence[str]",
    seed: int,
    sending: "SendingOptions",
) -> "Iterator[list[Target]]":
    """The servers that are named, or clusters emulated for the policies."""
    from tempfile import TemporaryDirectory

    from tidegate_loadtest.comparison.targets import emulated_targets, parse_targets
    from tidegate_loadtest.connection import LoadTestError
    from tidegate_loadtest.scenario_run import plan_runs

    if given:
        if policies:
            raise LoadTestError("--policy is for emulated clusters: leave it out, or leave out --targets")
        yield parse_targets(given)
        return
    if sending.tls is not None:
        raise LoadTestError("--tls is for servers that run: name them with --targets")
    choices = [run.policy for run in plan_runs(scenario, policies, [seed], sending)]
    if len(choices) < 2:
        raise LoadTestError(
            f"a comparison needs two policies at least, {len(choices)} chosen: list more in the scenario or with "
            "--policy, or name servers that run with --targets"
        )
    with TemporaryDirectory(prefix="tidegate-compare-") as folder, errors.status("starting") as status:

        def starting(name: str) -> None:
            status.update(f"starting the cluster of {name}")

        with emulated_targets(scenario, choices, seed=seed, work=Path(folder), starting=starting) as servers:
            status.stop()
            yield servers
