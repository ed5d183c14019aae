"""What is found, for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tidegate_proxy.app.doctor.facts import Facts, Service
from tidegate_proxy.app.doctor.finding import Finding
from tidegate_proxy.app.doctor.one_row import one_row


def document_of(facts: Facts | None, findings: Sequence[Finding]) -> dict[str, Any]:
    """The models and the findings as JSON has them; `facts`: None where nobody could be asked."""
    return {
        "ok": not any(finding.severity == "error" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
        "models": [_model(facts, service) for service in facts.services.values()] if facts else [],
    }


def _model(facts: Facts, service: Service) -> dict[str, Any]:
    model = service.model
    return {
        "name": service.name,
        "batch": service.consent.batch,
        "why": service.consent.why,
        "max_rows": model.max_rows if model else None,
        "merged_rows": (model.merged_rows if model.merges else 1) if model else None,
        "slo_ms": service.slo_ms,
        "late": model.late if model else None,
        "policy": facts.config.policy.name if model else None,
        "workers": service.workers,
        "kinds": service.kinds,
        "tritons": sorted({address for form in service.forms for address in form.tritons}),
        "one_row": [asdict(row) for row in one_row(facts, service)],
    }
