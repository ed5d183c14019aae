"""Residency: which models a Triton keeps in memory when they do not all fit, and which it gives up for another one.

Eviction follows GreedyDual-Size-Frequency (Cherkasova, 1998): the model goes whose next loads are expected to cost the
least for the memory that it frees. Requests that are longer ago than the model's memory was worth count less and less.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

MIN_LOAD_NS: Final = 1_000_000
"""Least cost of a load in nanoseconds: one that took no measurable time still interrupts."""
MIN_VISIT_GAP_NS: Final = 1_000_000_000
"""Time in nanoseconds from the beginning of a visit within which further requests for the model belong to it."""
MIN_VISITS: Final = 4
"""Number of visits from which on a model may be asked for regularly."""
INTERVAL_WEIGHT: Final = 0.3
"""Weight of the latest interval between visits in their mean."""
MAX_OVERDUE_INTERVALS: Final = 2.0
"""Number of intervals without a request after which a model is not asked for regularly any more."""
QUIET_LOADS: Final = 4
"""Time without a load for a request before a model is loaded ahead of its own, in durations of its load."""


class BudgetTooSmallError(ValueError):
    """Error: a model takes more memory than a Triton has for such models; the message gives both."""


@dataclass
class _Known:
    """Facts about one model."""

    memory_bytes: int | None = None
    """Memory that it takes; None: never measured."""
    load_ns: int | None = None
    """Duration of its last load; None: never loaded."""
    hits: float = 0.0
    """Requests, of which older ones count less."""
    priority: float = 0.0
    """Value of its place: the lowest one goes first."""
    visits: int = 0
    """Number of its visits: requests shortly after one another are one."""
    visited_ns: int = 0
    """Beginning of its last visit, if it had any."""
    interval_ns: float | None = None
    """Mean time between visits, of which older ones count less; None before the second."""

    def visit(self, now_ns: int) -> None:
        """Record a request at an instant."""
        if self.visits:
            gap_ns = now_ns - self.visited_ns
            if gap_ns < MIN_VISIT_GAP_NS:
                return
            before_ns = gap_ns if self.interval_ns is None else self.interval_ns
            self.interval_ns = before_ns + INTERVAL_WEIGHT * (gap_ns - before_ns)
        self.visits += 1
        self.visited_ns = now_ns

    def is_regular(self, now_ns: int) -> bool:
        """Return whether it is asked for regularly, and was lately."""
        if self.visits < MIN_VISITS or self.interval_ns is None:
            return False
        return now_ns - self.visited_ns <= MAX_OVERDUE_INTERVALS * self.interval_ns


class Residency:
    """Memory budget of one Triton: the models that it holds, and those to evict for another one.

    Has no clock and no network: the caller reports what happens, and carries out what `evictions_for` returns.
    """

    def __init__(self, budget_bytes: int) -> None:
        """Begin with no model in memory."""
        self.budget_bytes = budget_bytes
        """Memory for the models together."""
        self._known: dict[str, _Known] = {}
        self._resident: dict[str, int] = {}
        """Memory of each model that is loaded, in bytes."""
        self._age = 0.0
        """Priority of the last model that was evicted: those that come later begin above it."""

    @property
    def resident(self) -> frozenset[str]:
        """Models that are loaded."""
        return frozenset(self._resident)

    @property
    def used_bytes(self) -> int:
        """Memory that the loaded models take, or are assumed to take; may be read in any thread."""
        return sum(self._resident.copy().values())

    def on_request(self, model: str, now_ns: int) -> None:
        """Count a request for a model, loaded or not, at an instant of a clock that never goes back."""
        known = self._known.setdefault(model, _Known())
        known.visit(now_ns)
        known.hits += 1.0
        known.priority = self._value(known)

    def set_memory(self, model: str, memory_bytes: int) -> None:
        """Set the bytes of a model, configured or measured after a load, for its place from now on."""
        known = self._known.setdefault(model, _Known())
        known.memory_bytes = memory_bytes
        known.priority = self._value(known)
        if model in self._resident:
            self._resident[model] = memory_bytes

    def on_loaded(self, model: str, load_ns: int | None = None) -> None:
        """Record that a model is in memory. `load_ns`: duration of the load; None: unknown."""
        known = self._known.setdefault(model, _Known())
        if load_ns is not None:
            known.load_ns = load_ns
        known.priority = self._value(known)
        self._resident[model] = self.memory_of(model)

    def on_unloaded(self, model: str) -> None:
        """Record that a model was unloaded."""
        if self._resident.pop(model, None) is not None:
            known = self._known[model]
            self._age = max(self._age, known.priority)
            known.hits /= 2

    def memory_of(self, model: str) -> int:
        """Return the memory of a model in bytes; if unknown, the most that any model takes, else the whole budget."""
        known = self._known.get(model)
        if known is not None and known.memory_bytes is not None:
            return known.memory_bytes
        measured = [each.memory_bytes for each in self._known.values() if each.memory_bytes is not None]
        return min(max(measured, default=self.budget_bytes), self.budget_bytes)

    def load_ns_of(self, model: str) -> int | None:
        """Return how long the last load of a model took, in nanoseconds; None if it was never loaded."""
        known = self._known.get(model)
        return None if known is None else known.load_ns

    def evictions_for(self, model: str, may_evict: Callable[[str], bool]) -> tuple[str, ...] | None:
        """Return the models to unload so that another one fits, least valuable first; None if that must wait.

        `may_evict`: whether a model has neither requests that wait nor requests in flight. Of the models that are found
        first, those that are not needed after all stay. Raises BudgetTooSmallError if it never fits.
        """
        needed = self.memory_of(model)
        if needed > self.budget_bytes:
            raise BudgetTooSmallError(f"{model!r} takes {needed} bytes of a budget of {self.budget_bytes}")
        excess = self.used_bytes - self._resident.get(model, 0) + needed - self.budget_bytes
        return self._freeing(excess, (each for each in self._resident if each != model and may_evict(each)))

    def to_prefetch(self, now_ns: int, quiet_ns: int, may_load: Callable[[str], bool]) -> str | None:
        """Return the model to load before its next request, in memory that no model takes; None if there is none.

        The largest model still fits beside it, so that no next load has to evict because of it. Of those that are asked
        for regularly it is the one whose load costs its requests the most time, by memory.

        `quiet_ns`: time in ns since a load for a request ended: the next one would wait for this one. `may_load`:
        whether a model that is not loaded could be loaded now.
        """
        largest = max((each.memory_bytes or 0 for each in self._known.values()), default=0)
        free = self.budget_bytes - self.used_bytes - largest
        best, best_worth = None, 0.0
        for model, known in self._known.items():
            if model in self._resident or not known.is_regular(now_ns) or self.memory_of(model) > free:
                continue
            assert known.interval_ns, "it has had several visits"
            cost_ns = max(MIN_LOAD_NS, known.load_ns or MIN_LOAD_NS)
            if cost_ns * QUIET_LOADS > quiet_ns:
                continue
            worth = cost_ns / known.interval_ns / max(1, self.memory_of(model))
            if worth > best_worth and may_load(model):
                best, best_worth = model, worth
        return best

    def evictions_over_budget(self, may_evict: Callable[[str], bool]) -> tuple[str, ...]:
        """Return the models to unload because those that are loaded take more than the budget; () if they do not."""
        excess = self.used_bytes - self.budget_bytes
        found = self._freeing(excess, (each for each in self._resident if may_evict(each)))
        return found or ()

    def cost_of(self, evictions: Iterable[str]) -> float:
        """Return the cost of these evictions: the sum of their priorities above the age."""
        return sum(max(0.0, self._known[model].priority - self._age) * self._resident[model] for model in evictions)

    def _freeing(self, excess: int, candidates: Iterable[str]) -> tuple[str, ...] | None:
        if excess <= 0:
            return ()
        chosen: list[str] = []
        for model in sorted(candidates, key=lambda each: (self._known[each].priority, each)):
            chosen.append(model)
            excess -= self._resident[model]
            if excess <= 0:
                return self._without_spare(chosen, -excess)
        return None

    def _without_spare(self, chosen: list[str], spare: int) -> tuple[str, ...]:
        """Keep the most valuable of the chosen that need not go."""
        kept: set[str] = set()
        for model in reversed(chosen):
            if self._resident[model] <= spare:
                kept.add(model)
                spare -= self._resident[model]
        return tuple(model for model in chosen if model not in kept)

    def _value(self, known: _Known) -> float:
        cost_ns = max(MIN_LOAD_NS, known.load_ns or MIN_LOAD_NS)
        memory = known.memory_bytes if known.memory_bytes is not None else self.budget_bytes
        return self._age + known.hits * cost_ns / max(1, memory)
