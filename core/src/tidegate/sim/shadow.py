"""What a policy would have done with requests that passed a Tidegate untouched, and how far that is to be believed.

The requests of a sliding window go through the simulator twice: under the policy, and under a model of Triton's own
batcher. Of the second it is also known what was measured: where the two differ by more than `BELIEVED` nothing is
promised, and where they differ by less the interval of the gain is wider by as much. The policy is given
deadlines that are earlier by what is kept free for the way back, as it is where it schedules; so what the batcher
answers is in time, when both are compared, if the time of that way is left, too.

A profile is measured from outside, one request at a time, so that its batches take the ways to the Triton and back. A
Triton goes on with its next batch at once: what its batches occupy an instance for, it says itself (`Executed`).
"""

from array import array
from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from tidegate.api import NEVER, Profile, RequestArrived, Setup
from tidegate.engine import FIRST_LEAD_NS, Engine, Headroom
from tidegate.host import Plugins
from tidegate.sim.cluster import Cluster
from tidegate.sim.record import ANSWERED, LATE, Record
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
FEWEST: Final = 5
"""Batches of one size, whose mean is believed."""
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


class Executed(msgspec.Struct, array_like=True, frozen=True):
    """What the Tritons' statistics say of a model, of all time."""

    model: str
    answered: int
    answered_ns: int
    """From when they had a request until they had its answer, summed over the answered."""
    batches: list[tuple[int, int, int]]
    """Rows of a batch, how many of so many rows were executed, and the sum of what they took, in ns."""


class Passed(msgspec.Struct, tag="passed", frozen=True):
    """What passed since the last message."""

    now_ns: int
    seen: list[Seen]
    ended: list[Ended]
    report: bool
    """Whether a report is wanted now."""
    executed: list[Executed] = []
    """What the Tritons have executed by now; empty where that was not asked for."""


class Estimate(msgspec.Struct, frozen=True):
    """What is said of one model, or (`model` empty) of all that have an SLO. Attainments are shares, 0 to 1."""

    model: str
    requests: int
    measured: float
    """Attainment of what passed."""
    batcher: float
    """The same, simulated: Triton's own batcher."""
    passing: float
    """The same by the clients' clock, so far as that is known: as the policy's is counted."""
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
        self._executed: list[tuple[int, dict[str, Executed]]] = []
        """What the Tritons had executed, and when they said so."""
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
        self._executed = [said for said in self._executed if said[0] >= since_ns]
        if passed.executed:
            self._executed.append((passed.now_ns, {each.model: each for each in passed.executed}))

    def report(self, now_ns: int) -> Report:
        """Simulate the window. Raises PluginError, and whatever a policy raises."""
        begin, until_ns = self._begin, now_ns - SETTLING_NS
        known = {model.name for model in begin.setup.models}
        seen = [request for request in self._seen if request.at_ns < until_ns and request.model in known]
        if not seen:
            return Report(begin.policy, 0.0, 0, [])
        first_ns = seen[0].at_ns
        ended = [answer for answer in self._ended if first_ns <= answer.at_ns < until_ns]
        headroom = Headroom()
        took_ns = self._took(begin.policy, begin.options, seen, headroom, {})
        policy = [took is not None for took in took_ns]
        occupied = {model.name: self._occupied(model.name, seen, ended) for model in begin.setup.models}
        took_ns = self._took("triton", begin.batcher, seen, None, occupied)
        batcher, passing = list[bool](), list[bool]()
        for request, took in zip(seen, took_ns, strict=True):
            slo_ns = self._slo_ns.get(request.model, NEVER)
            all_ns = None if took is None else took + occupied[request.model].ways_ns
            batcher.append(all_ns is not None and all_ns <= slo_ns)
            passing.append(all_ns is not None and all_ns + headroom.way_ns <= slo_ns)
        estimates = []
        for name in ("", *sorted(self._slo_ns)):
            counts = self._blocks(name, first_ns, seen, ended, (batcher, policy, passing))
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
        simulated: tuple[Sequence[bool], Sequence[bool], Sequence[bool]],
    ) -> list[list[int]]:
        """For each block: requests, and how many were in time as measured, under the batcher, under the policy, and
        under the batcher as the policy's are counted."""
        blocks: dict[int, list[int]] = {}
        for request, *in_time in zip(seen, *simulated, strict=True):
            if request.model in self._slo_ns and name in ("", request.model):
                counts = blocks.setdefault((request.at_ns - first_ns) // BLOCK_NS, [0, 0, 0, 0, 0])
                counts[0] += 1
                for column, is_in_time in enumerate(in_time, 2):
                    counts[column] += is_in_time
        for answer in ended:
            block = (answer.at_ns - first_ns) // BLOCK_NS
            if answer.model in self._slo_ns and name in ("", answer.model) and block in blocks:
                blocks[block][1] += answer.ok and answer.took_ns <= self._slo_ns[answer.model]
        return [blocks[block] for block in sorted(blocks)]

    def _estimate(self, name: str, blocks: list[list[int]]) -> Estimate:
        requests, measured, batcher, policy, passing = (sum(column) for column in zip(*blocks, strict=True))
        error = (batcher - measured) / requests
        why = self._why_not(name, requests, len(blocks), measured, error)
        return Estimate(
            name,
            requests,
            round(measured / requests, 4),
            round(batcher / requests, 4),
            round(passing / requests, 4),
            round(policy / requests, 4),
            round(error, 4),
            None if why else _interval(blocks, abs(error), (measured - batcher + passing) / requests),
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

    def _occupied(self, model: str, seen: Sequence[Seen], ended: Sequence[Ended]) -> "_Occupied":
        """For how long batches of a model keep an instance, as the Tritons said within the window.

        Not of models that wait for each other's workers: a rate limiter hands a GPU over no sooner than an answer is
        on its way.
        """
        if any(model in worker.hosts and len(worker.hosts) > 1 for worker in self._begin.setup.workers):
            return _Occupied()
        said = [(now_ns, each[model]) for now_ns, each in self._executed if model in each]
        if len(said) < 2 or len({request.shape for request in seen if request.model == model}) > 1:
            return _Occupied()
        (since_ns, first), (until_ns, last) = said[0], said[-1]
        took_ns = [
            each.took_ns for each in ended if each.ok and each.model == model and since_ns <= each.at_ns < until_ns
        ]
        answered = last.answered - first.answered
        before = {rows: (count, total_ns) for rows, count, total_ns in first.batches}
        counted = {
            rows: (count - before.get(rows, (0, 0))[0], total_ns - before.get(rows, (0, 0))[1])
            for rows, count, total_ns in last.batches
        }
        batches = {rows: (count, total_ns / count) for rows, (count, total_ns) in counted.items() if count > 0}
        if answered <= 0 or not took_ns or not batches:
            return _Occupied()
        inside_ns = (last.answered_ns - first.answered_ns) / answered
        return _Occupied(max(0, round(sum(took_ns) / len(took_ns) - inside_ns)), batches)

    def _took(
        self,
        policy: str,
        options: dict[str, Any],
        seen: Sequence[Seen],
        headroom: Headroom | None,
        occupied: Mapping[str, "_Occupied"],
    ) -> list[int | None]:
        """What requests took from their arrival to their answer, simulated; None where they had none in time.

        Without `headroom` whatever is answered counts. `occupied`: for how long batches keep an instance, where it is
        not what the profiles say.
        """
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
            profile.key: occupied.get(profile.partition, _Occupied()).table_ns(profile) for profile in setup.profiles
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
        wanted = (ANSWERED,) if headroom else (ANSWERED, LATE)
        return [
            ended_ns - request.arrival_ns if outcome in wanted else None
            for outcome, ended_ns, request in zip(record.outcome, record.ended_ns, sequence, strict=True)
        ]


class _Occupied(NamedTuple):
    """For how long batches of a model keep an instance, and for how long its requests are on their way."""

    ways_ns: int = 0
    batches: Mapping[int, tuple[int, float]] = MappingProxyType({})
    """How many of so many rows there were, and what they took on average, in ns."""

    def table_ns(self, profile: Profile) -> tuple[int, ...]:
        """What batches of 1, 2, ... rows take: sizes of which there were none differ from the profile as the others."""
        expected_ns = [profile.expected_ns(rows) for rows in range(1, profile.max_rows + 1)]
        known = {rows: each for rows, each in self.batches.items() if rows <= profile.max_rows}
        if not known:
            return tuple(expected_ns)
        counted = sum(count for count, _ in known.values())
        off_ns = sum(count * (mean_ns - expected_ns[rows - 1]) for rows, (count, mean_ns) in known.items()) / counted
        return tuple(
            max(1, round(known[rows][1] if rows in known and known[rows][0] >= FEWEST else each_ns + off_ns))
            for rows, each_ns in enumerate(expected_ns, 1)
        )


def _interval(blocks: list[list[int]], error: float, measured: float) -> tuple[float, float]:
    """95 % of the gain of the policy over the batcher, the blocks drawn again and again; wider by `error`.

    Where `measured` of the requests were in time, no more can be gained than the rest, nor more be lost than those.
    """
    rng = Random(0)
    gains = []
    for _ in range(DRAWS):
        drawn = rng.choices(blocks, k=len(blocks))
        gains.append(sum(block[3] - block[4] for block in drawn) / sum(block[0] for block in drawn))
    gains.sort()
    low, high = gains[round(0.025 * (DRAWS - 1))], gains[round(0.975 * (DRAWS - 1))]
    return round(max(-measured, low - error), 4), round(min(1 - measured, high + error), 4)
