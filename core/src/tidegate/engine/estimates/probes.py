"""Requests that run alone so that their application is learned, though nothing of it would run alone otherwise.

Where a model is busy every batch is of several, and the application that comes seldom is never seen by itself. Without
its distribution it is taken for the mixture of all. A few requests, which run once as all do, tell it.
"""

from dataclasses import dataclass

from tidegate.api import Request
from tidegate.engine.estimates.standalone_latency import FIRST_REPORT_STAGES, MAX_APPS, WINDOW_STAGES

UNKNOWN_EVERY = 4
"""The requests of an application of which one runs alone, until it is known."""
KNOWN_EVERY = WINDOW_STAGES
"""Later one after so many of which none did: what was learned once is left again where it is wrong."""
MODEL_EVERY = 16
"""The requests of a model, of all applications, of which one at most runs alone for this."""


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
