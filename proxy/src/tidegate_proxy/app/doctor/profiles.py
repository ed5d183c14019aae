"""What was not measured, and what was measured in vain."""

from collections.abc import Iterator

from tidegate_proxy.app.doctor.facts import Facts
from tidegate_proxy.app.doctor.finding import Finding
from tidegate_proxy.app.doctor.names import remedy_for
from tidegate_proxy.tritons.starting_profiles import said_of_others


def not_measured(facts: Facts) -> Iterator[Finding]:
    """Models that begin with a guess. It matters where there is an SLO, which is kept or not by it."""
    if facts.has_layout:
        return
    file = facts.config.profiles or "profiles.json"
    for service in facts.services.values():
        if service.model is None:
            continue
        for kind in service.kinds:
            if facts.measured.profiles_of(service.name, kind, service.model.max_rows):
                continue
            of_kind = "" if kind == "default" else f" --kind {kind}"
            yield Finding(
                "advice" if service.slo_ms is None else "warning",
                "no-profile",
                f"model {service.name}",
                f"nobody has measured it on workers of kind {kind!r}{said_of_others(facts.measured, service.name)}: it "
                "begins with a guess, and learns from what it sees",
                f"tidegate profile --triton {facts.config.tritons[0].grpc}{of_kind} -o {file}",
            )


def shapes_in_vain(facts: Facts) -> Iterator[Finding]:
    """Shapes that were measured, and that no request has."""
    for words in facts.misfits:
        yield Finding("warning", "profile-misfit", "profiles", words, "")


def measured_in_vain(facts: Facts) -> Iterator[Finding]:
    """Models that were measured, and that no Triton has."""
    unknown = {profile.model for profile in facts.measured.profiles} - facts.services.keys()
    for name in sorted(unknown):
        yield Finding(
            "advice",
            "profile-of-unknown",
            "profiles",
            f"it tells of a model {name!r}, which no Triton has",
            remedy_for(name, facts.services),
        )
