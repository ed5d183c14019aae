"""Comparison of two versions of a model: outcomes of requests (canary), and responses to copies (shadow)."""

import math
from enum import Enum
from typing import Any, Final

import msgspec

from tidegate_proxy.messages.merging import ScatterError, read_answer
from tidegate_proxy.rollout.client_outcomes import ClientOutcomes
from tidegate_proxy.rollout.comparison import Comparison, ModelComparison, wilson
from tidegate_proxy.service import batch_verification

NO_LIMIT_NS: Final = 1 << 62
"""Latency limit in ns that every answer meets."""
MIN_COPIES_TO_REJECT: Final = 20
"""Number of copies from which a candidate can be found worse."""
MIN_COPIES_TO_PASS: Final = 200
"""Number of copies from which a candidate can be found as good."""
MIN_REQUESTS_TO_REJECT: Final = 20
"""Number of ended requests of the candidate from which its errors alone can decide."""
LATENCY_Z: Final = 1.96
"""Standard deviations around a mean that contain 95 % of a normal distribution."""
GROUP_WORDS: Final = ("of the new version", "of the stable one")
"""Words for both groups of requests."""


class Verdict(Enum):
    """Verdict on a candidate: worse, as good, or none yet."""

    NONE = "none"
    AS_GOOD = "as good"
    WORSE = "worse"


class RequestEnd(Enum):
    """End of a request that a version was given."""

    ANSWERED = "answered"
    REJECTED = "rejected"
    """Tidegate answered instead, or the client left: late, and no error of the version."""
    INVALID = "invalid"
    """Triton found the request invalid: an error of the client, unless only this version finds it so."""
    FAILED = "failed"


class RequestComparison:
    """Outcomes of the requests that each version was given: attainment, and requests without error.

    It is the comparison of the canary of policies, in the same blocks of time; an error counts at once as well.

    Invalid requests are errors in both groups alike, which cancels out where versions are drawn by request. Where they
    are drawn by client, one client can have all of them: `ClientOutcomes`.
    """

    def __init__(self, model: str, tolerance: float, begins_ns: int = 0) -> None:
        """Create the comparison. `tolerance`: loss that counts as none; `begins_ns`: see `Comparison`."""
        self._model = model
        self._tolerance = tolerance
        self._comparisons = {"attainment": Comparison(begins_ns), "errors": Comparison(begins_ns)}
        self._compared: dict[str, ModelComparison] = {}
        self.clients = ClientOutcomes(tolerance)
        """Outcomes in total, and by client."""

    def began(self, now_ns: int, *, is_candidate: bool) -> None:
        """Record that a version was given a request."""
        self._comparisons["attainment"].drew(now_ns, self._model, scheduled=is_candidate)

    def ended(
        self, began_ns: int, ended_ns: int, slo_ns: int, end: RequestEnd, *, is_candidate: bool, client: str = ""
    ) -> None:
        """Record the end of a request of either version, by whether `is_candidate`.

        `began_ns`, `ended_ns`: instants of its beginning and end; `slo_ns`: SLO of the model; `client`: whose version
        was drawn; "": it was drawn for this request.
        """
        took_ns = ended_ns - began_ns
        is_error = end in (RequestEnd.INVALID, RequestEnd.FAILED)
        has_time = end in (RequestEnd.ANSWERED, RequestEnd.INVALID)  # to find a request invalid takes its time as well
        is_returned = self.clients.is_returned(client) and not is_candidate
        is_late = not has_time or took_ns > slo_ns
        self.clients.add(client, ended_ns, is_candidate=is_candidate, is_late=is_late, is_error=is_error)
        if is_returned:
            return
        if has_time:
            self._comparisons["attainment"].answered(began_ns, self._model, took_ns, slo_ns, scheduled=is_candidate)
        self._comparisons["errors"].drew(began_ns, self._model, scheduled=is_candidate)
        if not is_error:
            self._comparisons["errors"].answered(began_ns, self._model, took_ns, NO_LIMIT_NS, scheduled=is_candidate)

    def verdict(self, now_ns: int) -> tuple[Verdict, str]:
        """Settle blocks up to now; return the verdict and its reason."""
        for name, comparison in self._comparisons.items():
            comparison.settle(now_ns)
            self._compared[name] = comparison.of(self._model, has_slo=True, groups=GROUP_WORDS)
        self.clients.settle(now_ns)
        words = []
        gains = self.intervals()
        for name, gain in gains.items():
            if gain is None:
                return Verdict.NONE, self._compared[name].why
            low, high = gain
            words.append(f"{_NAMES[name]} {100 * low:+.1f} to {100 * high:+.1f} percentage points")
        said = "; ".join(words)
        worse = [name for name, gain in gains.items() if gain and gain[1] < -self._tolerance]
        if any(map(self.clients.persists, worse)):
            return Verdict.WORSE, said
        if worse:
            return Verdict.NONE, f"{said}; without one client it is not worse"
        if undecided := self.clients.undecided:
            return Verdict.NONE, f"{said}; clients that failed and got the stable version again: {undecided}"
        is_as_good = all(gain and gain[0] >= -self._tolerance for gain in gains.values())
        if is_as_good and not self.clients.hides("errors"):
            return Verdict.AS_GOOD, said
        return Verdict.NONE, said

    def why_hopeless(self) -> str:
        """Return why the candidate's errors leave no doubt; "" if they do."""
        if words := self.clients.fault():
            return words
        new = self.clients.rest("errors", is_candidate=True)
        stable = self.clients.rest("errors", is_candidate=False)
        if new.ended < MIN_REQUESTS_TO_REJECT:
            return ""
        low, _ = wilson(new.errors / new.ended, new.ended)
        most = wilson(stable.errors / stable.ended, stable.ended)[1] if stable.ended else 1.0
        if low <= most + self._tolerance:
            return ""
        return (
            f"{new.errors} of {new.ended} requests of the new version failed, and "
            f"{stable.errors} of {stable.ended} of the stable one"
        )

    def intervals(self) -> dict[str, tuple[float, float] | None]:
        """Return the 95 % intervals of what the candidate gains, by comparison; None: not known."""
        return {name: compared.gain for name, compared in self._compared.items()}

    def document(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        return {
            name: {
                "candidate": msgspec.to_builtins(compared.scheduled),
                "stable": msgspec.to_builtins(compared.passed),
                "gain": compared.gain,
                "why": compared.why,
            }
            for name, compared in self._compared.items()
        }


_NAMES: Final = {"attainment": "attainment", "errors": "requests without error"}


class ResponseComparison:
    """Responses of both versions to copies of the same requests, and how long they took.

    The slowdown is the geometric mean of the ratios of both latencies of a copy.
    """

    def __init__(self, min_agreement: float, max_slowdown: float) -> None:
        self._min_agreement = min_agreement
        self._max_slowdown = max_slowdown
        self.left_out = 0
        """Requests that were to be copied and were not: another copy ran, no idle Triton, sequences, shared memory."""
        self._copies = self._alike = self._failed = self._stable_failed = 0
        self._ratios = 0
        self._sum = self._sum_of_squares = 0.0
        self._latest_difference = ""

    def add(self, stable: tuple[bytes | str, int], candidate: tuple[bytes | str, int], difference: str) -> None:
        """Record what both answered: a response, or an error as text; and the ns that it took.

        `stable`, `candidate`: of either version; `difference`: how the responses differ (`why_different`).
        """
        (answer, took_ns), (other, other_ns) = stable, candidate
        if isinstance(answer, str):  # what the stable version cannot answer compares nothing
            self._stable_failed += 1
            return
        self._copies += 1
        if isinstance(other, str):
            self._failed += 1
            self._latest_difference = other
            return
        ratio = math.log(max(1, other_ns) / max(1, took_ns))
        self._ratios += 1
        self._sum += ratio
        self._sum_of_squares += ratio * ratio
        if difference:
            self._latest_difference = difference
        else:
            self._alike += 1

    def verdict(self, _now_ns: int) -> tuple[Verdict, str]:
        """Return the verdict and its reason."""
        intervals = self.intervals()
        agreement, slowdown = intervals["agreement"], intervals["slowdown"]
        if self._copies < MIN_COPIES_TO_REJECT or agreement is None:
            return Verdict.NONE, f"{self._copies} copies are compared, {MIN_COPIES_TO_PASS} are needed"
        said = f"of {self._copies} copies {100 * agreement[0]:.1f} to {100 * agreement[1]:.1f} % are answered alike"
        if self._failed:
            said += f", {self._failed} failed"
        if slowdown:
            said += f"; latency {slowdown[0]:.2f} to {slowdown[1]:.2f} times that of the stable version"
        if agreement[1] < self._min_agreement:
            return Verdict.WORSE, f"{said}; the latest difference: {self._latest_difference}"
        if slowdown and slowdown[0] > self._max_slowdown:
            return Verdict.WORSE, said
        is_enough = self._copies >= MIN_COPIES_TO_PASS and slowdown is not None
        if is_enough and agreement[0] >= self._min_agreement and slowdown and slowdown[1] <= self._max_slowdown:
            return Verdict.AS_GOOD, said
        return Verdict.NONE, said

    def intervals(self) -> dict[str, tuple[float, float] | None]:
        """Return the 95 % intervals of agreement and slowdown; None: not known."""
        agreement = slowdown = None
        if self._copies:
            low, high = wilson(self._alike / self._copies, self._copies)
            agreement = max(0.0, low), min(1.0, high)
        if (count := self._ratios) >= MIN_COPIES_TO_REJECT:
            mean = self._sum / count
            variance = max(0.0, self._sum_of_squares / count - mean * mean) * count / (count - 1)
            half = LATENCY_Z * math.sqrt(variance / count)
            slowdown = math.exp(mean - half), math.exp(mean + half)
        return {"agreement": agreement, "slowdown": slowdown}

    def document(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        return {
            "copies": self._copies,
            "alike": self._alike,
            "failed": self._failed,
            "stable_failed": self._stable_failed,
            "left_out": self.left_out,
            "latest_difference": self._latest_difference,
            **self.intervals(),
        }


def why_different(answer: bytes, other: bytes, tolerance: float) -> str:
    """Compare outputs, datatypes, shapes and values of two serialized responses; return "" if they agree.

    `answer`, `other`: the responses; `tolerance`: see `batch_verification.difference`.
    """
    try:
        names, other_names = ({each.name for each in read_answer(one)[0].outputs} for one in (answer, other))
        if names != other_names:
            return f"outputs {', '.join(sorted(other_names))} instead of {', '.join(sorted(names))}"
        found = batch_verification.difference(answer, other, tolerance)
    except ScatterError as error:
        return str(error)
    return str(found) if found else ""
