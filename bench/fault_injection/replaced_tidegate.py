"""Hazard: a Tidegate replaced by another on the same ports, under load."""

from rich.console import Console

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.rig import Rig
from bench.replacement import replace_under_load


def run(rig: Rig) -> Result:
    """Replace the Tidegate repeatedly under load over gRPC and HTTP."""
    requests, replacements = (2000, 1) if rig.quick else (10_000, 3)
    findings = replace_under_load(requests, replacements, Console(quiet=True))
    failed, total = findings.failed.total(), findings.failed.total() + findings.answered.total()
    return Result(
        f"{failed} of {total} failed, {findings.replacements} replacement(s), the longest took "
        f"{findings.longest_ms:.0f} ms",
        not failed and findings.replacements == replacements,
        findings.figures(),
    )


HAZARD = Hazard(
    "replaced_tidegate",
    "Tidegate replaced by a new process under load",
    "no request fails",
    run,
)
