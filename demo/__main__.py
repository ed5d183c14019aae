"""Run the demo: `make demo`, or `python -m demo [real|why]`."""

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from demo.real import run_real
from demo.why import run_why


def main() -> None:
    """Run both parts, or the one that is named."""
    parts = sys.argv[1:] or ["real", "why"]
    console = Console(width=None if sys.stdout.isatty() else 120)
    started = time.monotonic()
    same = True
    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as folder:
        if "real" in parts:
            console.rule("(a) Real models, a real picture, a plain tritonclient program")
            same = run_real(console, Path(folder))
        if "why" in parts:
            console.rule("(b) Why: the same load on the same Triton")
            run_why(console, Path(folder) / "why")
    console.print(f"[dim]{time.monotonic() - started:.0f} s[/dim]")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
