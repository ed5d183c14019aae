"""What came of clients' requests to the scheduled models: the numbers that Triton keeps per model and version.

A Triton counts the merged batches it runs; clients expect one success per request of theirs. So these numbers are kept
here, and take the place of the Tritons' own in `merge_statistics` and in `triton_metrics`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

FAILURE_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Triton's: refused or timed out in the queue, cancelled by the client, the model failed, anything else."""


@dataclass(slots=True)
class Counts:
    """What clients' requests to one version of a model came to. Sums of durations are over the successes."""

    rows: int = 0
    """The rows of the successes: Triton's inference_count."""
    executions: int = 0
    last_ms: int = 0
    """When the last one was answered, in milliseconds since the epoch; 0: never."""
    successes: int = 0
    success_ns: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """How many failed, by one of FAILURE_REASONS."""
    failure_ns: int = 0


class Statistics:
    """Counts requests to the scheduled models.

    A request to a model or version that was not declared is not counted: its Triton counts it, or refuses it.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], Counts] = {}
        self._latest: dict[str, str] = {}
        self._members: dict[str, tuple[tuple[str, str], ...]] = {}

    def declare(self, model: str, versions: Iterable[str]) -> None:
        """Say which versions of a scheduled model are loaded; those that were before keep their counts."""
        loaded = sorted(versions, key=by_number)
        for name, version in [key for key in self._counts if key[0] == model and key[1] not in loaded]:
            del self._counts[name, version]
        for version in loaded:
            self._counts.setdefault((model, version), Counts())
        self._latest.pop(model, None)
        if loaded:
            self._latest[model] = loaded[-1]

    def declare_ensemble(self, model: str, members: Iterable[tuple[str, str]]) -> None:
        """Say which models (name, version, "" for the latest) a request to an ensemble runs inside Triton.

        perf_analyzer wants the counts of all of them to move. How long each took only Triton knows: their times stay
        with the ensemble.
        """
        self._members[model] = tuple(members)

    def latest(self, model: str) -> str | None:
        """The version that answers where a request names none; None for a model that was not declared."""
        return self._latest.get(model)

    def answered(
        self,
        model: str,
        version: str,
        rows: int,
        *,
        requests: int = 1,
        at_ms: int,
        total_ns: int,
        queue_ns: int,
        infer_ns: int,
        input_ns: int = 0,
        output_ns: int = 0,
    ) -> None:
        """Requests, one or those of a batch, were answered `at_ms` since the epoch; rows and durations are their sums.

        From its arrival each took `total_ns`, waited `queue_ns`; its batch took `input_ns` to gather, `infer_ns` on
        Triton, `output_ns` to divide.
        """
        if (counts := self._find(model, version)) is None:
            return
        counts.rows += rows
        counts.last_ms = max(counts.last_ms, at_ms)
        counts.successes += requests
        counts.success_ns += total_ns
        counts.queue_ns += queue_ns
        counts.input_ns += input_ns
        counts.infer_ns += infer_ns
        counts.output_ns += output_ns

    def failed(self, model: str, version: str, reason: str, total_ns: int) -> None:
        """A request was refused, or failed; `reason` is one of FAILURE_REASONS."""
        if counts := self._find(model, version):
            counts.failures[reason] += 1
            counts.failure_ns += total_ns

    def executed(self, model: str, version: str) -> None:
        """A Triton ran a batch, or refused it."""
        if counts := self._find(model, version):
            counts.executions += 1

    def passed_through(self, model: str, version: str, *, ok: bool, at_ms: int, total_ns: int, rows: int = 1) -> None:
        """A request went to Triton as it was and is answered: all of its time counts as inference."""
        self.executed(model, version)
        if not ok:
            self.failed(model, version, "BACKEND", total_ns)
            return
        self.answered(model, version, rows, at_ms=at_ms, total_ns=total_ns, queue_ns=0, infer_ns=total_ns)
        for member, of_version in self._members.get(model, ()):
            self.passed_through(member, of_version, ok=True, at_ms=at_ms, total_ns=0, rows=rows)

    def snapshot(self) -> dict[tuple[str, str], Counts]:
        """The numbers now, by (model, version)."""
        return {key: replace(counts, failures=counts.failures.copy()) for key, counts in self._counts.items()}

    def _find(self, model: str, version: str) -> Counts | None:
        return self._counts.get((model, version or self._latest.get(model, "")))


def by_number(version: str) -> tuple[int, str]:
    """To sort versions by: 10 comes after 9."""
    return (int(version) if version.isdecimal() else -1, version)
