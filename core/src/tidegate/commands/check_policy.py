"""`tidegate check-policy`: checks policies against the invariants and compares them with simple policies."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.commands.flags import JobsOption, JsonFlag, OutputOption

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tidegate.api import PolicySpec
    from tidegate.host import Plugins
    from tidegate.testing.judgment import Judgment

MAX_SEEDS = 10


def check_policy(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Policies to test. [default: all that need no options]"),
    ] = None,
    worlds: Annotated[
        int, typer.Option(min=0, help="Random worlds in which the invariants are tested (0 tests none).")
    ] = 40,
    world: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of the only random world in which the invariants are tested; nothing is judged. [default: "
            "all of --worlds]",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=2, max=MAX_SEEDS, help="Seeds to compare policies on, from 1 on.")] = 5,
    as_json: JsonFlag = False,
    output: OutputOption = None,
    jobs: JobsOption = -1,
) -> None:
    """Test a policy: its contract, and whether it pays.

    Try a policy before you run it: does it keep the contract, and is it better than doing nothing clever?

    First it runs in random worlds, in which every invariant is checked. Then it is judged in worlds with one difficulty
    each (rows, unlike models, stalls, bursts, ...) beside `fifs`, `eager` and the best of sixteen settings of Triton's
    own batcher. Where it is below the best of them by more than chance is marked. Exit status 1: an invariant broke.
    Example:

    tidegate check-policy symphony -o judged.json
    """
    from rich.markup import escape

    from tidegate.commands.common import console_for_tables, errors_explained, with_progress, write_results

    console = console_for_tables(quiet=as_json)
    with errors_explained():
        from pydantic import ValidationError

        from tidegate.host import Plugins
        from tidegate.testing.conformance import find_faults

        plugins = Plugins.installed()
        chosen = []
        for name in names or plugins.policies:
            spec = plugins.policy(name)
            try:
                spec.policy.Options()
            except ValidationError:
                console.print(f"{name}: left out, as it needs options")
            else:
                chosen.append(spec)
        broken: dict[str, list[str]] = {}
        for spec in chosen:
            faults = find_faults(spec, worlds=worlds) if world is None else find_faults(spec, worlds=1, seed=world)
            found = with_progress(console, f"{spec.name}: invariants", faults, None)
            broken[spec.name] = [str(fault) for fault in found]
            if worlds or world is not None:
                tried = f"{worlds} random worlds" if world is None else f"world {world}"
                console.print(f"{spec.name}: {_said_of([escape(fault) for fault in broken[spec.name]], tried)}")
            if found and world is None:
                console.print(f"Again: tidegate check-policy {spec.name} --world {found[0].world}", markup=False)
        for name in [name for name, faults in broken.items() if worlds and len(faults) == worlds and world is None]:
            console.print(f"{name}: not judged, as it breaks the contract in every world")
            chosen = [spec for spec in chosen if spec.name != name]
        chosen = chosen if world is None else []
        judged = _judge(console, chosen, plugins, seeds=seeds, jobs=jobs) if chosen else {}
        write_results(console, _document(judged, broken, worlds), output, None, str, as_json=as_json)
    if any(broken.values()):
        raise typer.Exit(1)


def _judge(
    console: "Console", specs: "Sequence[PolicySpec]", plugins: "Plugins", *, seeds: int, jobs: int
) -> "dict[str, list[Judgment]]":
    from rich.markup import escape

    from tidegate.commands.common import with_progress
    from tidegate.testing.judgment import judge_policies
    from tidegate.workload import PolicyChoice

    choices = [PolicyChoice(name=spec.name) for spec in specs]
    judging = judge_policies(choices, seeds=range(1, seeds + 1), plugins=plugins, jobs=jobs)
    with_progress(console, "judging", judging, len(judging))
    judged = {choice.name: judging.judgments(choice.name) for choice in choices}
    for name, judgments in judged.items():
        console.print(_table(name, judgments))
        console.print(_summary(name, judgments))
        for (place, title), why in judging.unfit.items():
            if title == name:
                console.print(f"[dim]not judged in {place!r}: {escape(why)}[/]")
    return judged


def _said_of(faults: Sequence[str], tried: str) -> str:
    if not faults:
        return f"every invariant holds in {tried}"
    return f"[red]it breaks the contract[/] in {len(faults)} of {tried}, first: {faults[0]}"


def _table(name: str, judgments: "Sequence[Judgment]") -> "Table":
    from rich.table import Table

    table = Table("world", "on time", "worst model", "best simple one", "points over it (95 %)", title=name)
    for each in judgments:
        gain = f"{_points(each.gain.mean)} ({_points(each.gain.low)} to {_points(each.gain.high)})"
        table.add_row(
            each.world,
            f"{each.attainment:.1%}",
            f"{each.worst:.1%}",
            each.best,
            f"[red]{gain} below[/]" if each.is_below else gain,
        )
    return table


def _summary(name: str, judgments: "Sequence[Judgment]") -> str:
    below = [each.world for each in judgments if each.is_below]
    worlds = f"{len(below)} of {len(judgments)} worlds{': ' if below else ''}{'; '.join(below)}"
    return (
        f"{name} is below the best simple one, by more than chance and a point, in {worlds}. "
        "(Delays and timeouts of triton are shares of the SLO.)"
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _document(judged: "dict[str, list[Judgment]]", broken: dict[str, list[str]], worlds: int) -> dict[str, Any]:
    return {
        "worlds": worlds,
        "policies": {
            name: {
                "broken": faults,
                "judgments": [
                    {
                        "world": each.world,
                        "attainment": each.attainment,
                        "worst": each.worst,
                        "best": each.best,
                        "gain": [each.gain.mean, each.gain.low, each.gain.high],
                        "worst_gain": each.worst_gain,
                        "below": each.is_below,
                    }
                    for each in judged.get(name, [])
                ],
            }
            for name, faults in broken.items()
        },
    }
