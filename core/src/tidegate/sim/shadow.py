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

from tidegate.api import NEVER_NS
from tidegate.engine import ResponseMargin
from tidegate.host import Plugins
from tidegate.sim.block_bootstrap import gain_interval
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
from tidegate.sim.triton_batch_stats import NOTHING_TOLD, TritonBatchStats, batch_stats_between
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
MAX_CALIBRATION_ERROR: Final = 0.03
"""Maximum difference between simulated and measured attainment of Triton's batcher."""
POLICY, PASSING, TUNED = 3, 4, 5
"""Columns of a bootstrap block."""


class ShadowWindow:
    """Sliding window of bypassed requests, and the reports on it. It reads no clock."""

    def __init__(self, begin: ShadowSetup, plugins: Plugins) -> None:
        self._begin = begin
        self._plugins = plugins
        self._batcher = OwnBatcher(begin, plugins)
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
        self._executed = [said for said in self._executed if said[0] >= since_ns]
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
        policy = [took is not None for took in replay_under_policy(begin, self._plugins, seen, headroom).took_ns]
        of_model = {model.name: self._told(model.name, seen, ended) for model in begin.setup.models}
        between_ns = (self._executed[0][0], self._executed[-1][0]) if self._executed else (0, 0)

        def on_time(took_ns: Sequence[int | None], way_ns: int) -> list[bool]:
            """For each request of `seen`, whether it meets its SLO when `way_ns` come on top of its duration."""
            return [
                took is not None
                and took + of_model[request.model].ways_ns + way_ns <= self._slo_ns.get(request.model, NEVER_NS)
                for request, took in zip(seen, took_ns, strict=False)
            ]

        own_ns = self._batcher.took_ns(all_seen, of_model, between_ns)
        tuned_ns = self._tuned.took_ns(
            all_seen,
            of_model,
            (self._batcher.begin_ms, own_ns),
            lambda took_ns: sum(on_time(took_ns, headroom.way_ns)),
        )
        simulated = (
            on_time(own_ns, 0),
            policy,
            on_time(own_ns, headroom.way_ns),
            on_time(tuned_ns, headroom.way_ns),
        )
        estimates = []
        for name in ("", *sorted(self._slo_ns)):
            counts = self._blocks(name, first_ns, seen, ended, simulated)
            if counts:
                estimates.append(self._estimate(name, counts))
        unsimulated = max(0, len(ended) - len(seen))
        window_s = (until_ns - first_ns) / NS_PER_S
        return ShadowReport(begin.policy, window_s, unsimulated, self._batcher.begin_ms, self._tuned.setting, estimates)

    def _blocks(
        self,
        name: str,
        first_ns: int,
        seen: Sequence[BypassedRequest],
        ended: Sequence[BypassedResponse],
        simulated: tuple[Sequence[bool], ...],
    ) -> list[list[int]]:
        """For each block: requests, and how many were on time as measured, under the batcher, under the policy, and,
        as the policy's are counted, under the batcher and under the tuned batcher."""
        blocks: dict[int, list[int]] = {}
        for request, *on_time in zip(seen, *simulated, strict=True):
            if request.model in self._slo_ns and name in ("", request.model):
                counts = blocks.setdefault((request.at_ns - first_ns) // BLOCK_NS, [0] * (2 + len(simulated)))
                counts[0] += 1
                for column, is_on_time in enumerate(on_time, 2):
                    counts[column] += is_on_time
        for answer in ended:
            block = (answer.at_ns - first_ns) // BLOCK_NS
            if answer.model in self._slo_ns and name in ("", answer.model) and block in blocks:
                blocks[block][1] += answer.ok and answer.took_ns <= self._slo_ns[answer.model]
        return [blocks[block] for block in sorted(blocks)]

    def _estimate(self, name: str, blocks: list[list[int]]) -> ShadowEstimate:
        requests, measured, batcher, policy, passing, tuned = (sum(column) for column in zip(*blocks, strict=True))
        error = (batcher - measured) / requests

        def gain_over(column: int) -> tuple[float, float] | None:
            most = (measured - batcher + sum(block[column] for block in blocks)) / requests
            return None if why else _interval(blocks, column, abs(error), most)

        why = self._why_not(name, requests, len(blocks), measured, error)
        return ShadowEstimate(
            name,
            requests,
            round(measured / requests, 4),
            round(batcher / requests, 4),
            round(passing / requests, 4),
            round(tuned / requests, 4),
            round(policy / requests, 4),
            round(error, 4),
            gain_over(PASSING),
            gain_over(TUNED),
            why,
        )

    def _why_not(self, name: str, requests: int, blocks: int, measured: int, error: float) -> str:
        guessed = [model for model in self._begin.guessed if name in ("", model)]
        if guessed:
            return f"no profile of {', '.join(guessed)} was measured: see tidegate profile"
        if requests < MIN_REQUESTS or blocks < MIN_BLOCKS:
            return f"{requests} requests in {blocks} blocks of {BLOCK_NS // NS_PER_S} s are too few"
        if measured > requests:
            return "more was answered than could have been scheduled: sequences, shared memory or the like pass, too"
        if abs(error) > MAX_CALIBRATION_ERROR:
            return f"the simulated batcher is {100 * error:+.1f} points from what was measured"
        return ""

    def _told(self, model: str, seen: Sequence[BypassedRequest], ended: Sequence[BypassedResponse]) -> TritonBatchStats:
        """Return the batch statistics of a model in the window; none for a model with several shapes."""
        if len({request.shape for request in seen if request.model == model}) > 1:
            return NOTHING_TOLD
        said = [(now_ns, of_models.get(model, {})) for now_ns, of_models in self._executed]
        return batch_stats_between(said, [answer for answer in ended if answer.model == model])


def _interval(blocks: list[list[int]], column: int, error: float, measured: float) -> tuple[float, float]:
    """95 % of the gain of the policy over a column of the blocks, wider by `error`.

    Where `measured` of the requests were on time, no more can be gained than the rest, nor more be lost than those.
    """
    low, high = gain_interval([(block[0], block[POLICY] - block[column]) for block in blocks])
    return round(max(-measured, low - error), 4), round(min(1 - measured, high + error), 4)
