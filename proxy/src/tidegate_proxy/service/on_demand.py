"""On-demand models: loaded for their first request, and unloaded for others where a Triton has no room for all.

What is loaded and evicted is decided in `tidegate.control.residency`, one memory budget per Triton. Here requests wait
for a load, and Tritons are asked to load and unload.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import grpc
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate.control.residency import BudgetTooSmallError, Residency
from tidegate_proxy.base import refusal
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import RequestFailed
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.configuration.config import ModelConfig, ServeConfig
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.scheduling.in_flight import QueueLoad, queue_refusal
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.service.load_turns import LoadTurns
from tidegate_proxy.service.open_sequences import DEFAULT_IDLE_S
from tidegate_proxy.tritons.backend import LOAD_TIMEOUT_S, Backend, BackendError
from tidegate_proxy.tritons.catalog import CurrentCatalog
from tidegate_proxy.tritons.process_memory import ProcessMemory, growth

if TYPE_CHECKING:
    from tidegate.api import Model

log = logging.getLogger(__name__)

MIN_IDLE_S: Final = 0.1
"""Time in seconds without a request after which a model may be evicted: one may be on its way to the scheduler."""
MIN_TURN_S: Final = 2.0
"""Least time in seconds for which a busy model keeps its memory while others wait for it."""
LOADS_PER_TURN: Final = 4
"""Least turn of a busy model in durations of its load, so that Tritons do not spend their time on loads."""
MAX_DRAIN_S: Final = 30.0
"""Longest time in seconds that the new requests of a model wait for its requests in flight before an eviction."""
POLL_S: Final = 0.02
SETTLE_S: Final = 0.1
MAX_SETTLE_S: Final = 2.0
"""Longest time in seconds to wait before a load until a Triton's memory shrinks no more, if it is measured."""
PREFETCH_POLL_S: Final = 1.0
"""Interval in seconds at which Tidegate looks for models to load before their next requests."""
MIN_COOLDOWN_S: Final = 1.0
MAX_COOLDOWN_S: Final = 60.0
"""Longest time in seconds after a failed load before the next try; it doubles with each failure."""


@dataclass
class _Failure:
    """Last failed load of a model."""

    why: str
    until_s: float
    cooldown_s: float


@dataclass
class _Undrained:
    """Last eviction of a model that was given up, because its requests did not end in time."""

    pause_s: float
    until_s: float


class OnDemandModels(Collector):
    """Models with `load: on-demand`; as a Prometheus collector, counts of loads and evictions.

    Use it only in the event loop, except `collect`.
    """

    def __init__(
        self,
        config: ServeConfig,
        discovery: Discovery,
        directory: CurrentCatalog,
        driver: Driver,
        in_force: SettingsHolder,
    ) -> None:
        """Begin with those of a configuration; what the Tritons have loaded counts."""
        self._discovery = discovery
        self._directory = directory
        self._driver = driver
        self._in_force = in_force
        self._models: dict[str, ModelConfig] = {}
        self.names: Collection[str] = ()
        """Names of the models that are loaded on demand; an attribute, since every request reads it."""
        self._budgets: WeakKeyDictionary[Backend, Residency] = WeakKeyDictionary()
        self._turns: WeakKeyDictionary[Backend, LoadTurns] = WeakKeyDictionary()
        """Turns of loads: one model at a time, so that what it takes can be measured."""
        self._cut_off: WeakKeyDictionary[Backend, set[str]] = WeakKeyDictionary()
        """Models whose load ended when their Triton was given up: it may go on there."""
        self._is_explicit: WeakKeyDictionary[Backend, bool] = WeakKeyDictionary()
        self._memory: dict[str, int] = {}
        """Measured memory of models, in bytes; the same on every Triton."""
        self._loaded: dict[str, Model] = {}
        """Models as they were when they were last loaded."""
        self._loaded_s: dict[str, float] = {}
        """When each model was last loaded."""
        self._asked_s: dict[str, float] = {}
        """When each model was last asked for."""
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._began_s: dict[str, float] = {}
        """When each load in flight began."""
        self._waiting: Counter[str] = Counter()
        """Requests that wait for a load, by model."""
        self._waiting_of_client: dict[str, Counter[str]] = {}
        """The same by client, of each that waits, and model."""
        self._evicting: Counter[str] = Counter()
        self._undrained: dict[str, _Undrained] = {}
        """Models whose requests did not end for an eviction."""
        self._failures: dict[str, _Failure] = {}
        self._process_memory = ProcessMemory()
        self._demanded_ns = time.monotonic_ns()
        """When the last load for a request ended."""
        self.loads = Counter[str]()
        """Number of loads until now, by model."""
        self.prefetches = Counter[str]()
        """Number of those before a request, by model."""
        self.evictions = Counter[str]()
        """Number of evictions until now, by model."""
        self.follow(config)

    def follow(self, config: ServeConfig) -> None:
        """Apply another configuration."""
        self._models = {name: settings for name, settings in config.models.items() if settings.load == "on-demand"}
        self.names = self._models.keys()
        self._failures.clear()
        for residency in self._budgets.values():
            self._tell_memory(residency)

    def must_load(self, model: str) -> bool:
        """Count a request for a model; return whether it has to be loaded before the request can be served."""
        if model not in self._models:
            return False
        self._asked_s[model] = time.monotonic()
        for residency in self._budgets.values():
            residency.on_request(model, time.monotonic_ns())
        hosts = self._directory.catalog.hosts.get(model, ())
        return model in self._evicting or not any(backend.alive for backend in hosts)

    async def load(self, model: str, remaining_s: float | None, owner: str) -> None:
        """Wait until a model is loaded, or can be answered by a Triton, which may not have it.

        `remaining_s`: time until the client's deadline, if any; `owner`: the client. Raises RequestFailed if the load
        takes longer than that, or than the model's SLO; the load goes on, so that a later request finds the model.
        """
        if self._is_full(model, owner):
            raise RequestFailed(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size", reason=refusal.QUEUE_FULL)
        self._refuse_failed(model)
        limit_s = self._limit_s(model, remaining_s)
        task = self._loads.get(model) or self._begin_load(model, self._load(model))
        expected_s = self._expected_s(model)
        if expected_s is not None and expected_s > limit_s:
            raise self._too_late(model)
        self._waiting[model] += 1
        of_client = self._waiting_of_client.setdefault(owner, Counter())
        of_client[model] += 1
        try:
            async with asyncio.timeout(None if limit_s == math.inf else limit_s):
                await asyncio.shield(task)
        except TimeoutError:
            raise self._too_late(model) from None
        finally:
            self._waiting[model] -= 1
            of_client[model] -= 1
            if not of_client.total():  # clients come and go
                del self._waiting_of_client[owner]
            self._asked_s[model] = time.monotonic()
        self._refuse_failed(model)

    async def run(self) -> None:
        """Load models before their next requests, forever: one at a time, while no request waits for a load."""
        while True:
            await asyncio.sleep(PREFETCH_POLL_S)
            if self._models and not self._loads:
                with faults.contained("loading a model before its next request"):
                    await self._begin_prefetch()

    async def close(self) -> None:
        """Stop; Tritons finish the loads that they began."""
        await cancel(*self._loads.values())

    def collect(self) -> list[Metric]:
        """Return the loads and evictions, and the memory that is used of each budget; nothing if it is off."""
        if not self._models:
            return []
        memory = {
            backend.address: (residency.budget_bytes, residency.used_bytes)
            for backend, residency in list(self._budgets.items())
        }
        return metrics_of(self.loads.copy(), self.prefetches.copy(), self.evictions.copy(), memory)

    # Requests ----------------------------------------------------------------------------------------------------

    def _is_full(self, model: str, owner: str) -> bool:
        """Whether a request may not wait: as in the queue of the scheduler, with a reserve of each client and model."""
        of_client = self._waiting_of_client.get(owner, Counter())
        waiting = (self._waiting.total(), of_client.total(), self._waiting[model])
        return bool(queue_refusal(self._in_force.settings.queue, *map(QueueLoad, waiting)))

    def _clients_of(self, model: str) -> list[str]:
        """Return the clients that wait for a model."""
        return [client for client, models in self._waiting_of_client.items() if models[model]]

    def _limit_s(self, model: str, remaining_s: float | None) -> float:
        """How long a request may wait: until its client's deadline, and its SLO if a late one is rejected."""
        settings, known = self._models[model], self._loaded.get(model)
        slo_s = settings.slo_ms / 1e3 if settings.slo_ms else (known.slo_ns or 0) / 1e9 if known else 0.0
        is_strict = settings.on_deadline_miss != "serve" and bool(slo_s)
        return min(remaining_s if remaining_s is not None else math.inf, slo_s if is_strict else math.inf)

    def _expected_s(self, model: str) -> float | None:
        """Time in seconds until a load in flight ends, from the last load of the model; None if there was none."""
        known = [each for residency in self._budgets.values() if (each := residency.load_ns_of(model)) is not None]
        if not known:
            return None
        return max(0.0, self._began_s[model] + max(known) / 1e9 - time.monotonic())

    def _too_late(self, model: str) -> RequestFailed:
        expected_s = self._expected_s(model)
        time_left = "an unknown time" if expected_s is None else f"about {max(0.1, expected_s):.1f} s"
        return RequestFailed(
            self._in_force.settings.shed_status,
            f"model '{model}' is being loaded, which takes {time_left} longer than its deadline allows: ask again then",
            reason=refusal.MODEL_LOADING,
            retry_after_s=1.0 if expected_s is None else max(0.1, expected_s),
        )

    def _refuse_failed(self, model: str) -> None:
        failure = self._failures.get(model)
        if failure is None or model in self._loads:
            return
        left_s = failure.until_s - time.monotonic()
        if left_s > 0:
            words = f"model '{model}' could not be loaded: {failure.why}; the next try is in {left_s:.1f} s"
            raise RequestFailed(grpc.StatusCode.UNAVAILABLE, words, reason=refusal.MODEL_LOADING, retry_after_s=left_s)

    # Loads -------------------------------------------------------------------------------------------------------

    def _begin_load(self, model: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loads[model] = asyncio.create_task(work)
        self._began_s[model] = time.monotonic()
        task.add_done_callback(lambda _: self._loads.pop(model, None))
        return task

    async def _begin_prefetch(self) -> None:
        """Begin to load a model before its next request, on the first Triton that has memory for one."""
        for backend in [each for each in self._discovery.backends if each.alive and each.model_memory]:
            with suppress(BackendError):  # one without an answer is looked at again
                model = await self._to_prefetch(backend)
                if self._loads:  # a request came meanwhile
                    return
                if model:
                    self._begin_load(model, self._prefetch(backend, model))
                    return

    async def _to_prefetch(self, backend: Backend) -> str | None:
        """Return the model to load on a Triton before its next request; None if there is none."""

        def may_load(model: str) -> bool:
            is_loaded = any(host.alive for host in self._directory.catalog.hosts.get(model, ()))
            return model in self._models and model not in self._failures and not is_loaded

        residency, now_ns = self._residency(backend), time.monotonic_ns()
        quiet_ns = now_ns - self._demanded_ns
        if residency.to_prefetch(now_ns, quiet_ns, may_load) is None or not await self._loads_models(backend):
            return None
        repository = await backend.repository()
        return residency.to_prefetch(now_ns, quiet_ns, lambda model: model in repository and may_load(model))

    async def _prefetch(self, backend: Backend, model: str) -> None:
        """Load a model where there is memory for it, and evict nothing. A failure is recorded, not raised."""
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S), self._turns[backend].turn(model):
                if await self._load_instead(backend, model, is_ahead=True):
                    self.prefetches[model] += 1
        except (BackendError, TimeoutError) as error:
            if backend.alive:
                self._fail(model, str(error) or f"no end of the load within {LOAD_TIMEOUT_S:g} s")
            else:
                self._cut_off.setdefault(backend, set()).add(model)
        except Exception as error:
            faults.report(f"loading {model!r}", error)
            self._fail(model, "Tidegate failed; its log says more")
        if self._waiting[model] and model not in self._failures and not self._directory.catalog.hosts.get(model):
            await self._load(model)  # there was no memory any more, and requests wait for it now

    async def _load(self, model: str) -> None:
        """Load a model on the Triton where that costs the least. A failure is recorded, not raised."""
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                candidates = await self._candidates(model)
                if not candidates:
                    return  # a Triton says what is wrong
                while not await self._load_on_cheapest(model, candidates):
                    if not any(each.alive for each in candidates):
                        return
                    await asyncio.sleep(POLL_S)  # until one of the models in memory is idle, or its turn is over
            self._failures.pop(model, None)
        except (BackendError, BudgetTooSmallError, TimeoutError) as error:
            self._fail(model, str(error) or f"no room, or no end of the load, within {LOAD_TIMEOUT_S:g} s")
        except Exception as error:
            faults.report(f"loading {model!r}", error)
            self._fail(model, "Tidegate failed; its log says more")

    def _fail(self, model: str, why: str) -> None:
        before = self._failures.get(model)
        cooldown_s = min(MAX_COOLDOWN_S, 2 * before.cooldown_s) if before else MIN_COOLDOWN_S
        self._failures[model] = _Failure(why, time.monotonic() + cooldown_s, cooldown_s)
        log.error("model not loaded", extra={"model": model, "error": why})

    async def _candidates(self, model: str) -> list[Backend]:
        """The Tritons that have a model in their repository, load on demand, and have room for it if alone."""
        found, small = list[Backend](), list[BudgetTooSmallError]()
        for backend in [each for each in self._discovery.backends if each.alive and each.model_memory]:
            if not await self._loads_models(backend) or model not in await backend.repository():
                continue
            try:
                self._residency(backend).evictions_for(model, lambda _: True)
            except BudgetTooSmallError as error:
                small.append(error)
            else:
                found.append(backend)
        if small and not found:
            raise small[0]
        return found

    async def _loads_models(self, backend: Backend) -> bool:
        """Whether a Triton loads and unloads models when asked; if not, that is logged once."""
        if backend not in self._is_explicit:
            self._is_explicit[backend] = await backend.may_unload("")
            if not self._is_explicit[backend]:
                words = "it runs without --model-control-mode=explicit, so that it loads and unloads nothing on demand"
                log.error("models not loaded on demand", extra={"triton": backend.address, "error": words})
        return self._is_explicit[backend]

    def _cheapest(self, model: str, candidates: Collection[Backend]) -> Backend | None:
        may_evict = self._evictable()
        costs: list[tuple[bool, float, int, str, Backend]] = []
        for backend in candidates:
            residency = self._residency(backend)
            evictions = residency.evictions_for(model, may_evict.__contains__)
            if evictions is not None and backend.alive:
                cost = residency.cost_of(evictions)
                costs.append((self._turns[backend].is_busy, cost, residency.used_bytes, backend.address, backend))
        return min(costs)[-1] if costs else None

    def _evictable(self) -> frozenset[str]:
        """On-demand models, idle or after their turn, without open sequences, that no ensemble needs."""
        now_s = time.monotonic()
        recent = {name for name, asked_s in self._asked_s.items() if now_s - asked_s < self._min_idle_s(name)}
        busy = self._busy()
        kept = {name for name in busy | recent if now_s < self._turn_ends_s(name)}
        kept |= {name for name, tried in self._undrained.items() if name in busy and now_s < tried.until_s}
        kept |= {*self._loads} | {*self._evicting} | {name for name in recent if self._min_idle_s(name) > MIN_IDLE_S}
        for steps in self._directory.whole.ensembles.values():
            kept.update(name for name, _ in steps)
        return frozenset(self._models) - kept

    def _busy(self) -> set[str]:
        """Models with requests that are scheduled or in flight."""
        busy = {client.envelope.model for client in self._driver.clients}
        for backend in self._discovery.backends:
            busy.update(backend.in_flight_by_model)
        return busy

    def _turn_ends_s(self, model: str) -> float:
        """When a busy model may be evicted for others, so that these do not wait for as long as it is asked for."""
        known = [each for residency in self._budgets.values() if (each := residency.load_ns_of(model)) is not None]
        turn_s = max(MIN_TURN_S, LOADS_PER_TURN * max(known, default=0) / 1e9)
        return self._loaded_s.get(model, -math.inf) + turn_s

    def _min_idle_s(self, model: str) -> float:
        """Time in seconds without a request after which a model may go: its sequences are over then, if it has any."""
        catalog = self._directory.whole
        idle_s = catalog.sequence_idle_s.get(model, DEFAULT_IDLE_S if model in catalog.sequential else MIN_IDLE_S)
        return max(MIN_IDLE_S, idle_s)

    async def _load_on_cheapest(self, model: str, candidates: Sequence[Backend]) -> bool:
        """Evict what has to go, and load; return False if no Triton has room yet, or it is lost and there are others.

        Raises BackendError.
        """
        if (backend := self._cheapest(model, candidates)) is None:
            return False
        async with self._turns[backend].turn(model):  # until there is room, others may be first
            if model not in self._evicting and backend in self._directory.catalog.hosts.get(model, ()):
                return True  # its eviction was given up
            try:
                return await self._load_instead(backend, model)
            except BackendError:
                if not backend.alive:
                    self._cut_off.setdefault(backend, set()).add(model)
                if backend.alive or not any(each.alive for each in candidates):
                    raise
                return False

    async def _has_finished(self, backend: Backend) -> bool:
        """Return whether a Triton has ended the loads that were in progress when it was given up."""
        for model in sorted(self._cut_off.get(backend, ())):
            if await backend.is_loading(model):
                return False
            await self._discovery.refresh((model,))
            self._cut_off[backend].discard(model)
        return True

    async def _load_instead(self, backend: Backend, model: str, *, is_ahead: bool = False) -> bool:
        """Evict what has to go now, and load; return False if nothing can go yet.

        `is_ahead`: no request waits for it, and nothing may go.
        """
        if not backend.alive:
            raise BackendError(f"Triton at {backend.address} is lost")
        if not await self._has_finished(backend):
            return False
        residency = self._residency(backend)
        may_evict = frozenset[str]() if is_ahead else self._evictable()
        evictions = residency.evictions_for(model, may_evict.__contains__)
        if evictions is None:
            return False
        with self._leaving(backend, evictions):
            if not await self._drained(evictions):
                return False
            try:
                for victim in evictions:
                    await self._evict(backend, victim)
                is_configured = self._models[model].memory is not None if model in self._models else True
                before = None if is_configured else await self._settled_memory(backend)
                began_ns = time.monotonic_ns()
                await backend.load(model)
                load_ns = time.monotonic_ns() - began_ns
                after = None if before is None else await asyncio.to_thread(self._process_memory.of, backend)
            finally:
                await self._discovery.refresh((model, *evictions))
        if before is not None and after is not None:
            self._memory[model] = max(1, growth(before, after), self._memory.get(model, 0))
        if loaded := self._directory.whole.models.get(model):
            self._loaded[model] = loaded
        for each in self._budgets.values():
            self._tell_memory(each)
        residency.on_loaded(model, load_ns)
        self._loaded_s[model] = time.monotonic()
        if not is_ahead:
            self._demanded_ns = time.monotonic_ns()
        self.loads[model] += 1
        fields: dict[str, object] = {"model": model, "triton": backend.address, "took_ms": round(load_ns / 1e6)}
        fields["memory_bytes"] = residency.memory_of(model)
        if is_ahead:
            log.info("model loaded before its next request", extra=fields)
        else:
            log.info("model loaded on demand", extra=fields)
        await self._evict_over_budget(backend, residency, {model} if is_ahead else self._evictable())
        return True

    async def _evict_over_budget(self, backend: Backend, residency: Residency, may_evict: Collection[str]) -> None:
        if over := residency.evictions_over_budget(may_evict.__contains__):
            with self._leaving(backend, over):
                if await self._drained(over):
                    for victim in over:
                        await self._evict(backend, victim)
                    await self._discovery.refresh(over)

    async def _drained(self, models: Collection[str]) -> bool:
        """Wait until models whose new requests wait have none in flight; return False if that takes too long.

        Then the models with requests are not evicted for a while, which doubles each time.
        """
        began_s = time.monotonic()
        asked_s = max((self._asked_s.get(model, -math.inf) for model in models), default=-math.inf)
        while not self._busy().isdisjoint(models) or time.monotonic() < asked_s + MIN_IDLE_S:
            if time.monotonic() > began_s + MAX_DRAIN_S:
                for model in self._busy().intersection(models):
                    before = self._undrained.get(model)
                    pause_s = min(LOAD_TIMEOUT_S, 2 * before.pause_s) if before else MAX_DRAIN_S
                    self._undrained[model] = _Undrained(pause_s, time.monotonic() + pause_s)
                return False
            await asyncio.sleep(POLL_S)
        for model in models:
            self._undrained.pop(model, None)
        return True

    async def _settled_memory(self, backend: Backend) -> Mapping[int, int] | None:
        """Memory of a Triton's processes once it shrinks no more: unloaded models free theirs a little later."""
        give_up = time.monotonic() + MAX_SETTLE_S
        reading = await asyncio.to_thread(self._process_memory.of, backend)
        while reading is not None and time.monotonic() < give_up:
            before = reading
            await asyncio.sleep(SETTLE_S)
            reading = await asyncio.to_thread(self._process_memory.of, backend)
            if reading is not None and sum(reading.values()) >= sum(before.values()):
                break
        return reading

    @contextmanager
    def _leaving(self, backend: Backend, models: Collection[str]) -> Iterator[None]:
        """Let requests for these models wait until they are unloaded, and loaded again."""
        with ExitStack() as stack:
            for model in models:
                stack.enter_context(self._directory.unloading(model, backend))
            self._evicting.update(models)
            try:
                yield
            finally:
                self._evicting.subtract(models)
                self._evicting += Counter()  # without those at zero

    async def _evict(self, backend: Backend, model: str) -> None:
        await backend.unload(model)
        while not await backend.is_unloaded(model):  # it frees the memory a little later
            await asyncio.sleep(POLL_S)
        self._residency(backend).on_unloaded(model)
        self.evictions[model] += 1
        log.info("model evicted", extra={"model": model, "triton": backend.address})

    def _residency(self, backend: Backend) -> Residency:
        """The budget of a Triton, with the models that it has loaded, by whatever means."""
        residency = self._budgets.get(backend)
        if residency is None:
            assert backend.model_memory
            residency = self._budgets[backend] = Residency(backend.model_memory)
            self._turns[backend] = LoadTurns(self._clients_of)
            self._tell_memory(residency)
        loaded = {model.config.name for model in self._directory.whole.loaded.get(backend, ())} & self._models.keys()
        for model in residency.resident - loaded:
            residency.on_unloaded(model)
        for model in loaded - residency.resident:
            residency.on_loaded(model)
        return residency

    def _tell_memory(self, residency: Residency) -> None:
        for model, memory_bytes in self._memory.items():
            residency.set_memory(model, memory_bytes)
        for model, settings in self._models.items():
            if settings.memory is not None:
                residency.set_memory(model, int(settings.memory))


def metrics_of(
    loads: Mapping[str, int],
    prefetches: Mapping[str, int],
    evictions: Mapping[str, int],
    memory: Mapping[str, tuple[int, int]],
) -> list[Metric]:
    """Return metrics of models on demand.

    Args:
        loads: number of loads by model.
        prefetches: number of those before a request, by model.
        evictions: number of evictions by model.
        memory: budget and used bytes by the address of a Triton.
    """
    found: list[Metric] = []
    described = (
        ("loads", "Number of loads of models on demand.", loads),
        ("prefetches", "Number of loads of models on demand before their next requests.", prefetches),
        ("evictions", "Number of evictions of models on demand.", evictions),
    )
    for what, words, counts in described:
        counter = CounterMetricFamily(f"tidegate_on_demand_{what}_total", words, labels=("model",))
        for model, count in counts.items():
            counter.add_metric((model,), count)
        found.append(counter)
    gauge = GaugeMetricFamily(
        "tidegate_on_demand_memory_bytes",
        "Memory for models on demand, and what those that are loaded take of it.",
        labels=("triton", "of"),
    )
    for address, (budget_bytes, used_bytes) in memory.items():
        gauge.add_metric((address, "budget"), budget_bytes)
        gauge.add_metric((address, "used"), used_bytes)
    return [*found, gauge]
