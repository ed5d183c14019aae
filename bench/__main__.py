"""Run every benchmark: `make bench`, or `python -m bench [--json FILE]`. Nothing else should run meanwhile."""

import argparse
import json
import os
import platform
from pathlib import Path

from rich.console import Console

from bench.front import bench_front
from bench.scheduler import bench_scheduler
from bench.subclusters import bench_subclusters


def main() -> None:
    """Run them, print their tables, write their figures."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 120)
    console.print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    figures = {
        "front": bench_front(console),
        "scheduler": bench_scheduler(console),
        "subclusters": bench_subclusters(console),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
