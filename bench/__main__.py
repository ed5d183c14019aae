"""Run every benchmark: `make bench`, or `python -m bench [--json FILE]`. Keep the machine otherwise idle.

Programs that take long or need data of the papers are run on their own, as `python -m bench.NAME`: faults,
dynamic_models, no_regret, live_regret, and those that reproduce papers (`bench/papers`).
"""

import os
import platform
from pathlib import Path
from typing import Any

from bench.added_latency import CALLERS, ROUNDS, bench_added_latency
from bench.common import console_of, parser_of, write_json
from bench.live_vs_simulated import bench_live_vs_simulated
from bench.saturation import bench_saturation
from bench.scheduler import bench_scheduler


def main() -> None:
    """Run the benchmarks, print their tables and write their figures."""
    parser = parser_of("bench", __doc__)
    parser.add_argument(
        "--only",
        choices=(
            "added_latency",
            "saturation",
            "scheduler",
            "live_vs_simulated",
        ),
        help="run one of them",
    )
    parser.add_argument(
        "--perf-analyzer", type=Path, metavar="PATH", help="added_latency, saturation: load by NVIDIA's perf_analyzer"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="PATH",
        help="added_latency, saturation: another checkout's `tidegate` beside ours",
    )
    parser.add_argument("--callers", type=int, nargs="+", metavar="N", help="added_latency: how many call at a time")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help="added_latency, saturation: how often each is measured"
    )
    parser.add_argument("--full", action="store_true", help="scheduler: every number of models with every of workers")
    arguments = parser.parse_args()
    console = console_of(120)
    console.print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    figures: dict[str, Any] = {}
    if arguments.only in (None, "added_latency"):
        figures["added_latency"] = bench_added_latency(
            console,
            arguments.perf_analyzer,
            arguments.against,
            tuple(arguments.callers or CALLERS),
            rounds=arguments.rounds,
        )
    if arguments.only in (None, "saturation"):
        figures["saturation"] = bench_saturation(
            console, arguments.perf_analyzer, arguments.against, rounds=arguments.rounds
        )
    if arguments.only in (None, "scheduler"):
        figures["scheduler"] = bench_scheduler(console, full=arguments.full)
    if arguments.only in (None, "live_vs_simulated"):
        figures["live_vs_simulated"] = bench_live_vs_simulated(console)
    write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
