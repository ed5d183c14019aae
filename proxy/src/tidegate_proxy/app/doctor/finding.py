"""One thing that deserves attention: what, where, and the remedy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "advice"]
"""What keeps Tidegate from serving, or requests from being answered; what costs something; what could be gained."""
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "advice")


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, in one sentence."""

    severity: Severity
    rule: str
    """A name for machines, such as `slo-too-short`."""
    where: str
    """The path of a field of the configuration, e.g. `models.resnet50.slo_ms`, or what else it is about."""
    what: str
    remedy: str
    """What to do about it."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}" if self.remedy else f"{self.where}: {self.what}"


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, gravest first; what is the same at several places becomes one that names them all."""
    places: dict[tuple[Severity, str, str, str], list[str]] = {}
    for finding in findings:
        where = places.setdefault((finding.severity, finding.rule, finding.what, finding.remedy), [])
        if finding.where not in where:
            where.append(finding.where)
    found = [
        Finding(severity, rule, _places(where), what, remedy)
        for (severity, rule, what, remedy), where in places.items()
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _places(places: Sequence[str]) -> str:
    """All of them: `models a, b` of several models."""
    names = [place.removeprefix("model ") for place in places]
    if len(places) > 1 and all(place.startswith("model ") for place in places):
        return f"models {', '.join(names)}"
    return ", ".join(places)
