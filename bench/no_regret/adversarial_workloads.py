"""Adversarial and unusual traffic, defined request by request, as scenario files cannot.

Four workers, one model of 2 ms per row and 8 ms per batch, an SLO of 80 ms, execution times with a CV of 20 %. The main
figure is the attainment of honest clients, which send ordinary requests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, median
from typing import Any

from msgspec.structs import replace

from bench.no_regret.baselines import DEFAULT, TRITON, triton_choices
from tidegate.api import (
    NEVER_NS,
    NS_PER_MS,
    Batch,
    Model,
    Profile,
    Request,
    RequestArrived,
    Setup,
    Worker,
    WorkerJoined,
    WorkerLost,
    ms_to_ns,
)
from tidegate.engine import AnyStimulus, Engine, StartStage
from tidegate.host import Plugins
from tidegate.observation import OutcomeListener
from tidegate.sim import ExactWorkers, Simulation
from tidegate.sim.workers import Execution, Outcome, finished
from tidegate.workload import PolicyChoice, stream
from tidegate_proxy.configuration.config import PolicyChoice as ServedPolicy

TRUE = Profile.linear("m", alpha_ms=2, beta_ms=8, max_rows=32)
SLO_MS = 80.0
WORKERS = tuple(Worker(number, f"w{number}", ("m",)) for number in range(4))
PEAK_RPS = 400.0 * len(WORKERS)
"""Capacity in requests/s with batches of sixteen, 40 ms each, half of the SLO."""
ALONE_RPS = 100.0 * len(WORKERS)
"""Capacity in requests/s with batches of one."""
CV = 0.2
SECONDS = 5.0
HONEST = "honest"
PATIENCE = 100_000
"""Maximum number of timers that fire in a row without another event; then the policy is in a loop."""


@dataclass(frozen=True)
class Crowd:
    """A Poisson stream of requests of one client."""

    rate_rps: float
    client: str = HONEST
    slo_ms: float = SLO_MS
    since_s: float = 0.0
    until_s: float = SECONDS
    apart: bool = False
    """Whether each request has its own merge key, so that none share a batch."""
    widths: bool = False
    """Whether each request has its own shape, of 100 to 300, which takes as many percent of the usual time."""

    def requests(self, draw: Random) -> Iterator[Request]:
        """Yield the requests in order of arrival, without ids."""
        at_s = self.since_s
        while (at_s := at_s + draw.expovariate(self.rate_rps)) < self.until_s:
            at_ns = round(at_s * 1e9)
            shape = f"x:3,48,{draw.randint(100, 300)}" if self.widths else ""
            key = shape or (f"k{at_ns}" if self.apart else "")
            due_ns = at_ns + ms_to_ns(self.slo_ms)
            yield Request(0, "m", 1, at_ns, due_ns, key, client=self.client, shape=shape)


@dataclass(frozen=True)
class Attack:
    """An attack: streams of requests, and faults of profiles and workers. Picklable."""

    name: str
    crowds: tuple[Crowd, ...]
    light: bool = False
    """Whether median latencies are compared too."""
    told_times: float = 1.0
    """Factor by which profiles overstate execution times."""
    turns: tuple[float, float] = (0.0, 1.0)
    """An instant in seconds, and the factor by which batches slow down from it."""
    stall_s: tuple[float, float] = (0.0, 0.0)
    """Interval in seconds in which the first `stalled` workers stall."""
    stalled: int = 0
    """Number of workers that stall."""
    away: tuple[tuple[int, float, float], ...] = field(default=())
    """Workers that are lost: id, seconds of the loss and of the return."""

    def requests(self, seed: int) -> list[Request]:
        """Return the requests of all streams in order of arrival."""
        drawn = [
            request
            for number, crowd in enumerate(self.crowds)
            for request in crowd.requests(stream(seed, self.name, number))
        ]
        drawn.sort(key=lambda request: request.arrival_ns)
        return [replace(request, id=number) for number, request in enumerate(drawn)]

    def execution(self, seed: int, shapes: Sequence[str]) -> Execution:
        """Return the function that simulates execution times.

        Args:
            seed: of the jitter.
            shapes: shape of each request, by id; policies may see only shape classes.
        """
        factors = [stream(seed, "jitter", worker.id) for worker in WORKERS]

        def execute(effect: StartStage, started_ns: int) -> Outcome:
            worker_id = effect.batch.stages[0].worker_id
            shape = shapes[effect.batch.request_ids[0]]
            times = factors[worker_id].lognormvariate(-CV * CV / 2, CV)
            times *= int(shape.rsplit(",", 1)[1]) / 100 if shape else 1
            times *= self.turns[1] if started_ns >= self.turns[0] * 1e9 else 1
            ended_ns = started_ns + max(1, round(times * TRUE.expected_ns(effect.rows)))
            since_ns, until_ns = (round(at_s * 1e9) for at_s in self.stall_s)
            if worker_id < self.stalled and started_ns < until_ns and ended_ns > since_ns:
                ended_ns += until_ns - max(started_ns, since_ns)
            return finished(effect, started_ns, ended_ns)

        return execute


def attacks() -> list[Attack]:
    """Return all attacks."""
    found = []
    for load in (0.05, 0.3, 0.6, 0.9):
        usual = Crowd(load * PEAK_RPS)

        def attack(name: str, *crowds: Crowd, load: float = load, usual: Crowd = usual, **how: Any) -> Attack:  # noqa: ANN401
            light = load * how.get("turns", (0, 1))[1] <= 0.3
            return Attack(f"{name}, load {load:g}", crowds or (usual,), light, **how)

        for share, slo_ms, name in (
            (0.5, 0, "no time at all"),
            (0.5, 6, "half of what it takes alone"),
            (0.1, 12, "hardly what it takes alone"),
            (0.5, 12, "hardly what it takes alone"),
            (0.5, 25, "a third of the usual time"),
            (0.5, 1000, "a second"),
            (0.1, 1e12, "ages"),
        ):
            others = Crowd(share * load * PEAK_RPS, "odd", slo_ms)
            found.append(attack(f"{share:.0%} have {name}", Crowd((1 - share) * load * PEAK_RPS), others))
        found += [
            attack("twice as slow after 2 s", turns=(2, 2.0)),
            attack("ten times quicker after 2 s", turns=(2, 0.1)),
            attack("profile ten times too long", told_times=10),
            attack("profile ten times too short", told_times=0.1),
            attack("a worker stalls for 2 s", stall_s=(1, 3), stalled=1),
            attack("all stall for 10 s", Crowd(load * PEAK_RPS, until_s=14), stall_s=(2, 12), stalled=len(WORKERS)),
            attack("two workers die and return", away=((0, 2.0, 3.0), (1, 2.5, 3.5))),
        ]
    for load in (0.1, 0.5, 0.8, 1.2):
        found += [
            Attack(f"no two share a batch, load {load:g}", (Crowd(load * ALONE_RPS, apart=True),), load <= 0.3),
            Attack(f"no two have a shape, load {load:g}", (Crowd(load * ALONE_RPS / 2, widths=True),), load <= 0.3),
        ]
    few = Crowd(0.2 * PEAK_RPS)
    return [
        *found,
        Attack("a flood of another client", (few, Crowd(2 * PEAK_RPS, "flood"))),
        Attack("a flood of which no two share a batch", (few, Crowd(2 * ALONE_RPS, "flood", apart=True))),
        *(
            Attack(
                f"a crowd and then few, who have {slo_ms / 1000:g} s",
                (Crowd(PEAK_RPS, slo_ms=slo_ms, until_s=1), Crowd(0.5, slo_ms=slo_ms, since_s=1, until_s=60)),
            )
            for slo_ms in (5e3, 3.6e6)
        ),
    ]


def contenders() -> list[PolicyChoice]:
    """Return the default policy, and Triton's batcher with each of the tuned settings."""
    return [PolicyChoice(name=ServedPolicy().name, label=DEFAULT), *triton_choices({"m": SLO_MS})]


class _Answers(OutcomeListener):
    """When each request was answered, by id."""

    def __init__(self) -> None:
        self.ended_ns: dict[int, int] = {}

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """The last stage of a batch finished."""
        self.ended_ns.update((request.id, ended_ns) for request in requests)


def suffer(attack: Attack, choice: PolicyChoice, seed: int) -> dict[str, float]:
    """Simulate an attack under a policy; return the attainment of honest clients and of all, and the median and maximum
    latency of honest clients in ms.

    Args:
        attack: the attack.
        choice: the policy.
        seed: of the draws.
    """
    requests = attack.requests(seed)
    honest = [request for request in requests if request.client == HONEST]
    if choice.name == TRITON:  # Triton does not tell clients apart
        requests = [replace(request, client="") for request in requests]
    setup = Setup((Model("m", TRUE.max_rows, slo_ns=ms_to_ns(SLO_MS)),), WORKERS, (TRUE.scaled(attack.told_times),))
    engine = Engine(Plugins.installed().make_policy(choice.name, setup, choice.options), name=choice.name, strict=True)
    answers = _Answers()
    engine.reducer.add_listener(answers)
    execution = attack.execution(seed, [request.shape for request in requests])
    simulation = Simulation(engine, ExactWorkers(execution), patience=PATIENCE)
    events: list[AnyStimulus] = []
    for number, lost_s, joined_s in attack.away:
        events += [WorkerLost(round(lost_s * 1e9), number), WorkerJoined(round(joined_s * 1e9), WORKERS[number])]
    simulation.schedule(sorted(events, key=lambda event: event.now_ns))
    simulation.feed(RequestArrived(request.arrival_ns, request) for request in requests)
    simulation.run()
    ended_ns = answers.ended_ns
    took_ms = [(ended_ns[each.id] - each.arrival_ns) / NS_PER_MS for each in honest if each.id in ended_ns]
    return {
        "honest": fmean(ended_ns.get(each.id, NEVER_NS) <= each.deadline_ns for each in honest),
        "all": fmean(ended_ns.get(each.id, NEVER_NS) <= each.deadline_ns for each in requests),
        "p50_ms": median(took_ms),
        "longest_ms": max(took_ms),
    }


@dataclass(frozen=True)
class AttackTask:
    """An attack and its number of seeds. Picklable."""

    attack: Attack
    seeds: int


def measure_attack(task: AttackTask) -> dict[str, Any]:
    """Compare the default policy with Triton's batcher under an attack; return means over the seeds."""
    means = {}
    for choice in contenders():
        each = [suffer(task.attack, choice, seed) for seed in range(task.seeds)]
        means[choice.title] = {name: fmean(one[name] for one in each) for name in each[0]}
    ours, plain = means[DEFAULT], means[contenders()[1].title]
    best = {who: max(mean[who] for name, mean in means.items() if name != DEFAULT) for who in ("honest", "all")}
    return {
        "attack": task.attack.name,
        "light": task.attack.light,
        "figures": means,
        **{f"over_triton_{who}": 100 * (ours[who] - best[who]) for who in best},
        "median_ratio": ours["p50_ms"] / plain["p50_ms"],
    }
