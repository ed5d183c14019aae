"""Run the real commands, as a user would in a second terminal, and stop them again."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TIDEGATE = str(Path(sys.executable).with_name("tidegate"))


def tidegate(*arguments: str) -> str:
    """Run a `tidegate` command to its end; what it printed. Ends the demo with its own words if it fails."""
    done = subprocess.run([TIDEGATE, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"tidegate {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def tidegate_serve(*arguments: str, log: Path) -> Iterator[str]:
    """`tidegate serve` on a free port; gives its address. Its log goes to a file."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [TIDEGATE, "serve", "--listen", "127.0.0.1:0", *arguments], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdout is not None
    try:
        address = None
        for line in process.stdout:
            if match := re.match(r"gRPC\s+(\S+)", line):
                address = match[1]
                break
        if address is None:
            raise SystemExit(f"tidegate serve did not start:\n{log.read_text()}")
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=30)
