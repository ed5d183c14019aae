"""Report of models and findings, as a table and as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from io import StringIO
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate_proxy.app.doctor.facts import DoctorFacts, Finding, ServedModel, Severity, one_row
from tidegate_proxy.configuration.config_file import yaml_scalar
from tidegate_proxy.tritons.batching_mode import WORDS_OF_MODE, delay_us, lines_of, mode_that_schedules

_COLORS: dict[Severity, str] = {"error": "red", "warning": "yellow", "advice": "cyan"}
AS_WIDE_AS_NEEDED = 100_000
"""Width in columns of a table that is not printed on a terminal: one line for each model, however long."""


def print_models(console: Console, facts: DoctorFacts) -> None:
    """Print a row for each model: scheduling, limits and reasons.

    On a terminal the reasons follow the table, each once; elsewhere each line is complete, however long.
    """
    consents = {service.name: service.consent for service in facts.services.values()}
    if console.is_terminal:
        console.print(_table(facts), soft_wrap=False)
        for line in lines_of(consents):
            console.print(line, soft_wrap=False, markup=False)
        return
    wide = Console(width=AS_WIDE_AS_NEEDED, file=StringIO(), highlight=False)
    with wide.capture() as captured:
        wide.print(_table(facts, "why"))
    for line in captured.get().splitlines():
        console.print(line.rstrip(), markup=False)


def _table(facts: DoctorFacts, *more: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("model", "requests", "rows", "SLO", "late", "queue", "one row", "workers", *more):
        right = head in ("rows", "SLO", "workers")
        table.add_column(head, overflow="fold", justify="right" if right else "left", no_wrap=head != "model")
    for service in facts.services.values():
        cells = [*_cells(facts, service), *(service.consent.why for _ in more)]
        table.add_row(*map(escape, cells))
    return table


def _cells(facts: DoctorFacts, service: ServedModel) -> tuple[str, ...]:
    what, model = WORDS_OF_MODE[service.consent.scheduling], service.model
    if model is None:
        return service.name, what, "-", "-", "-", "Triton's", "-", "-"
    late = "answered" if model.on_deadline_miss == "serve" else "rejected"
    return (
        service.name,
        what,
        str(model.merged_rows) if model.merges else "1",
        "none" if service.slo_ms is None else f"{service.slo_ms:g} ms",
        late if service.slo_ms else "-",
        facts.config.policy.name,
        times_of(facts, service) or "?",
        str(service.workers),
    )


def settings_to_paste(services: Iterable[ServedModel]) -> list[str]:
    """Return lines for a configuration that schedule the models which bypass the scheduler by default."""
    lines = []
    for service in services:
        mode = mode_that_schedules(service.config) if service.forms else None
        if service.consent.scheduling != "bypass" or service.consent.is_requested or mode is None:
            continue
        delay = delay_us(service.config)
        drop = f"  # and drop max_queue_delay_microseconds from {service.name}/config.pbtxt" if delay else ""
        lines.append(f"  {yaml_scalar(service.name)}: {{scheduling: {mode}}}{drop}")
    return ["models:", *lines] if lines else []


def print_settings(console: Console, services: Iterable[ServedModel], file: str) -> None:
    """Print lines for the configuration `file` with which models that bypass the scheduler are scheduled."""
    if lines := settings_to_paste(services):
        console.print(f"\nTo schedule models that bypass the scheduler, add to {file}:", markup=False)
        for line in lines:
            console.print(line, markup=False)


def times_of(facts: DoctorFacts, service: ServedModel) -> str:
    """Return the latency of one row, from the fastest shape to the slowest; empty if unknown."""
    rows = one_row(facts, service)
    if not rows:
        return ""
    least, most = f"{rows[0].expected_ms:.3g}", f"{max(row.expected_ms for row in rows):.3g}"
    return f"{least} ms" if least == most else f"{least} to {most} ms"


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Print the findings, one line each."""
    for finding in findings:
        console.print(f"[{_COLORS[finding.severity]}]{finding.severity}:[/] {escape(str(finding))}")


def verdict(findings: Sequence[Finding]) -> str:
    """Return the number of findings by severity, as text."""
    counts: dict[Severity, int] = {}
    for finding in findings:
        counts[finding.severity] = counts.get(finding.severity, 0) + 1
    words = [f"{count} {severity}{'s' * (count > 1 and severity != 'advice')}" for severity, count in counts.items()]
    return ", ".join(words) if words else "nothing needs attention"


def document_of(facts: DoctorFacts | None, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return models and findings as JSON types; `facts`: None if no Triton could be queried."""
    return {
        "ok": not any(finding.severity == "error" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
        "models": [_model(facts, service) for service in facts.services.values()] if facts else [],
    }


def _model(facts: DoctorFacts, service: ServedModel) -> dict[str, Any]:
    model = service.model
    return {
        "name": service.name,
        "scheduling": service.consent.scheduling,
        "why": service.consent.why,
        "max_rows": model.max_rows if model else None,
        "merged_rows": (model.merged_rows if model.merges else 1) if model else None,
        "slo_ms": service.slo_ms,
        "on_deadline_miss": model.on_deadline_miss if model else None,
        "policy": facts.config.policy.name if model else None,
        "workers": service.workers,
        "kinds": service.kinds,
        "tritons": sorted({address for form in service.forms for address in form.tritons}),
        "one_row": [asdict(row) for row in one_row(facts, service)],
    }
