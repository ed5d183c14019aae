"""CPU time of decisions: each policy with 300 requests queued and many applications, shapes or models.

    python -m bench.decisions --names 100 --of applications

The engine is overloaded and learns as in production; only the policy's handling of each event is timed, in CPU time of
the thread.
"""

import gc
import random
import time
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final

import msgspec
import numpy as np
from rich.console import Console

from bench.common import parser_of, print_table, write_json
from tidegate.api import (
    AnyEvent,
    Commands,
    LatencyDistribution,
    LatencyDistributionUpdated,
    Model,
    Policy,
    Profile,
    Request,
    RequestArrived,
    Setup,
    StageFinished,
    Worker,
    ms_to_ns,
)
from tidegate.engine import AnyStimulus, ClockAdvanced, Engine, StartStage
from tidegate.host import Plugins

KINDS: Final = ("applications", "shapes", "models")
WORKERS: Final = 4
FIXED_MS, ROW_MS, MAX_ROWS = 8.0, 2.0, 16
NOISE_CV: Final = 0.2
POINTS: Final = 64
TELL_EVERY: Final = 50
"""Number of requests after which latency distributions change; more often than in production."""
BY_APPLICATION: Final = {"parts": [{"models": ["*"], "policy": "clockwork", "separate_applications": True}]}


class World:
    """An engine kept at a constant number of queued requests, with many applications, shapes or models."""

    def __init__(self, name: str, of: str, names: int, waiting: int, seed: int) -> None:
        self._of, self._names, self._waiting = of, names, waiting
        self._rng = random.Random(seed)
        models = [f"m{number}" for number in range(names if of == "models" else 1)]
        self._models = models
        slo_ns = ms_to_ns(40 * waiting / WORKERS)
        setup = Setup(
            models=tuple(Model(model, MAX_ROWS, slo_ns=slo_ns) for model in models),
            workers=tuple(Worker(number, f"w{number}", tuple(models)) for number in range(WORKERS)),
            profiles=tuple(
                Profile.linear(model, alpha_ms=ROW_MS, beta_ms=FIXED_MS, max_rows=MAX_ROWS) for model in models
            ),
            latency_distributions=tuple(self._times(number) for number in range(names if of == "applications" else 0)),
        )
        policy = Plugins.installed().make_policy(name, setup, BY_APPLICATION if name == "by-model" else {})
        self._slo_ns = slo_ns
        self._engine = Engine(policy, name=name, strict=True)
        self.taken_ms: list[tuple[float, str]] = []
        self._measure(policy)
        self._app: dict[int, int] = {}
        self._ends: list[tuple[int, int, StartStage]] = []
        self._now_ns = 0

    def _measure(self, policy: Policy) -> None:
        handle, taken_ms = policy.handle, self.taken_ms

        def timed(event: AnyEvent) -> Commands:
            began_ns = time.thread_time_ns()
            commands = handle(event)
            taken_ms.append(((time.thread_time_ns() - began_ns) / 1e6, type(event).__name__))
            return commands

        policy.handle = timed  # type: ignore[method-assign]

    def _times(self, number: int) -> LatencyDistribution:
        """Return the standalone times that the policy knows of an application; the engine learns their spread."""
        own_ms = self._own_ms(number)
        scale = own_ms / (FIXED_MS + own_ms)
        points_ms = [own_ms * (0.7 + 0.6 * (at + 0.5) / POINTS) / scale for at in range(POINTS)]
        return LatencyDistribution(
            "m0", f"app {number}", "default", tuple(map(ms_to_ns, points_ms)), FIXED_MS * 1e6, scale
        )

    def _own_ms(self, number: int) -> float:
        return ROW_MS * (0.2 + 2 * number / self._names)

    def tell(self) -> None:
        """Send the engine slightly longer latency distributions for as many random applications as fit one batch."""
        slower = 1 + self._rng.random() / 10
        for number in self._rng.sample(range(self._names), min(self._names, MAX_ROWS)):
            times = self._times(number)
            moved = tuple(round(slower * each) for each in times.times_ns)
            event = LatencyDistributionUpdated(self._now_ns, msgspec.structs.replace(times, times_ns=moved))
            self._engine.policy.handle(event)

    def run(self, requests: int) -> None:
        """Run until `requests` have arrived; each arrives as soon as the queue has room."""
        for request in self._requests(requests):
            while self._engine.queued >= self._waiting:
                self._go_on()
            self._handle(RequestArrived(self._now_ns, request))
            if self._of == "applications" and request.id % TELL_EVERY == 0:
                self.tell()

    def _requests(self, count: int) -> Iterator[Request]:
        for number in range(len(self._app), len(self._app) + count):
            chosen = min(self._names - 1, int(self._rng.expovariate(3 / self._names)))
            self._app[number] = chosen
            due_ns = self._now_ns + round(self._slo_ns * self._rng.uniform(0.3, 1))
            yield Request(
                number,
                self._models[chosen if self._of == "models" else 0],
                1,
                self._now_ns,
                due_ns,
                app=f"app {chosen}" if self._of == "applications" else "",
                shape=f"{chosen + 1}x32" if self._of == "shapes" else "",
            )

    def _go_on(self) -> None:
        """The next stage ends, unless the engine is to be woken before."""
        end_ns, _, effect = self._ends[0] if self._ends else (None, 0, None)
        wake_ns = self._engine.next_wake_ns
        if effect is None or end_ns is None or (wake_ns is not None and wake_ns < end_ns):
            assert wake_ns is not None, "something waits, and nothing is to happen"
            self._now_ns = max(self._now_ns, wake_ns)
            self._handle(ClockAdvanced(self._now_ns))
            return
        heappop(self._ends)
        self._now_ns = max(self._now_ns, end_ns)
        stage = effect.batch.stages[effect.stage]
        started_ns = min(self._now_ns, max(stage.start_ns, 0))
        self._handle(
            StageFinished(self._now_ns, effect.batch.id, effect.stage, stage.worker_id, started_ns, self._now_ns)
        )

    def _handle(self, event: AnyStimulus) -> None:
        for effect in self._engine.handle(event):
            if isinstance(effect, StartStage):
                longest = max(self._app[request_id] for request_id in effect.batch.request_ids)
                own_ms = self._own_ms(longest) * self._rng.uniform(0.7, 1.3)
                took_ms = (FIXED_MS + effect.rows * own_ms) * self._rng.lognormvariate(0, NOISE_CV)
                heappush(self._ends, (self._now_ns + ms_to_ns(took_ms), effect.batch.id, effect))


def measure(name: str, of: str, names: int, waiting: int, requests: int, seed: int = 1) -> dict[str, Any]:
    """Measure the decision time of a policy with a full queue.

    `name`: policy; `of`: what there are many of: applications, shapes or models; `names`: how many of these; `waiting`:
    number of queued requests; `requests`: number of requests measured; `seed`: of the random draws.
    """
    world = World(name, of, names, waiting, seed)
    world.run(waiting)
    world.taken_ms.clear()
    gc.collect()
    gc.disable()  # a collection is due to all that the process holds
    try:
        world.run(requests)
    finally:
        gc.enable()
    taken_ms = [each for each, _ in world.taken_ms]
    p50_ms, p99_ms, p999_ms = (float(each) for each in np.quantile(taken_ms, (0.5, 0.99, 0.999)))
    most_ms, slowest = max(world.taken_ms)
    figures = {"p50_ms": p50_ms, "p99_ms": p99_ms, "p999_ms": p999_ms, "max_ms": most_ms, "slowest": slowest}
    return {"policy": name, "of": of, "names": names, "waiting": waiting, "events": len(taken_ms), **figures}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the policies, print a table and write the figures."""
    parser = parser_of("bench.decisions", __doc__)
    parser.add_argument("--names", type=int, nargs="+", default=[100], help="how many names; default 100")
    parser.add_argument("--of", nargs="+", choices=KINDS, default=list(KINDS), help="what has names; default: each")
    parser.add_argument("--waiting", type=int, default=300, help="requests that wait; default 300")
    parser.add_argument("--requests", type=int, default=6000, help="that arrive; default 6000")
    parser.add_argument("--policies", nargs="+", help="default: all that are installed")
    options = parser.parse_args(arguments)
    console = Console()
    rows = [
        measure(name, of, names, options.waiting, options.requests)
        for name in options.policies or sorted(Plugins.installed().policies)
        for of in options.of
        for names in options.names
    ]
    shown = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
    cells = (
        (
            row["policy"],
            f"{row['names']} {row['of']}",
            row["events"],
            *(f"{row[each]:.2f}" for each in shown),
            row["slowest"],
        )
        for row in rows
    )
    columns = ("policy", "names", "events", "p50", "p99", "p99.9", "most", "of")
    print_table(console, "A decision, ms of CPU", columns, cells)
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
