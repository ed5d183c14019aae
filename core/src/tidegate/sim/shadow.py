"""What a policy would have done with requests that passed a Tidegate untouched, and how far that is to be believed.

The requests of a sliding window go through the simulator twice: under the policy, and under a model of Triton's own
batcher. Of the second it is also known what was measured: where the two differ by more than `BELIEVED` nothing is
promised, and where they differ by less the interval of the gain is wider by as much. The policy is given
deadlines that are earlier by what is kept free for the way back, as it is where it schedules.
"""

from array import array
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from tidegate.api import NEVER, RequestArrived, Setup
from tidegate.engine import FIRST_LEAD_NS, Engine, Headroom
from tidegate.host import Plugins
from tidegate.sim.cluster import Cluster
from tidegate.sim.record import ANSWERED, Record
from tidegate.sim.simulation import Simulation
from tidegate.sim.truth import SimulatedWorker, Truth
from tidegate.workload import RequestSequence
from tidegate.workload.arrivals import NS_PER_S

WINDOW_NS: Final = 60 * NS_PER_S
"""How far back an estimate looks."""
BLOCK_NS: Final = 5 * NS_PER_S
"""Requests that arrive within so long of each other share their luck: the bootstrap draws such blocks."""
SETTLING_NS: Final = 2 * NS_PER_S
"""The latest requests are left out: their answers may not have been seen yet."""
MOST_REQUESTS: Final = 20_000
"""A window has no more: the oldest are forgotten, so that neither memory nor a simulation grows with the load."""
ENOUGH_REQUESTS: Final = 200
ENOUGH_BLOCKS: Final = 4
BELIEVED: Final = 0.03
"""The attainment of the simulated batcher may differ from the measured one by so much."""
DRAWS: Final = 1000
PATIENCE: Final = 100_000


class Begin(msgspec.Struct, tag="begin", frozen=True):
    """What there is: sent first, and again when it changes, which empties the window."""

    setup: Setup
    policy: str
    options: dict[str, Any]
    batcher: dict[str, Any]
    """Options of the policy `triton`: how the Tritons' own batchers are configured."""
    guessed: tuple[str, ...]
    """Models of which no profile was measured on some of their workers: nothing is promised with those."""


class Seen(msgspec.Struct, array_like=True, frozen=True):
    """One request that passed."""

    at_ns: int
    model: str
    rows: int
    merge_key: str
    shape: str


class Ended(msgspec.Struct, array_like=True, frozen=True):
    """One answer to a request that passed."""

    at_ns: int
    """When its request was sent."""
    model: str
    took_ns: int
    ok: bool


class Passed(msgspec.Struct, tag="passed", frozen=True):
    """What passed since the last message."""

    now_ns: int
    seen: list[Seen]
    ended: list[Ended]
    report: bool
    """Whether a report is wanted now."""


class Estimate(msgspec.Struct, frozen=True):
    """What is said of one model, or (`model` empty) of all that have an SLO. Attainments are shares, 0 to 1."""

    model: str
    requests: int
    measured: float
    """Attainment of what passed."""
    batcher: float
    """The same, simulated: Triton's own batcher."""
    policy: float
    """Simulated: the policy."""
    error: float
    """`batcher` less `measured`: by how much the simulator is wrong where that can be seen."""
    gain: tuple[float, float] | None
    """95 % interval of what the policy adds to the attainment, widened by `error`; None: nothing is promised."""
    why: str
    """Why nothing is promised; else empty."""


class Report(msgspec.Struct, frozen=True):
    """What is said of a window."""

    policy: str
    window_s: float
    unsimulated: int
    """Answers to requests that no policy could have scheduled."""
    estimates: list[Estimate]


class Shadow:
    """The window, and what follows from it. Holds no clock."""

    def __init__(self, begin: Begin, plugins: Plugins) -> None:
        self._begin = begin
        self._plugins = plugins
        self._seen: list[Seen] = []
        self._ended: list[Ended] = []
        self._slo_ns = {model.name: model.slo_ns for model in begin.setup.models if model.slo_ns is not None}

    def take(self, passed: Passed) -> None:
        """Let the window slide."""
        since_ns = passed.now_ns - WINDOW_NS
        seen = sorted([*self._seen, *passed.seen], key=lambda request: request.at_ns)[-MOST_REQUESTS:]
        if seen and len(seen) == MOST_REQUESTS:
            since_ns = max(since_ns, seen[0].at_ns)
        self._seen = [request for request in seen if request.at_ns >= since_ns]
        ended = [*self._ended, *passed.ended][-2 * MOST_REQUESTS :]
        self._ended = [answer for answer in ended if answer.at_ns >= since_ns]

    def report(self, now_ns: int) -> Report:
        """Simulate the window. Raises PluginError, and whatever a policy raises."""
        begin, until_ns = self._begin, now_ns - SETTLING_NS
        known = {model.name for model in begin.setup.models}
        seen = [request for request in self._seen if request.at_ns < until_ns and request.model in known]
        if not seen:
            return Report(begin.policy, 0.0, 0, [])
        first_ns = seen[0].at_ns
        ended = [answer for answer in self._ended if first_ns <= answer.at_ns < until_ns]
        policy = self._in_time(begin.policy, begin.options, seen, Headroom())
        batcher = self._in_time("triton", begin.batcher, seen, None)
        estimates = []
        for name in ("", *sorted(self._slo_ns)):
            counts = self._blocks(name, first_ns, seen, ended, batcher, policy)
            if counts:
                estimates.append(self._estimate(name, counts))
        unsimulated = max(0, len(ended) - len(seen))
        return Report(begin.policy, (until_ns - first_ns) / NS_PER_S, unsimulated, estimates)

    def _blocks(
        self,
        name: str,
        first_ns: int,
        seen: Sequence[Seen],
        ended: Sequence[Ended],
        batcher: Sequence[bool],
        policy: Sequence[bool],
    ) -> list[list[int]]:
        """For each block: requests, and how many were in time as measured, under the batcher, under the policy."""
        blocks: dict[int, list[int]] = {}
        for request, by_batcher, by_policy in zip(seen, batcher, policy, strict=True):
            if request.model in self._slo_ns and name in ("", request.model):
                counts = blocks.setdefault((request.at_ns - first_ns) // BLOCK_NS, [0, 0, 0, 0])
                counts[0] += 1
                counts[2] += by_batcher
                counts[3] += by_policy
        for answer in ended:
            block = (answer.at_ns - first_ns) // BLOCK_NS
            if answer.model in self._slo_ns and name in ("", answer.model) and block in blocks:
                blocks[block][1] += answer.ok and answer.took_ns <= self._slo_ns[answer.model]
        return [blocks[block] for block in sorted(blocks)]

    def _estimate(self, name: str, blocks: list[list[int]]) -> Estimate:
        requests, measured, batcher, policy = (sum(column) for column in zip(*blocks, strict=True))
        error = (batcher - measured) / requests
        why = self._why_not(name, requests, len(blocks), measured, error)
        return Estimate(
            name,
            requests,
            round(measured / requests, 4),
            round(batcher / requests, 4),
            round(policy / requests, 4),
            round(error, 4),
            None if why else _interval(blocks, abs(error), measured / requests),
            why,
        )

    def _why_not(self, name: str, requests: int, blocks: int, measured: int, error: float) -> str:
        guessed = [model for model in self._begin.guessed if name in ("", model)]
        if guessed:
            return f"no profile of {', '.join(guessed)} was measured: see tidegate profile"
        if requests < ENOUGH_REQUESTS or blocks < ENOUGH_BLOCKS:
            return f"{requests} requests in {blocks} blocks of {BLOCK_NS // NS_PER_S} s are too few"
        if measured > requests:
            return "more was answered than could have been scheduled: sequences, shared memory or the like pass, too"
        if abs(error) > BELIEVED:
            return f"the simulated batcher is {100 * error:+.1f} points from what was measured"
        return ""

    def _in_time(
        self, policy: str, options: dict[str, Any], seen: Sequence[Seen], headroom: Headroom | None
    ) -> list[bool]:
        """Which requests are answered in time, simulated. A model without an SLO is always in time."""
        setup, first_ns = self._begin.setup, seen[0].at_ns
        names = tuple(model.name for model in setup.models)
        of_name = {name: index for index, name in enumerate(names)}
        known = {profile.key for profile in setup.profiles}
        shaped = {(key[0], key[2]) for key in known}
        shapes = tuple(request.shape if (request.model, request.shape) in shaped else "" for request in seen)
        sequence = RequestSequence(
            models=names,
            slos_ns=tuple(self._slo_ns.get(name, NEVER) for name in names),
            at_ns=array("q", [request.at_ns - first_ns for request in seen]),
            model=array("q", [of_name[request.model] for request in seen]),
            rows=array("q", [request.rows for request in seen]),
            apps=None,
            shapes=shapes,
            times_ms=None,
            served_late=frozenset(model.name for model in setup.models if model.late == "serve" and model.slo_ns),
        )
        record = Record(sequence)
        tables = {
            profile.key: tuple(map(profile.expected_ns, range(1, profile.max_rows + 1))) for profile in setup.profiles
        }
        cluster = Cluster(
            [SimulatedWorker(worker.id, worker.kind) for worker in setup.workers], Truth(tables, None, {}, shapes)
        )
        made = self._plugins.make_policy(policy, setup, options)
        engine = Engine(made, name=policy, strict=True, learn=False, first_lead_ns=FIRST_LEAD_NS)
        engine.reducer.tell(record)
        simulation = Simulation(engine, cluster, patience=PATIENCE)
        due = headroom.before if headroom else lambda deadline_ns, _: deadline_ns
        simulation.feed(
            RequestArrived(
                request.arrival_ns,
                replace(request, merge_key=passed.merge_key, deadline_ns=due(request.deadline_ns, request.arrival_ns)),
            )
            for request, passed in zip(sequence, seen, strict=True)
        )
        simulation.run()
        return [outcome == ANSWERED for outcome in record.outcome]


def _interval(blocks: list[list[int]], error: float, measured: float) -> tuple[float, float]:
    """95 % of the gain of the policy over the batcher, the blocks drawn again and again; wider by `error`.

    Where `measured` of the requests were in time, no more can be gained than the rest, nor more be lost than those.
    """
    rng = Random(0)
    gains = []
    for _ in range(DRAWS):
        drawn = rng.choices(blocks, k=len(blocks))
        gains.append(sum(block[3] - block[2] for block in drawn) / sum(block[0] for block in drawn))
    gains.sort()
    low, high = gains[round(0.025 * (DRAWS - 1))], gains[round(0.975 * (DRAWS - 1))]
    return round(max(-measured, low - error), 4), round(min(1 - measured, high + error), 4)
