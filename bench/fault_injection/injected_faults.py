"""An exception once in every method that a request meets."""

import re
import subprocess
import sys
from pathlib import Path

from bench.fault_injection.hazard import Hazard, Result
from bench.fault_injection.rig import Rig

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/proxy/app/test_no_silent_death.py",
    "tests/proxy/scheduling/test_tritons_looked_after.py",
    "tests/core/engine/test_faults.py",
)
IN_ALL = re.compile(r"(\d+) (passed|failed|error|skipped)")


def run(rig: Rig) -> Result:
    """The project's own tests of it, in their own process: they reach where a client does not."""
    rig.tell("tests")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(TESTS[-1:] if rig.quick else TESTS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    counts = {name: int(count) for count, name in IN_ALL.findall(done.stdout)}
    return Result(
        ", ".join(f"{count} {name}" for name, count in counts.items()) or done.stdout[-500:],
        done.returncode == 0 and counts.get("passed", 0) > 0,
        counts,
    )


HAZARD = Hazard(
    "injected_faults",
    "an exception in every method that a request meets (the project's tests of it)",
    "clients are left without an answer (no figure given)",
    "every client answered within 1 s, the next request served",
    run,
)
