"""The tuner of a policy: which policies to compare on a window of traffic, and when to replace the present one.

Pure, as the engine is: a driver calls `begin` with a window when `next_wake_ns` has come, has the returned job compared
(`policy_comparison`) and calls `decide` with the result. It gives the returned events to the engine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api import NEVER_NS, Setup
from tidegate.control.settings import TuningOptions
from tidegate.observation import PolicyChanged, PolicyTuned
from tidegate.observation.stimuli import TuningVerdict
from tidegate.sim.interval import MAX_CALIBRATION_ERROR, Interval, interval_of
from tidegate.sim.tuning.candidates import PolicyCandidate
from tidegate.sim.tuning.policy_comparison import GAIN_BLOCKS, CandidateOutcome, Comparison, ComparisonJob
from tidegate.sim.tuning.traffic_window import (
    ENOUGH_REQUESTS,
    MIN_REQUESTS,
    LoadFingerprint,
    TrafficWindow,
    fingerprint_of,
)
from tidegate.sim.what_if import WhatIfQuestion

BURST_NS: Final = 2_000_000_000
"""Maximum CPU time in ns that is saved up."""


class CpuBudget:
    """Budget of CPU time for comparisons: a fraction of one core, averaged over time. The caller passes the time."""

    def __init__(self, fraction: float, now_ns: int) -> None:
        """Create a budget that has nothing to spend yet at `now_ns`. `fraction`: part of one core, 0 to 1."""
        self._fraction = fraction
        self._at_ns = now_ns
        self._saved_ns = 0.0

    def spend(self, now_ns: int, cpu_ns: int) -> int:
        """Record that `cpu_ns` of CPU time were spent; return for how many ns no more may be spent."""
        self._saved_ns = min(BURST_NS, self._saved_ns + self._fraction * (now_ns - self._at_ns)) - cpu_ns
        self._at_ns = now_ns
        return max(0, round(-self._saved_ns / self._fraction))


MAX_MODEL_LOSS: Final = 0.05
"""A candidate may cost no model more attainment than this."""
MAX_REST: Final = 32
"""Number of windows of the same load, at most, between two searches that find nothing."""
TRIAL_WINDOWS: Final = 3
"""Number of windows without a loss after which the new policy is confirmed."""
RUNNERS_UP: Final = 2
"""Number of candidates that are compared again beside the best."""
BAN_NS: Final = 300_000_000_000
"""Time in ns for which a policy that performed worse is not a candidate; doubled each time."""
MAX_REMEMBERED: Final = 50
SETTLING_NS: Final = 1_000_000_000
"""Time in ns between a change of the policy and the start of its window."""

Events = list[PolicyTuned | PolicyChanged]


@dataclass
class _Trial:
    """A policy that was put in place recently."""

    former: PolicyCandidate
    error: float
    """Simulated minus measured attainment of the former policy."""
    windows: int = 0


class PolicyTuner:
    """Tuner of one engine's policy."""

    def __init__(
        self,
        options: TuningOptions,
        first: PolicyCandidate,
        candidates: Callable[[Setup], list[PolicyCandidate]],
        *,
        now_ns: int = 0,
    ) -> None:
        """`first`: the policy that decides at the start; `candidates`: all that may decide over these models."""
        self.present = first
        """The policy that decides."""
        self.verdict = PolicyTuned(now_ns, "kept", first.title, "no window of traffic has passed yet")
        """The latest verdict."""
        self._options = options
        self._first = first
        self._candidates = candidates
        self._interval_ns = round(options.interval_s * 1e9)
        self._since_ns = now_ns
        self._due_ns = now_ns + self._interval_ns
        self._seen_ns = now_ns
        """End of the latest window."""
        self._awaited: tuple[LoadFingerprint, int] | None = None
        """The load that the awaited result is about, and the end of its window."""
        self._jobs = 0
        self._leaders: list[PolicyCandidate] = []
        """The candidate that was better in the window before, and the next ones."""
        self._enough_requests = 0
        """Requests of the window in which the leader has to be better, at most."""
        self._trial: _Trial | None = None
        self._searched: LoadFingerprint | None = None
        """The load of the latest search that found nothing better."""
        self._rest = self._rests_left = 0
        self._remembered: list[tuple[LoadFingerprint, PolicyCandidate]] = []
        self._banned: dict[str, tuple[int, int]] = {}
        """Policies that disappointed, by title: how often, and until when they are no candidates."""
        self._reported: tuple[str, str, str] | None = None

    @property
    def next_wake_ns(self) -> int:
        """Time in ns for the next call of `begin`."""
        return NEVER_NS if self._awaited is not None else self._due_ns

    @property
    def since_ns(self) -> int:
        """Begin of the present window."""
        return self._since_ns

    def disturbed(self, now_ns: int) -> None:
        """Restart with the traffic from now on, after workers joined or left."""
        self._awaited, self._leaders, self._trial = None, [], None
        self._next_window(now_ns)

    def begin(self, window: TrafficWindow) -> tuple[ComparisonJob | None, Events]:
        """Return the comparison to run on this window, and events for the engine; None: no comparison, for the reason
        in the verdict.
        """
        now_ns = window.now_ns
        self._due_ns = now_ns + self._interval_ns
        if len(window.requests) < MIN_REQUESTS:  # the window goes on
            return None, self._keep(now_ns, "few", f"{len(window.requests)} requests are too few to compare policies")
        load, latest, is_steady = self._load_of(window)
        if not is_steady:
            self._leaders = []
            self._next_window(window.until_ns)
            if len(latest.requests) < MIN_REQUESTS or self._recalled(load) in (None, self.present):
                return None, self._keep(now_ns, "unsteady", "the load changed within the window: waiting for the next")
            window = latest
        candidates, why = self._to_compare(window, load)
        if not candidates:
            return None, self._keep(now_ns, why, why)
        self._jobs += 1
        question = WhatIfQuestion(window.setup, "", {}, window.settings, window.requests, window.factors)
        on_time, fraction = list(window.on_time), self._options.cpu_fraction
        job = ComparisonJob(question, on_time, candidates, self._jobs, fraction)
        self._awaited = load, window.until_ns
        return job, []

    def decide(self, now_ns: int, found: Comparison | str) -> Events:
        """Handle the result of the comparison, or the reason why there is none; ignored if workers joined or left
        meanwhile.
        """
        if self._awaited is None:
            return []
        (load, until_ns), self._awaited = self._awaited, None
        self._due_ns = max(now_ns, until_ns + self._interval_ns)
        if isinstance(found, str):
            return self._keep(now_ns, "no result", f"the comparison has no result: {found}")
        if found.outcomes[0].why:
            return self._keep(now_ns, "broken", f"{self.present.title} cannot be simulated: {found.outcomes[0].why}")
        if self._trial is not None:
            self._since_ns = until_ns
            return self._judge_trial(now_ns, self._trial, found, load)
        return self._judge(now_ns, until_ns, load, found)

    def refused(self, now_ns: int, why: str) -> Events:
        """Handle the engine's rejection of the policy that was to replace the present one."""
        rejected, trial, self._trial = self.present, self._trial, None
        if trial is not None:
            self.present = trial.former
        self._banned[rejected.title] = 1, now_ns + BAN_NS
        return self._keep(now_ns, "refused", f"{rejected.title} was refused: {why}")

    # What to compare ---------------------------------------------------------------------------------------------

    def _load_of(self, window: TrafficWindow) -> tuple[LoadFingerprint, TrafficWindow, bool]:
        """The load, the part of the window that is new, and whether that is like the part before."""
        middle_ns = (window.since_ns + window.until_ns) // 2
        split_ns = self._seen_ns if window.since_ns < self._seen_ns < window.until_ns else middle_ns
        self._seen_ns = window.until_ns
        workers = tuple(sorted(worker.id for worker in window.setup.workers))
        latest = window.since(split_ns)
        before = [each for each in window.requests if each.arrival_ns < split_ns]
        if not (before and latest.requests):
            return fingerprint_of(window.requests, window.since_ns, window.until_ns, workers), latest, False
        new = fingerprint_of(latest.requests, split_ns, window.until_ns, workers)
        if not new.is_like(fingerprint_of(before, window.since_ns, split_ns, workers)):
            return new, latest, False
        return fingerprint_of(window.requests, window.since_ns, window.until_ns, workers), latest, True

    def _to_compare(self, window: TrafficWindow, load: LoadFingerprint) -> tuple[list[PolicyCandidate], str]:
        """The present policy and the candidates; or none, and why."""
        if self._trial is not None:
            return [self.present, self._trial.former], ""
        if window.attainment > 1 - self._options.min_improvement:
            self._leaders = []
            return [], f"{self.present.title} answers nearly all requests on time, so nothing can be gained"
        recalled = self._recalled(load)
        if recalled is not None and not recalled.is_like(self.present):
            return [self.present, recalled], ""
        if not self._leaders and self._searched is not None and self._searched.is_like(load) and self._rests_left:
            self._rests_left -= 1
            return [], f"no policy was better than {self.present.title} under this load"
        return [self.present, *(self._leaders or self._others(window))], ""

    def _others(self, window: TrafficWindow) -> list[PolicyCandidate]:
        """All candidates but the present policy, each once, and without those that disappointed.

        Of equally good ones the earlier wins: first the options of the policy at the start.
        """
        found: list[PolicyCandidate] = []
        candidates = sorted(self._candidates(window.setup), key=lambda each: each.policy != self._first.policy)
        for each in (self._first, *candidates):
            _, banned_until_ns = self._banned.get(each.title, (0, 0))
            if banned_until_ns <= window.now_ns and not any(each.is_like(other) for other in (self.present, *found)):
                found.append(each)
        return found

    def _recalled(self, load: LoadFingerprint) -> PolicyCandidate | None:
        """The policy that was confirmed under this load; None: it is new."""
        return next((choice for known, choice in reversed(self._remembered) if known.is_like(load)), None)

    # What follows ------------------------------------------------------------------------------------------------

    def _judge(self, now_ns: int, until_ns: int, load: LoadFingerprint, found: Comparison) -> Events:
        """Replace the present policy if one is better, and was in the window before."""
        present, recalled = found.outcomes[0], self._recalled(load)
        able = [each for each in found.outcomes[1:] if each.blocks and not _costs_a_model(present, each)]
        able.sort(key=lambda each: -each.on_time)
        leader = self._leaders[0] if self._leaders else None
        best = next((each for each in able if leader is None or each.candidate.is_like(leader)), present)
        gain = _gain(best.blocks, present.blocks, found.requests)
        if gain.low <= 0 or gain.mean < self._options.min_improvement:
            if leader and gain.mean >= self._options.min_improvement and sum(found.requests) < self._enough_requests:
                return self._keep(now_ns, "leads", f"{_words(best, present, gain, found)}; waiting for more requests")
            self._leaders = []
            self._rest_under(load)
            if recalled is not None and recalled.is_like(best.candidate):
                self._forget(recalled)
            return self._keep(now_ns, "best", f"no policy is better than {self.present.title} beyond chance")
        error = _gain(present.blocks, found.measured, found.requests)
        if max(error.low, -error.high) > max(MAX_CALIBRATION_ERROR, gain.low / 2):
            self._leaders = []
            words = f"the simulated {self.present.title} is {100 * error.mean:+.1f} points from what was measured"
            return self._keep(now_ns, "disagrees", f"{words}: no policy is replaced")
        is_known = recalled is not None and recalled.is_like(best.candidate)
        if leader is None and not is_known:
            self._leaders = [each.candidate for each in able[: 1 + RUNNERS_UP]]
            self._enough_requests = min(2 * sum(found.requests), ENOUGH_REQUESTS * GAIN_BLOCKS // (GAIN_BLOCKS + 1))
            self._since_ns = until_ns
            return self._keep(now_ns, "leads", f"{_words(best, present, gain, found)}; waiting for another window")
        reason = (
            f"{_words(best, present, gain, found)}, {'as before under this load' if is_known else 'in two windows'}"
        )
        self._leaders = []
        if self._options.dry_run:
            self._rest_under(load)
            return self._tell(now_ns, "proposed", "", best.candidate, f"auto would run {reason}", gain)
        self._trial = _Trial(self.present, error.mean)
        return self._replace(now_ns, "replaced", best.candidate, reason, gain)

    def _judge_trial(self, now_ns: int, trial: _Trial, found: Comparison, load: LoadFingerprint) -> Events:
        """Compare what was measured under the new policy with what the former one would have had."""
        former = found.outcomes[1]
        if former.why:
            self._trial = None
            return self._keep(now_ns, "broken", f"{former.candidate.title} cannot be simulated: {former.why}")
        expected = [on_time - trial.error * count for on_time, count in zip(former.blocks, found.requests, strict=True)]
        gain = _gain(found.measured, expected, found.requests)
        trial.windows += 1
        if gain.high < 0:
            disappointed, self._trial = self.present, None
            times, _ = self._banned.get(disappointed.title, (0, 0))
            self._banned[disappointed.title] = times + 1, now_ns + BAN_NS * 2 ** min(times, 6)
            self._forget(disappointed)
            reason = (
                f"{disappointed.title} answers fewer requests on time than {trial.former.title} would: {_range(gain)}"
            )
            return self._replace(now_ns, "reverted", trial.former, reason, gain)
        if gain.low > 0 or trial.windows >= TRIAL_WINDOWS:
            self._trial = None
            self._remembered = [each for each in self._remembered if not each[0].is_like(load)][1 - MAX_REMEMBERED :]
            self._remembered.append((load, self.present))
            self._rest_under(load)
        return self._keep(
            now_ns, "confirmed", f"{self.present.title} against {trial.former.title}: {_range(gain)}", gain
        )

    def _rest_under(self, load: LoadFingerprint) -> None:
        """Search under this load again after some windows, which become more each time."""
        is_known = self._searched is not None and self._searched.is_like(load)
        self._rest = min(MAX_REST, 2 * self._rest) if is_known else 1
        self._searched, self._rests_left = load, self._rest

    def _forget(self, choice: PolicyCandidate) -> None:
        self._remembered = [each for each in self._remembered if not each[1].is_like(choice)]

    def _replace(
        self, now_ns: int, verdict: TuningVerdict, choice: PolicyCandidate, reason: str, gain: Interval
    ) -> Events:
        self.present = choice
        self._next_window(now_ns + SETTLING_NS)
        events = self._tell(now_ns, verdict, "", choice, reason, gain)
        return [*events, PolicyChanged(now_ns, choice.policy, dict(choice.options))]

    def _next_window(self, since_ns: int) -> None:
        self._since_ns, self._due_ns = since_ns, since_ns + self._interval_ns

    def _keep(self, now_ns: int, word: str, reason: str, gain: Interval | None = None) -> Events:
        return self._tell(now_ns, "kept", word, self.present, reason, gain)

    def _tell(
        self,
        now_ns: int,
        verdict: TuningVerdict,
        word: str,
        choice: PolicyCandidate,
        reason: str,
        gain: Interval | None,
    ) -> Events:
        """Set the verdict; return it unless the latest one said the same with other numbers."""
        bounds = None if gain is None else (round(gain.low, 4), round(gain.high, 4))
        self.verdict = PolicyTuned(now_ns, verdict, choice.title, reason, bounds)
        before, self._reported = self._reported, (verdict, word, choice.title)
        return [] if before == self._reported else [self.verdict]


def _costs_a_model(present: CandidateOutcome, other: CandidateOutcome) -> bool:
    return any(other.models.get(name, 0.0) < had - MAX_MODEL_LOSS for name, had in present.models.items())


def _gain(ours: Sequence[float], theirs: Sequence[float], requests: Sequence[int]) -> Interval:
    """The difference of attainment, with its interval over blocks."""
    scale = GAIN_BLOCKS / max(1, sum(requests))
    return interval_of([scale * (our - their) for our, their in zip(ours, theirs, strict=True)], -1.0, 1.0)


def _words(best: CandidateOutcome, present: CandidateOutcome, gain: Interval, found: Comparison) -> str:
    total = sum(found.requests)
    ours, theirs = (100 * each.on_time / total for each in (best, present))
    return (
        f"{best.candidate.title}: {_range(gain)}, as {ours:.1f} % of {total} requests are on time when simulated, and "
        f"{theirs:.1f} % with {present.candidate.title}"
    )


def _range(gain: Interval) -> str:
    return f"{100 * gain.mean:+.1f} points ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
