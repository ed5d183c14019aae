"""Computes observations for a controller from an engine's event stream."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from tidegate.api import Advise, Batch, Request
from tidegate.control.controller import ModelLoad, Observation
from tidegate.control.layout_revision import LayoutRevision
from tidegate.observation import OutcomeListener, StartStage

NS_PER_S = 1_000_000_000


class Monitor(OutcomeListener):
    """Counter of ended requests by model; arrivals are derived from the ended and the waiting ones."""

    def __init__(self, now_ns: int = 0) -> None:
        self._since_ns = now_ns
        self._open: Mapping[str, int] = {}
        """How many requests of each model had come and not ended when the period began."""
        self._open_rows: Mapping[str, int] = {}
        self._largest: dict[str, int] = {}
        self._begin(now_ns, {}, {})

    def _begin(self, now_ns: int, waiting: Mapping[str, int], waiting_rows: Mapping[str, int]) -> None:
        self._since_ns = now_ns
        self._open, self._open_rows = waiting, waiting_rows
        self._came: Counter[str] = Counter()
        """How many that ended have come, by model."""
        self._came_rows: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._sizes: defaultdict[str, Counter[int]] = defaultdict(Counter)
        """How many that ended had how many rows, by model."""
        self._on_time: Counter[str] = Counter()
        self._busy_ns: Counter[int] = Counter()
        self._advice: Advise | None = None

    # What is read ------------------------------------------------------------------------------------------------

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Count the answered requests of a batch."""
        for request in requests:
            self._end(request)
            self._on_time[request.model] += request.deadline_ns >= ended_ns

    def dropped(self, now_ns: int, request: Request, reason: str) -> None:
        """Count a dropped request, whatever the reason."""
        self._end(request)

    def failed(self, now_ns: int, request: Request, reason: str) -> None:
        """Count a failed request, whatever the reason."""
        self._end(request)

    def cancelled(self, now_ns: int, request: Request) -> None:
        """Count a cancelled request as arrived but not as ended."""
        self._come(request)

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        """Add the stage's duration to the worker's busy time."""
        self._busy_ns[effect.batch.stages[effect.stage].worker_id] += ended_ns - started_ns

    def advised(self, now_ns: int, advice: Advise) -> None:
        """Store the policy's recommendation on the number of workers."""
        self._advice = advice

    def _end(self, request: Request) -> None:
        self._come(request)
        self._ended[request.model] += 1
        self._sizes[request.model][request.rows] += 1

    def _come(self, request: Request) -> None:
        model, rows = request.model, request.rows
        self._came[model] += 1
        self._came_rows[model] += rows
        if rows > self._largest.get(model, 0):
            self._largest[model] = rows

    # Input -------------------------------------------------------------------------------------------------------

    def largest_rows(self, unanswered: Collection[Request]) -> Mapping[str, int]:
        """Return the rows of the largest request so far, by model. `unanswered`: requests that have not ended."""
        for request in unanswered:
            if request.rows > self._largest.get(request.model, 0):
                self._largest[request.model] = request.rows
        return self._largest

    def observe(
        self, now_ns: int, revision: LayoutRevision, unanswered: Collection[Request], away: Collection[int] = ()
    ) -> Observation:
        """Return the observation of the period between the last call and `now_ns`.

        `unanswered`: requests that arrived and have not ended; `away`: ids of workers that are not available.
        """
        waiting, waiting_rows = Counter[str](), Counter[str]()
        for request in unanswered:
            waiting[request.model] += 1
            waiting_rows[request.model] += request.rows
        largest = self.largest_rows(unanswered)
        period_ns = max(1, now_ns - self._since_ns)
        seconds = period_ns / NS_PER_S
        models = {}
        for name in [model.name for model in revision.layout.models]:
            came = self._came[name] + waiting[name] - self._open.get(name, 0)
            rows = self._came_rows[name] + waiting_rows[name] - self._open_rows.get(name, 0)
            ended = self._ended[name]
            models[name] = ModelLoad(
                rate_rps=max(0, came) / seconds,
                rows_per_s=max(0, rows) / seconds,
                largest_rows=largest.get(name, 0),
                ended=ended,
                attainment=self._on_time[name] / ended if ended else 1.0,
                sizes=self._sizes.get(name, {}),
            )
        busy = {worker.name: min(1.0, self._busy_ns[number] / period_ns) for number, worker in revision.workers.items()}
        gone = frozenset(worker.name for number, worker in revision.workers.items() if number in away)
        observed = Observation(now_ns, period_ns, revision.layout, models, busy, self._advice, gone)
        self._begin(now_ns, waiting, waiting_rows)
        return observed

    def skip_to(self, now_ns: int, unanswered: Collection[Request]) -> None:
        """Start a new period and discard the old one, since another layout serves now."""
        self._begin(
            now_ns,
            Counter(request.model for request in unanswered),
            sum((Counter({request.model: request.rows}) for request in unanswered), Counter()),
        )
