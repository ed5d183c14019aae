"""Shadow mode: simulates a policy on requests that bypassed scheduling, and checks how far to trust the result.

The requests of a sliding window are simulated twice: under the policy, and under a model of Triton's own batcher. The
second result is compared with the measured one: beyond a difference of `MAX_CALIBRATION_ERROR` no gain is reported; a
smaller difference widens the interval of the gain. As when it schedules live, the policy gets deadlines that are
earlier by the response margin; for the comparison, a response of the batcher is on time only if it leaves that time,
too.

A profile is measured from outside, one request at a time, so it includes the network latency. A Triton starts its next
batch at once; how long its batches occupy an instance comes from its statistics (`TritonStatistics`).
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from tidegate.api import NEVER_NS
from tidegate.engine import ResponseMargin
from tidegate.host import Plugins
from tidegate.sim.interval import MAX_CALIBRATION_ERROR, gain_interval
from tidegate.sim.observed_profiles import (
    NO_BATCH_STATS,
    ProfileBounds,
    TritonBatchStats,
    batch_stats_between,
    profile_bounds,
)
from tidegate.sim.shadow_batcher import OwnBatcher, TunedBatcher
from tidegate.sim.shadow_messages import (
    BypassedRequest,
    BypassedResponse,
    BypassedTraffic,
    ShadowEstimate,
    ShadowReport,
    ShadowSetup,
    TritonStatistics,
)
from tidegate.sim.shadow_replay import replay_under_policy
from tidegate.workload.arrivals import NS_PER_S

WINDOW_NS: Final = 60 * NS_PER_S
"""Length of the window in ns."""
BLOCK_NS: Final = 5 * NS_PER_S
"""Length of a block of the bootstrap in ns: requests that arrive close to each other are not independent."""
SETTLING_NS: Final = 2 * NS_PER_S
"""Age in ns of the latest requests of a report; younger ones may still wait for their response."""
MAX_REQUESTS: Final = 20_000
"""Maximum number of requests in a window: the oldest are discarded, so memory and simulation time do not grow with
load.
"""
MIN_REQUESTS: Final = 200
MIN_BLOCKS: Final = 4
POLICY, PASSING, TUNED, QUICK_POLICY = 3, 4, 5, 6
"""Columns of a bootstrap block."""


class ShadowWindow:
    """Sliding window of bypassed requests, and the reports on it. It reads no clock."""

    def __init__(self, begin: ShadowSetup, plugins: Plugins) -> None:
        self._begin = begin
        self._plugins = plugins
        self._batcher = OwnBatcher(plugins)
        self._tuned = TunedBatcher(begin, plugins)
        self._seen: list[BypassedRequest] = []
        self._ended: list[BypassedResponse] = []
        self._executed: list[tuple[int, dict[str, dict[str, TritonStatistics]]]] = []
        """Statistics of the Tritons, by model and counters, with the time of each."""
        self._slo_ns = {model.name: model.slo_ns for model in begin.setup.models if model.slo_ns is not None}

    def take(self, passed: BypassedTraffic) -> None:
        """Add bypassed traffic, and remove what leaves the window."""
        since_ns = passed.now_ns - WINDOW_NS
        seen = sorted([*self._seen, *passed.seen], key=lambda request: request.at_ns)[-MAX_REQUESTS:]
        if seen and len(seen) == MAX_REQUESTS:
            since_ns = max(since_ns, seen[0].at_ns)
        self._seen = [request for request in seen if request.at_ns >= since_ns]
        ended = [*self._ended, *passed.ended][-2 * MAX_REQUESTS :]
        self._ended = [answer for answer in ended if answer.at_ns >= since_ns]
        self._executed = [each for each in self._executed if each[0] >= since_ns]
        if passed.executed:
            of_models: dict[str, dict[str, TritonStatistics]] = {}
            for each in passed.executed:
                of_models.setdefault(each.model, {})[each.counters] = each
            self._executed.append((passed.now_ns, of_models))

    def report(self, now_ns: int) -> ShadowReport:
        """Simulate the window, and return the report. Raises PluginError, and whatever a policy raises."""
        begin, until_ns = self._begin, now_ns - SETTLING_NS
        known = {model.name for model in begin.setup.models}
        all_seen = [request for request in self._seen if request.model in known]
        seen = [request for request in all_seen if request.at_ns < until_ns]
        if not seen:
            return ShadowReport(begin.policy, 0.0, 0, None, "", [])
        first_ns = seen[0].at_ns
        ended = [answer for answer in self._ended if first_ns <= answer.at_ns < until_ns]
        headroom = ResponseMargin()
        of_model = {model.name: self._batch_stats(model.name, seen, ended) for model in begin.setup.models}
        bounds = profile_bounds(begin, of_model)
        begin = replace(begin, setup=bounds.quick)
        quick = self._under_policy(begin, seen, headroom)
        slow = self._under_policy(replace(begin, setup=bounds.slow), seen, headroom) if bounds.differ else quick
        between_ns = (self._executed[0][0], self._executed[-1][0]) if self._executed else (0, 0)

        def on_time(took_ns: Sequence[int | None], network_latency_ns: int) -> list[bool]:
            """Return for each request of `seen` whether it meets its SLO with this additional network latency."""
            return [
                took is not None
                and took + of_model[request.model].network_latency_ns + network_latency_ns
                <= self._slo_ns.get(request.model, NEVER_NS)
                for request, took in zip(seen, took_ns, strict=False)
            ]

        own_ns = self._batcher.took_ns(begin, all_seen, of_model, between_ns)
        tuned_ns = self._tuned.took_ns(
            begin,
            all_seen,
            of_model,
            (self._batcher.begin_ms, own_ns),
            lambda took_ns: sum(on_time(took_ns, headroom.network_latency_ns)),
        )
        simulated = (
            on_time(own_ns, 0),
            slow,
            on_time(own_ns, headroom.network_latency_ns),
            on_time(tuned_ns, headroom.network_latency_ns),
            quick,
        )
        estimates = []
        for name in ("", *sorted(self._slo_ns)):
            counts = self._blocks(name, first_ns, seen, ended, simulated)
            if counts:
                requested = {request.model for request in seen if name in ("", request.model)}
                estimates.append(self._estimate(name, counts, requested, bounds))
        unsimulated = max(0, len(ended) - len(seen))
        window_s = (until_ns - first_ns) / NS_PER_S
        return ShadowReport(begin.policy, window_s, unsimulated, self._batcher.begin_ms, self._tuned.setting, estimates)

    def _under_policy(
        self, begin: ShadowSetup, seen: Sequence[BypassedRequest], headroom: ResponseMargin
    ) -> list[bool]:
        """Whether each request is on time under the policy."""
        return [took is not None for took in replay_under_policy(begin, self._plugins, seen, headroom).took_ns]

    def _blocks(
        self,
        name: str,
        first_ns: int,
        seen: Sequence[BypassedRequest],
        ended: Sequence[BypassedResponse],
        simulated: tuple[Sequence[bool], ...],
    ) -> list[list[int]]:
        """Return the columns of each block: requests, on time as measured, on time as simulated, responses."""
        blocks: dict[int, list[int]] = {}
        for request, *on_time in zip(seen, *simulated, strict=True):
            if request.model in self._slo_ns and name in ("", request.model):
                counts = blocks.setdefault((request.at_ns - first_ns) // BLOCK_NS, [0] * (3 + len(simulated)))
                counts[0] += 1
                for column, is_on_time in enumerate(on_time, 2):
                    counts[column] += is_on_time
        for answer in ended:
            block = (answer.at_ns - first_ns) // BLOCK_NS
            if answer.model in self._slo_ns and name in ("", answer.model) and block in blocks:
                blocks[block][1] += answer.ok and answer.took_ns <= self._slo_ns[answer.model]
                blocks[block][-1] += 1
        return [blocks[block] for block in sorted(blocks)]

    def _estimate(
        self, name: str, blocks: list[list[int]], requested: set[str], bounds: ProfileBounds
    ) -> ShadowEstimate:
        """Return the estimate for a model. `requested`: models of its requests; `bounds`: the profiles that count."""
        requests, measured, batcher, slow, passing, tuned, quick, answered = (
            sum(column) for column in zip(*blocks, strict=True)
        )
        # Responses to requests that could not be scheduled may be any of those that were on time.
        others = max(0, answered - requests)
        at_most = min(measured, requests)
        error = (batcher - at_most) / requests
        worst_error = max(abs(error), abs(batcher - max(0, measured - others)) / requests)

        def gain_over(column: int) -> tuple[float, float] | None:
            most = (at_most - batcher + sum(block[column] for block in blocks)) / requests
            if why:
                return None
            policies = (POLICY, QUICK_POLICY) if bounds.differ else (POLICY,)
            both = [_interval(blocks, column, worst_error, most, policy) for policy in policies]
            return min(low for low, _ in both), max(high for _, high in both)

        why = self._why_not(requests, len(blocks), others, worst_error, error, bounds.unknown & requested)
        return ShadowEstimate(
            name,
            requests,
            round(at_most / requests, 4),
            round(batcher / requests, 4),
            round(passing / requests, 4),
            round(tuned / requests, 4),
            round(min(slow, quick) / requests, 4),
            round(error, 4),
            gain_over(PASSING),
            gain_over(TUNED),
            why,
            self._doubt(requested, bounds, others),
        )

    def _why_not(
        self, requests: int, blocks: int, others: int, worst_error: float, error: float, unknown: frozenset[str]
    ) -> str:
        if unknown:
            return (
                f"no profile of {', '.join(sorted(unknown))} was measured, and no Triton gives statistics of its "
                "batches: see tidegate profile"
            )
        if requests < MIN_REQUESTS or blocks < MIN_BLOCKS:
            return (
                f"too few requests: {requests} in {blocks} blocks of {BLOCK_NS // NS_PER_S} s; {MIN_REQUESTS} in "
                f"{MIN_BLOCKS} blocks are needed"
            )
        if worst_error <= MAX_CALIBRATION_ERROR:
            return ""
        if abs(error) <= MAX_CALIBRATION_ERROR:
            return (
                f"{others} requests beside {requests} could not be scheduled, and used the GPUs too: sequences, shared "
                "memory or the like"
            )
        return f"the simulated batcher is {100 * error:+.1f} percentage points from what was measured"

    def _doubt(self, requested: set[str], bounds: ProfileBounds, others: int) -> str:
        """Return the assumptions of an estimate, as sentences."""
        doubts = [bounds.doubts[model] for model in sorted(requested.intersection(bounds.doubts))]
        if assumed := sorted(requested.intersection(self._begin.assumed)):
            doubts.append(f"As if scheduling: batched were set for {', '.join(assumed)}, as its Triton batches it.")
        if others:
            doubts.append(f"{others} requests could not be scheduled in any case.")
        return " ".join(doubts)

    def _batch_stats(
        self, model: str, seen: Sequence[BypassedRequest], ended: Sequence[BypassedResponse]
    ) -> TritonBatchStats:
        shapes = {request.shape for request in seen if request.model == model}
        if len(shapes) > 1 and model not in self._begin.guessed:
            return NO_BATCH_STATS
        counters = [(now_ns, of_models.get(model, {})) for now_ns, of_models in self._executed]
        return batch_stats_between(counters, [answer for answer in ended if answer.model == model])


def _interval(blocks: list[list[int]], column: int, error: float, measured: float, policy: int) -> tuple[float, float]:
    """95 % of the gain of a column `policy` over another column of the blocks, wider by `error`.

    Where `measured` of the requests were on time, no more can be gained than the rest, nor more be lost than those.
    """
    low, high = gain_interval([(block[0], block[policy] - block[column]) for block in blocks])
    return round(max(-measured, low - error), 4), round(min(1 - measured, high + error), 4)
