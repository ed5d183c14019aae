"""Lets requests pass, though they could be scheduled, at Tritons where that was shown to be better; tells of it."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate.api import Batch, Request
from tidegate.observation import Reader
from tidegate_proxy.backend import Backend
from tidegate_proxy.catalog import Directory
from tidegate_proxy.configuration.config import PolicyChoice, ServeConfig
from tidegate_proxy.envelope import Envelope
from tidegate_proxy.faults import faults
from tidegate_proxy.pass_or_schedule import PassOrSchedule, Way
from tidegate_proxy.settings import InForce

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
IN_THE_WAY: Final = 0.3
"""The slowdown from which on it is tried to let models pass: below, batches take about as long as policies plan."""
STILL_IN_THE_WAY: Final = 0.2
"""The slowdown down to which it stays so: it is learned, and wavers."""
MOST_DRAWN: Final = 200_000
"""Between two looks: what comes beyond that is not counted."""


class LettingPass(Reader, Collector):
    """Lives in the event loop; only `lets_pass` may be called in other threads, and `collect`."""

    def __init__(
        self,
        config: ServeConfig,
        in_force: InForce,
        directory: Directory,
        decides: Callable[[], str],
        was_busy: Callable[[int, int], None],
    ) -> None:
        """`decides`: says who schedules, in words; `was_busy`: is told of a worker, by its id, and of how many ns."""
        self._seed, self._policy = config.seed, config.policy
        self._decides = decides
        self._decided = decides()
        """Who scheduled when the comparisons began."""
        self._in_force = in_force
        self._directory = directory
        self._tritons: dict[Backend, PassOrSchedule] = {}
        """The Tritons whose models are in each other's way, or were at some time."""
        self._of: dict[str, PassOrSchedule] = {}
        """What is decided for a model, where anything is: replaced as a whole, as threads read it."""
        self._drawn: list[tuple[int, str, bool]] = []
        self._was_busy = was_busy
        self._looked_ns: int | None = None

    def lets_pass(self, envelope: Envelope) -> bool:
        """Whether a request passes that could be scheduled."""
        decided = self._of.get(envelope.model)
        if decided is None:
            return False
        now_ns = time.monotonic_ns()
        scheduled = decided.schedules(now_ns)
        if len(self._drawn) < MOST_DRAWN:
            self._drawn.append((now_ns, envelope.model, scheduled))
        return not scheduled

    def way_of(self, model: str) -> Way:
        """What becomes of a model's requests that could be scheduled."""
        decided = self._of.get(model)
        return decided.way if decided else Way.SCHEDULED

    @property
    def policy(self) -> str:
        """Who schedules: the policy by its name, or what goes on in its stead where it broke."""
        return self._decides()

    def trials(self) -> list[tuple[list[str], PassOrSchedule]]:
        """Where anything passes that could be scheduled: the models of each such Triton, and what is decided."""
        models: dict[PassOrSchedule, list[str]] = {}
        for model, decided in sorted(self._of.items()):
            if decided.way is not Way.SCHEDULED:
                models.setdefault(decided, []).append(model)
        return [(names, decided) for decided, names in models.items()]

    def answered(self, batch: Batch, requests: Sequence[Request], ended_ns: int) -> None:
        """Requests that were scheduled have their answers."""
        if self._of:
            for request in requests:
                self._count(request.model, request.arrival_ns, ended_ns - request.arrival_ns, scheduled=True)

    def passed(self, model: str, sent_ns: int, took_ns: int, ok: bool) -> None:
        """A request that was not scheduled has its answer."""
        if ok and self._of:
            self._count(model, sent_ns, took_ns, scheduled=False)

    def change_policy(self, policy: PolicyChoice) -> None:
        """Begin anew where another policy schedules from now on."""
        if policy != self._policy:
            self._policy = policy
            self._begin_anew()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Which models pass, for Prometheus."""
        return gauges({model: decided.way for model, decided in self._of.items()})

    async def run(self) -> None:
        """For ever: count what was drawn, and look again which way is better."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                self.look(time.monotonic_ns())
            except Exception as error:  # there is a next time
                faults.report("looking whether models should pass as they are", error)

    def look(self, now_ns: int) -> None:
        """Count what was drawn since the last time, and decide for each Triton."""
        if self._decided != self.policy:  # it broke
            self._begin_anew()
        self._tell_busy(now_ns)
        slos = self._slos()
        drawn, self._drawn = self._drawn, []
        for at_ns, model, scheduled in drawn:
            if model in slos and (decided := self._of.get(model)):
                decided.drew(at_ns, scheduled=scheduled)
        may = {backend: models for backend in self._directory.catalog.loaded if (models := self._models_of(backend))}
        for backend, decided in list(self._tritons.items()):
            if backend not in may and decided.leave_off(now_ns, "they are not in each other's way, or take turns"):
                _tell(backend, decided)
            if backend not in self._directory.catalog.loaded:
                del self._tritons[backend]
        for backend, models in may.items():
            decided = self._tritons.setdefault(backend, PassOrSchedule(self._seed))
            if decided.decide(now_ns, max(slos[model] for model in models if model in slos)):
                _tell(backend, decided)
        self._of = {model: self._tritons[backend] for backend, models in may.items() for model in models}

    def _models_of(self, backend: Backend) -> list[str]:
        """The models that may pass at a Triton: all that are scheduled there; none where they had better be scheduled.

        They take turns, or are not in each other's way, as far as is known; or one of them is served by other Tritons,
        too, among which whoever passes would not find the one that is idle; or none has an SLO by which to compare. Nor
        do they where the operator says who is one client: what passes has no turns among clients.
        """
        settings, turns, catalog = self._in_force.settings, backend.turns, self._directory.catalog
        if settings.shadow or settings.canary is not None or not settings.passes_if_better:
            return []
        if not turns or turns.group or not backend.alive:
            return []
        slowdown = turns.slowdown.value
        known = self._tritons.get(backend)
        least = STILL_IN_THE_WAY if known and known.is_watched else IN_THE_WAY
        if slowdown is None or slowdown < least:
            return []
        models = [model for model in catalog.models if backend in catalog.hosts.get(model, ())]
        alone = all(len(catalog.hosts[model]) == 1 for model in models)
        return models if alone and any(model in self._slos() for model in models) else []

    def _tell_busy(self, now_ns: int) -> None:
        """Workers whose models pass count as busy: who scales by that would take a Triton at its limit to be idle."""
        since_ns, self._looked_ns = now_ns - (self._looked_ns or now_ns), now_ns
        catalog = self._directory.catalog
        for worker in catalog.workers:
            decided = self._tritons.get(catalog.backend_of[worker.id])
            if decided and decided.passing:
                self._was_busy(worker.id, round(decided.passing * since_ns))

    def _begin_anew(self) -> None:
        self._decided, self._tritons, self._of = self.policy, {}, {}

    def _slos(self) -> dict[str, int]:
        models = self._directory.catalog.models
        return {name: model.slo_ns for name, model in models.items() if model.slo_ns is not None}

    def _count(self, model: str, came_ns: int, took_ns: int, *, scheduled: bool) -> None:
        decided, known = self._of.get(model), self._directory.catalog.models.get(model)
        if decided and known and known.slo_ns is not None:
            decided.answered(came_ns, took_ns, known.slo_ns, scheduled=scheduled)


def gauges(ways: Mapping[str, Way]) -> Iterator[GaugeMetricFamily]:
    """What becomes of models' requests, as a metric."""
    gauge = GaugeMetricFamily(
        "tidegate_passes",
        "Whether a model's requests pass as they are because that was better than to schedule them: 1; while both are "
        "compared: 0.5. Absent where models of a Triton are not in each other's way.",
        labels=["model"],
    )
    shares = {Way.SCHEDULED: 0.0, Way.COMPARED: 0.5, Way.PASSED: 1.0}
    for model, way in sorted(ways.items()):
        gauge.add_metric([model], shares[way])
    yield gauge


def _tell(backend: Backend, decided: PassOrSchedule) -> None:
    log.info("models of the Triton at %s: %s: %s", backend.address, decided.way, decided.why)
