"""Run the real commands, as a user would in a second terminal."""

import subprocess
import sys
from pathlib import Path

TIDEGATE = str(Path(sys.executable).with_name("tidegate"))


def tidegate(*arguments: str) -> str:
    """Run a `tidegate` command to its end; what it printed. Ends the demo with its own words if it fails."""
    done = subprocess.run([TIDEGATE, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"tidegate {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout
