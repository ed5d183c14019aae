"""`tidegate recommend`: recommends policy and hardware for given traffic."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.commands.flags import ChangesOption, HtmlOption, JobsOption, JsonFlag, OutputOption

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from tidegate.api import Plan, PlannerSpec, VersionedDocument
    from tidegate.recommend.recommendation import Recommendation
    from tidegate.recommend.recording import RecordedTraffic
    from tidegate.schemas import BlockProfile
    from tidegate.workload import PolicyChoice, Scenario


def recommend(
    traffic: Annotated[
        Path, typer.Argument(help="Scenario, or an event log (`tidegate serve --event-log`) recorded under load.")
    ],
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="8xT4,2xA100",
            help="GPUs to use, e.g. 8xT4,2xA100; spares the last where fewer suffice. [default: the scenario's "
            "workers]",
        ),
    ] = None,
    any_of: Annotated[
        list[str] | None,
        typer.Option(
            "--any-of",
            metavar="A100=2.5",
            help="GPUs that could be bought, with their price in any unit; several together: A100+3xT4=3.1. "
            "Repeatable: the cheapest wins.",
        ),
    ] = None,
    goal: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="Fraction of every model's requests that must be on time.")
    ] = 0.99,
    policy: Annotated[list[str] | None, typer.Option(help="Try only this policy. Repeatable. [default: all]")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Arrivals to use, one per line (seconds, model). [default: the scenario's]")
    ] = None,
    changes: ChangesOption = None,
    blocks: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=FILE",
            help="Block profile of a model (`tidegate profile-blocks`), with which it may be split. Repeatable.",
        ),
    ] = None,
    interference: Annotated[
        Path | None,
        typer.Option(help="Interference model (`tidegate fit-interference`), with which GPUs may be shared."),
    ] = None,
    requests: Annotated[
        int, typer.Option(min=100, help="Requests in each simulated run; more show smaller differences.")
    ] = 3000,
    plan_time_limit_s: Annotated[float, typer.Option(min=0.1, help="Seconds to search for each plan.")] = 2.0,
    as_json: JsonFlag = False,
    output: OutputOption = None,
    html_file: HtmlOption = None,
    apply: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the recommended configuration and layout into this new folder."),
    ] = None,
    jobs: JobsOption = -1,
) -> None:
    """Recommend a policy and a GPU layout for given traffic.

    Say what to run for given traffic: which policy, on which GPUs laid out how, and what that saves.

    Every policy and planner that applies is simulated, and Triton's own batcher with many settings: nothing is
    recommended that is not better than that. What is reported comes from other seeds than what was chosen by. Examples:

    tidegate recommend scenario.yaml --html answer.html

    tidegate recommend run.jsonl --gpus 8xT4,2xA100 --apply tidegate

    tidegate recommend scenario.yaml --any-of T4=0.35 --any-of A100=2.5
    """
    from functools import partial

    from tidegate.commands.common import (
        console_for_errors,
        console_for_tables,
        errors_explained,
        errors_in_a_line,
        origin,
        with_progress,
        write_results,
    )

    console = console_for_tables(quiet=as_json)
    with errors_explained():
        from tidegate.recommend.document import recommend_document
        from tidegate.recommend.files import FolderError, check_folder, write_files
        from tidegate.recommend.hardware import GpuBundle, parse_gpus, parse_offer, profiles_on
        from tidegate.recommend.page import recommend_page
        from tidegate.recommend.query import RecommendError, RecommendQuery
        from tidegate.recommend.recommendation import recommend as find
        from tidegate.recommend.recording import RecordingError
        from tidegate.recommend.simulation_runs import SimulationRuns
        from tidegate.recommend.verdicts import verdicts
        from tidegate.schemas import DocumentError
        from tidegate.sim.verdicts import impossible_slos

        with errors_in_a_line(RecommendError, RecordingError, FolderError, DocumentError):
            if gpus is not None and any_of:
                raise RecommendError("--gpus says what there is, --any-of what could be bought: give one of the two")
            if apply is not None:
                check_folder(apply)
            scenario, recording, current = _traffic(traffic, trace, changes or (), interference)
            question = RecommendQuery(
                scenario,
                recording,
                (GpuBundle(parse_gpus(gpus)),) if gpus is not None else tuple(map(parse_offer, any_of or ())),
                buy=bool(any_of),
                goal=goal,
                blocks=_blocks(blocks or (), [model.name for model in scenario.models]),
                run_planner=partial(_plan, plan_time_limit_s, console_for_errors()),
                current=current,
                only=tuple(policy or ()),
                requests=requests,
            )
            found = find(question, SimulationRuns(jobs, partial(with_progress, console)))
            offered = {gpu for bundle in question.bundles for gpu in bundle.gpus}
            usable = [each for each in profiles_on(scenario, offered) if each.partition not in question.blocks]
            sentences = [*verdicts(found), *impossible_slos(scenario, usable if offered else None)]
            for sentence in sentences:
                console.print(sentence, markup=False, highlight=False, soft_wrap=True)
            _print_models(console, found)
            for each in found.unfit:
                console.print(
                    f"not tried: {', '.join(each.names)}: {each.why}", markup=False, style="dim", soft_wrap=True
                )
            document = recommend_document(found, sentences)
            write_results(
                console,
                document,
                output,
                html_file,
                lambda: recommend_page(found, sentences, document, origin()),
                as_json=as_json,
            )
            if apply is not None:
                for path in write_files(found, apply, sentences):
                    console.print(f"written: {path}", markup=False, style="dim")


def _traffic(
    source: Path, trace: Path | None, changes: "Iterable[str]", interference: Path | None
) -> "tuple[Scenario, RecordedTraffic | None, PolicyChoice | None]":
    """The scenario that a file is, or stands for, and the policy that served a recording.

    Raises ScenarioError, RecordingError, OSError.
    """
    from tidegate.recommend.recording import RecordingError, read_recording, scenario_of_recording
    from tidegate.sim.run import parse_changes
    from tidegate.workload import read_scenario

    changed: dict[str, Any] = parse_changes([*changes])
    with source.open("rb") as lines:
        recorded = b'"setup"' in lines.readline()
    if trace is not None:
        changed["arrivals"] = {"process": "trace", "file": str(trace.resolve())}
    if interference is not None:
        changed["simulation.interference"] = str(interference.resolve())
    if not recorded:
        return read_scenario(source, changed), None, None
    if trace is not None:
        raise RecordingError("--trace: a recording has arrivals of its own: leave it out")
    from tidegate.observation import read_log
    from tidegate.workload import PolicyChoice
    from tidegate.workload.scenario_file import changed_by

    with source.open("rb") as lines:
        try:
            # Of a Tidegate that records still, or was killed, the last line may be a part of one.
            header, entries = read_log(line for line in lines if line.endswith(b"\n"))
            recording, given = read_recording(header.setup, entries)
        except ValueError as error:
            raise RecordingError(f"{source}: {error}") from error
    current = PolicyChoice(name=header.policy, options=_set_options(header.policy, header.options))
    return scenario_of_recording(changed_by(source, given, changed), source.stem), recording, current


def _set_options(policy: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a policy that differ from its defaults; all, if this version does not know the policy or
    one of them.
    """
    from tidegate.host import PluginError, Plugins

    try:
        known = Plugins.installed().validated_options(policy, options)
    except PluginError:
        return options
    return known.model_dump(mode="json", exclude_defaults=True)


def _blocks(texts: "Iterable[str]", models: "list[str]") -> "dict[str, BlockProfile]":
    """Block profiles by model. Raises DocumentError, RecommendError."""
    from tidegate.recommend.query import RecommendError
    from tidegate.schemas import BlockProfile, did_you_mean, read_document

    found = {}
    for text in texts:
        model, equals, path = text.partition("=")
        if not (model and equals and path):
            raise RecommendError(f"--blocks {text!r}: give MODEL=FILE")
        if model not in models:
            raise RecommendError(f"--blocks {text!r}: no such model{did_you_mean(model, models, 'there are')}")
        found[model] = read_document(Path(path), BlockProfile)
    return found


def _plan(time_limit_s: float, errors: "Console", planner: "PlannerSpec", problem: "VersionedDocument") -> "Plan":
    """Run a planner, whose solver may print what it wonders about."""
    from tidegate.commands.plan import run_under_bar, stdout_to_stderr

    with stdout_to_stderr():
        return run_under_bar(planner, problem, time_limit_s, errors)


def _print_models(console: "Console", found: "Recommendation") -> None:
    """The attainment of each model under every contender."""
    from rich.table import Table

    from tidegate.report.number_format import share

    chosen = found.chosen
    names = [*chosen.ours.models]
    if len(names) < 2:
        return
    table = Table("model", title=f"on time, on {chosen.site.words(chosen.count)}")
    for label, _ in chosen.contenders():
        table.add_column(label, justify="right")
    for name in names:
        of_each = [each.result.models.get(name) for _, each in chosen.contenders()]
        table.add_row(name, *("-" if its is None else share(its.mean) for its in of_each))
    console.print(table)
