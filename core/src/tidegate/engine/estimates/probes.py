"""Probes of applications: requests that run alone so that their application's latency is learned.

In a busy model every batch has several requests, so an infrequent application would never run alone and would be taken
for the mixture of all applications. A few of its requests, each executed once like any other, run alone instead.
"""

from dataclasses import dataclass

from tidegate.api import Request
from tidegate.engine.estimates.standalone_latency import FIRST_REPORT_STAGES, MAX_APPS, WINDOW_STAGES

UNKNOWN_EVERY = 4
"""Number of an unknown application's requests of which one runs alone."""
KNOWN_EVERY = WINDOW_STAGES
"""Number of a known application's requests, none of which ran alone, after which one does, to correct a wrong
estimate.
"""
MODEL_EVERY = 16
"""Number of a model's requests, of all applications, of which at most one runs alone as a probe."""


@dataclass(slots=True)
class _Application:
    seen: int = 0
    """Its requests that ran alone, up to FIRST."""
    arrived: int = 0
    """Its requests since the last one that did, or was to."""


class ProbeCounts:
    """Counts of arrived requests and those that ran alone, by model and application."""

    def __init__(self) -> None:
        self._applications: dict[str, dict[str, _Application]] = {}
        self._arrived: dict[str, int] = {}
        """The requests of each model since the last one that was to run alone."""

    def wants(self, request: Request) -> bool:
        """Count an application's request; return whether it should run alone."""
        model = request.model
        self._arrived[model] = self._arrived.get(model, 0) + 1
        known = self._application(request)
        if known is None:
            return False
        known.arrived += 1
        every = UNKNOWN_EVERY if known.seen < FIRST_REPORT_STAGES else KNOWN_EVERY
        if known.arrived < every or self._arrived[model] < MODEL_EVERY:
            return False
        known.arrived = self._arrived[model] = 0
        return True

    def ran_alone(self, request: Request) -> None:
        """Count a request that ran alone."""
        if known := self._application(request):
            known.arrived = 0
            known.seen = min(FIRST_REPORT_STAGES, known.seen + 1)

    def _application(self, request: Request) -> _Application | None:
        """Return what is known of a request's application; None where there are too many: clients name them."""
        of_model = self._applications.setdefault(request.model, {})
        known = of_model.get(request.app)
        if known is None and len(of_model) < MAX_APPS:
            known = of_model[request.app] = _Application()
        return known
