"""`tidegate replay`: runs an event log through the engine again and compares the commands."""

from pathlib import Path
from typing import Annotated

import typer


def replay(
    log: Annotated[Path, typer.Argument(help="Event log that `tidegate serve --event-log` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay an event log and compare the commands.

    Feed a recorded live run through the engine and compare the commands: they must be the same.

    Exits with 1 and shows the first event at which they differ. Example:

    tidegate replay run.jsonl
    """
    import json

    from tidegate.commands.common import console_for_errors, errors_in_a_line
    from tidegate.host import PluginError, Plugins
    from tidegate.observation import read_log
    from tidegate.sim.replay import replay as replay_log

    with errors_in_a_line(OSError, ValueError, PluginError, source=log), log.open("rb") as lines:
        header, entries = read_log(lines)
        policies = Plugins.installed().make_policy
        policy = policies(header.policy, header.setup, header.options)
        found = replay_log(header, entries, policy, policies=policies)
    difference = found.difference
    if as_json:
        report = {"policy": header.policy, "events": found.events, "commands": found.commands, "same": not difference}
        typer.echo(json.dumps(report))
    elif difference is None:
        typer.echo(f"{header.policy}: {found.events} events, {found.commands} commands, all the same")
    if difference is not None:
        errors = console_for_errors()
        errors.print(f"event {difference.number} was answered differently:\n  {difference.event}", style="red")
        errors.print("recorded:", *difference.recorded, sep="\n  ")
        errors.print("replayed:", *difference.replayed, sep="\n  ")
        raise typer.Exit(1)
