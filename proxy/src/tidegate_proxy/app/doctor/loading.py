"""Models that a Triton has in its repository, and could not load."""

from collections.abc import Iterator

from tidegate_proxy.app.doctor.facts import Facts
from tidegate_proxy.app.doctor.finding import Finding


def first_line(reason: str) -> str:
    """Why, without the lines of Python that led there."""
    return reason.strip().partition("\n")[0]


def models_that_do_not_load(facts: Facts) -> Iterator[Finding]:
    """A model that another Triton, or another version, still serves is a warning; else its requests fail."""
    for each in facts.not_ready:
        served = each.model in facts.services
        version = f", version {each.version}," if each.version else ""
        yield Finding(
            "warning" if served else "error",
            "not-loaded",
            f"model {each.model}",
            f"Triton at {each.triton} has it{version} and does not serve it: {first_line(each.reason)}",
            "mend it there, and have it loaded again" if served else "mend it there: its requests fail until then",
        )
