"""What-if analysis: simulates recorded requests again under another policy or with other workers.

A question contains what was known when the requests arrived. Durations of stages are the profiles times factors drawn
from observed ratios.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from tidegate.api import NEVER_NS, Batch, Profile, ProfileKey, Request, RequestArrived, Setup, Worker
from tidegate.engine import FIRST_LEAD_NS, CancelStage, Engine
from tidegate.host import PluginError, Plugins
from tidegate.observation import EngineSettings, OutcomeListener
from tidegate.sim.cluster import Cluster
from tidegate.sim.event_queue import EventQueue
from tidegate.sim.interval import gain_interval
from tidegate.sim.simulation import Simulation
from tidegate.sim.true_latency import SimulatedWorker, TrueLatency

UNCHANGED_TITLE: Final = "unchanged"
MAX_IDLE_TIMERS: Final = 10_000
"""Maximum number of timers that fire in a row while nothing runs and requests wait."""
WHAT_IF_POLICIES: Final = ("symphony", "orloj", "eager", "nexus", "fifs")
"""Policies tried for models that are not split, if installed."""
POLICIES_OF_SPLIT: Final = ("ppipe", "reactive")
MORE_LOAD_FACTOR: Final = 1.1
OWN_BATCHER: Final = "triton"
"""Policy that behaves as Triton's own dynamic batcher."""
GAIN_BLOCKS: Final = 20
"""Number of blocks of successive requests of which the interval of a gain is computed."""
MIN_REQUESTS_FOR_GAIN: Final = 200


class WhatIfAlternative(msgspec.Struct, frozen=True):
    """A change to simulate; by default none."""

    name: str
    policy: str = ""
    """Name of another policy; empty: the recorded policy with its options."""
    options: dict[str, Any] = {}
    """Options of the other policy."""
    without: tuple[int, ...] = ()
    """Ids of removed workers."""
    twice: int | None = None
    """Id of a worker that is duplicated; None: none."""
    pace: float = 1.0
    """Factor on the request rate."""


class WhatIfQuestion(msgspec.Struct, frozen=True):
    """Recorded requests and the state when they arrived."""

    setup: Setup
    """Setup of the policy, with the learned profiles."""
    policy: str
    options: dict[str, Any]
    settings: EngineSettings
    requests: Sequence[Request]
    """Requests in order of arrival; their ids are replaced."""
    factors: Sequence[float] = ()
    """Observed ratios of actual to expected duration, to draw from; empty: durations as expected."""
    batcher: dict[str, Any] = {}
    """Configuration of the Tritons' own batchers, as options of the policy `triton`."""


class WhatIfAnswer(msgspec.Struct, frozen=True):
    """Results of one simulated change."""

    name: str
    share: float | None
    """Fraction of requests that would have been on time; None: unknown."""
    gain: tuple[float, float] | None = None
    """Bounds (95 %) of the difference of this fraction to that without a change; None: unknown."""
    models: dict[str, float] = {}
    """The same fraction by model."""
    why: str = ""
    """Why the attainment is unknown; empty otherwise."""


def usual_alternatives(question: WhatIfQuestion, installed: Plugins) -> list[WhatIfAlternative]:
    """Return the usual changes: none, Triton's own batcher, one worker less or more, 10 % more requests, and other
    policies."""
    setup = question.setup
    found = [WhatIfAlternative(UNCHANGED_TITLE)]
    is_split = any(model.pipelines for model in setup.models)
    if OWN_BATCHER in installed.policies and question.policy != OWN_BATCHER and not is_split:
        found.append(WhatIfAlternative("with Triton's own batcher", policy=OWN_BATCHER, options=question.batcher))
    if spare := _spare(setup):
        found.append(WhatIfAlternative(f"without worker {spare.name}", without=(spare.id,)))
    last = setup.workers[-1]
    found.append(WhatIfAlternative(f"with another worker like {last.name}", twice=last.id))
    found.append(WhatIfAlternative("with a tenth more requests", pace=MORE_LOAD_FACTOR))
    names = POLICIES_OF_SPLIT if is_split else WHAT_IF_POLICIES
    others = [name for name in names if name != question.policy and name in installed.policies]
    return [*found, *(WhatIfAlternative(f"with policy {name}", policy=name) for name in others)]


def _spare(setup: Setup) -> Worker | None:
    """Return the last worker whose partitions others host, too; None if all are needed."""
    hosts = Counter(partition for worker in setup.workers for partition in worker.hosts)
    spare = [worker for worker in setup.workers if all(hosts[each] > 1 for each in worker.hosts)]
    return spare[-1] if spare else None


def answers(
    question: WhatIfQuestion,
    alternatives: Sequence[WhatIfAlternative],
    plugins: Plugins,
    *,
    enough: Callable[[], bool] | None = None,
) -> list[WhatIfAnswer]:
    """Simulate several changes, and compare each with the first; the failure of a policy is a result, too.

    `enough`: called after each event; True ends the run.
    """
    found: list[WhatIfAnswer] = []
    baseline: bytearray | None = None
    for alternative in alternatives:
        answer, on_time = _simulated(question, alternative, plugins, enough)
        if baseline is None:
            baseline = on_time
        elif answer.share is not None and baseline and len(on_time) >= MIN_REQUESTS_FOR_GAIN:
            answer = replace(answer, gain=_gain(baseline, on_time))
        found.append(answer)
    return found


def _gain(baseline: bytearray, on_time: bytearray) -> tuple[float, float]:
    """The interval of the gain over blocks of successive requests."""
    ends = [round(number * len(on_time) / GAIN_BLOCKS) for number in range(GAIN_BLOCKS + 1)]
    blocks = [(end - start, sum(on_time[start:end]) - sum(baseline[start:end])) for start, end in pairwise(ends)]
    low, high = gain_interval(blocks)
    return round(low, 4), round(high, 4)


def _simulated(
    question: WhatIfQuestion,
    alternative: WhatIfAlternative,
    plugins: Plugins,
    enough: Callable[[], bool] | None,
) -> tuple[WhatIfAnswer, bytearray]:
    """The answer, and for each request 1 if it was answered on time; empty where there is no answer."""
    options = alternative.options if alternative.policy else question.options
    changed = replace(
        question,
        setup=_setup(question.setup, alternative),
        policy=alternative.policy or question.policy,
        options=options,
        requests=renumbered(question.requests, alternative.pace),
    )
    on_time = outcomes(changed, plugins, enough=enough)
    if isinstance(on_time, str):
        return WhatIfAnswer(alternative.name, None, why=on_time), bytearray()
    requests = changed.requests
    came = Counter(request.model for request in requests)
    well = Counter(request.model for request in requests if on_time[request.id])
    answer = WhatIfAnswer(
        alternative.name,
        well.total() / len(requests) if requests else None,
        models={model: well[model] / count for model, count in sorted(came.items())},
        why="" if requests else "nothing came",
    )
    return answer, on_time


def outcomes(
    question: WhatIfQuestion, plugins: Plugins, *, seed: int = 0, enough: Callable[[], bool] | None = None
) -> bytearray | str:
    """Simulate `renumbered` requests; return for each 1 if it is on time, or why that is unknown.

    `seed`: of policy and durations. `enough`: called after each event; True ends the run.
    """
    setup, settings, requests = question.setup, question.settings, question.requests
    try:
        policy = plugins.make_policy(question.policy, setup, dict(question.options))
        engine = Engine(
            policy,
            name=question.policy,
            strict=True,
            learn=settings.learn,
            max_tries=settings.max_tries,
            first_lead_ns=FIRST_LEAD_NS if settings.first_lead_ns else 0,
            priority_floors=settings.priority_floors,
        )
        ends = _Ends(len(requests))
        engine.reducer.add_listener(ends)
        cluster = _cluster(setup, requests, question.factors, seed)
        simulation = Simulation(engine, cluster, patience=MAX_IDLE_TIMERS, enough=enough)
        simulation.feed(RequestArrived(request.arrival_ns, request) for request in requests)
        simulation.run()
    except PluginError as wrong:
        return str(wrong)
    except Exception as fault:  # a policy may raise anything
        return f"the policy broke: {type(fault).__name__}: {fault}"
    return "it took too long to simulate" if enough is not None and enough() else ends.on_time


class _TritonCluster(Cluster):
    """Workers that end what they began: a Triton cancels nothing that runs."""

    def cancel(self, now_ns: int, effect: CancelStage, agenda: EventQueue) -> None:
        """Let the stage run."""


class _Ends(OutcomeListener):
    """Record of which requests were answered on time."""

    def __init__(self, requests: int) -> None:
        self.on_time = bytearray(requests)

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """A batch is answered."""
        for request in requests:
            self.on_time[request.id] = ended_ns <= request.deadline_ns


def _setup(setup: Setup, alternative: WhatIfAlternative) -> Setup:
    workers = [worker for worker in setup.workers if worker.id not in alternative.without]
    twice = next((worker for worker in workers if worker.id == alternative.twice), None)
    if twice is not None:
        number = 1 + max(worker.id for worker in workers)
        workers.append(replace(twice, id=number, name=f"{twice.name} (2)"))
    return replace(setup, workers=tuple(workers), first_batch_id=0)


def renumbered(requests: Sequence[Request], pace: float = 1.0) -> list[Request]:
    """Return the requests with ids and instants from 0 on, in the order of arrival; the time up to deadlines stays."""
    if not requests:
        return []
    base_ns = requests[0].arrival_ns
    renumbered = []
    for number, request in enumerate(requests):
        arrival_ns = round((request.arrival_ns - base_ns) / pace)
        later_ns = arrival_ns - request.arrival_ns
        renumbered.append(
            replace(
                request,
                id=number,
                arrival_ns=arrival_ns,
                deadline_ns=NEVER_NS if request.deadline_ns == NEVER_NS else request.deadline_ns + later_ns,
                late_until_ns=max(0, request.late_until_ns + later_ns) if request.late_until_ns else 0,
            )
        )
    return renumbered


def _cluster(setup: Setup, requests: Sequence[Request], factors: Sequence[float], seed: int) -> Cluster:
    rng = Random(seed)
    shapes = [request.shape for request in requests]
    tables: dict[ProfileKey, Sequence[int]] = {}
    for profile in setup.profiles:
        table = _table_ns(profile)
        tables[profile.key] = table
        if not profile.shape:  # where a shape starts from that is met for the first time
            for shape in set(shapes):
                tables.setdefault((profile.partition, profile.device_class, shape), table)
    drawn = (lambda: rng.choice(factors)) if factors else None
    workers = [
        SimulatedWorker(id=worker.id, device_class=worker.device_class, jitter=drawn) for worker in setup.workers
    ]
    return _TritonCluster(workers, TrueLatency(tables, shapes=shapes))


def _table_ns(profile: Profile) -> tuple[int, ...]:
    return tuple(map(profile.expected_ns, range(1, profile.max_rows + 1)))
