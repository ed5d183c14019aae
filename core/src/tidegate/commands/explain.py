"""`tidegate explain`: the timeline of one request of an event log, with the reason of each step."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tidegate.observation import LogEntry, LogHeader, RequestTimeline

MAX_SHOWN_REQUESTS = 5
"""Maximum number of requests of each group that the error names if the requested one is not in the event log."""


class ExplainError(Exception):
    """Error: there is no timeline to show; the message says why and names a remedy."""


def explain(
    log: Annotated[Path, typer.Argument(help="Event log that `tidegate serve --event-log` wrote.")],
    request: Annotated[
        int, typer.Argument(help="Number of a request in the event log, from 0 in the order of arrival.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain what happened to one request, and why.

    Prints what it waited for, which batch it joined and why then, and its answer. The event log is replayed, with the
    policy that it was made with. Times count from the arrival of the request.
    Example:

    tidegate explain run.jsonl 17
    """
    import json

    from tidegate.commands.common import errors_in_a_line
    from tidegate.host import PluginError
    from tidegate.observation import read_log

    with errors_in_a_line(OSError, ValueError, PluginError, ExplainError, source=log):
        with log.open("rb") as lines:
            header, entries = read_log(lines)
            timeline = _timeline_of(header, entries, request)
        if timeline is None:
            with log.open("rb") as lines:
                raise ExplainError(_unknown(request, read_log(lines)[1]))
    if as_json:
        typer.echo(json.dumps(_document(header.policy, timeline)))
        return
    typer.echo(f"request {request}: {timeline.outcome or 'not ended'} (policy {header.policy})")
    for step in timeline.steps:
        typer.echo(f"{timeline.ms(step.at_ns):12.3f} ms  {step.what:<16} {step.text}")


def _timeline_of(header: "LogHeader", entries: "Iterable[LogEntry]", request_id: int) -> "RequestTimeline | None":
    """The timeline of a request, from a replay up to its end; None where the log does not know it."""
    from tidegate.host import Plugins
    from tidegate.observation import TimelineRecorder
    from tidegate.sim.replay import replay

    timelines = TimelineRecorder(only=[request_id])

    def until_it_ends() -> "Iterator[LogEntry]":
        for entry in entries:
            yield entry
            if (timeline := timelines.of(request_id)) and timeline.outcome:
                return

    policies = Plugins.installed().make_policy
    policy = policies(header.policy, header.setup, header.options)
    found = replay(header, until_it_ends(), policy, timelines=timelines, policies=policies)
    if found.difference:
        raise ExplainError(
            f"event {found.difference.number} is answered otherwise than when it was recorded: by another version of "
            "the policy, or of Tidegate? `tidegate replay` shows both answers; explain it where it was recorded"
        )
    return timelines.of(request_id)


def _unknown(request_id: int, entries: "Iterable[LogEntry]") -> str:
    """Return an error that lists known requests, and those that the user may have meant."""
    from tidegate.api import RequestArrived
    from tidegate.observation import TimelineRecorder

    timelines, last = TimelineRecorder(most=sys.maxsize), -1
    for entry in entries:
        timelines.handled(entry.event, entry.commands, entry.effects)
        if isinstance(entry.event, RequestArrived):
            last = entry.event.request.id
    if last < 0:
        return "the event log has no request"
    ends: dict[str, list[str]] = {"late": [], "dropped": [], "failed": []}
    for timeline in timelines:
        if timeline.outcome in ends:
            ends[timeline.outcome].append(str(timeline.request.id))
    some = "; ".join(f"{how}: {', '.join(which[:MAX_SHOWN_REQUESTS])}" for how, which in ends.items() if which)
    return f"there is no request {request_id}: they are numbered up to {last}" + (f" ({some})" if some else "")


def _document(policy: str, timeline: "RequestTimeline") -> dict[str, Any]:
    import msgspec

    steps = [
        {"at_ms": round(timeline.ms(step.at_ns), 6), "what": step.what, "text": step.text} for step in timeline.steps
    ]
    request = msgspec.to_builtins(timeline.request)
    return {"policy": policy, "request": request, "outcome": timeline.outcome, "steps": steps}
