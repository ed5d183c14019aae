"""Version rollout: a new version of a model gets copies of requests, then a fraction of them; promoted or undone.

Requests that name no version get one here, as long as the rollout is configured; those that name one keep it.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import grpc
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.configuration.config import ServeConfig, VersionRolloutConfig
from tidegate_proxy.messages import guards
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.wire import first_string, lacks_model_version, with_model_version, with_other_model_version
from tidegate_proxy.rollout.verdict_file import StoredVerdict, VerdictFile
from tidegate_proxy.rollout.version_comparison import (
    RequestComparison,
    RequestEnd,
    ResponseComparison,
    Verdict,
    why_different,
)
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.service.batch_verification import wait_until_idle
from tidegate_proxy.transport import CallFailed, RpcCall
from tidegate_proxy.tritons.backend import INFER_METHOD, Backend
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog

log = logging.getLogger(__name__)

VERDICT_INTERVAL_S: Final = 1.0
"""Interval in seconds at which a rollout looks for a verdict."""
COPY_TIMEOUT_S: Final = 30.0
NO_SLO_NS: Final = 1 << 62
"""SLO in ns of a model without one: every answer is on time."""
ROLLOUT_STATES: Final = ("waiting", "shadow", "canary", "promoted", "undone", "pinned")
"""States of a rollout: waiting for the candidate to be ready; both comparisons; the ends; no candidate is named."""
INVALID_CODES: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
"""Status codes of Triton for an invalid request; over HTTP those of 400 to 499."""
CopiedRequest = bytes | Callable[[], Awaitable[bytes | None]]
"""Serialized ModelInferRequest to copy, or a function that returns it, if it can; called once no client waits."""
SEQUENCE_WORDS: Final = "its sequence_batching needs all requests of a sequence at one version"
_OK_STATUS: Final = 200
_CLIENT_LEFT_STATUS: Final = 499
"""HTTP status of Triton for a client that left; Tidegate sends none."""


def end_of_grpc(code: grpc.StatusCode, reason: str) -> RequestEnd:
    """Return the end of a request by the status of its error. `reason`: that of Tidegate, if it rejected it."""
    if reason or code is grpc.StatusCode.CANCELLED:
        return RequestEnd.REJECTED
    return RequestEnd.INVALID if code in INVALID_CODES else RequestEnd.FAILED


def end_of_http(status: int, *, is_rejected: bool) -> RequestEnd:
    """Return the end of a request by the status of its response; 0: it has none, because its client left.

    `is_rejected`: whether Tidegate rejected it.
    """
    if status == _OK_STATUS:
        return RequestEnd.ANSWERED
    if is_rejected or status in (0, _CLIENT_LEFT_STATUS):
        return RequestEnd.REJECTED
    return RequestEnd.INVALID if 400 <= status < 500 else RequestEnd.FAILED


class ChosenVersion:
    """Version that a request was given, and the comparison that hears how the request ends."""

    __slots__ = ("_began_ns", "_client", "_is_candidate", "_rollout", "version")

    def __init__(
        self, version: str, rollout: "VersionRollout | None" = None, *, is_candidate: bool = False, client: str = ""
    ) -> None:
        """Create the choice. `rollout`: compares the outcome; None: nothing does. `is_candidate`: its group there.

        `client`: see `RequestComparison.ended`.
        """
        self.version = version
        self._client = client
        self._rollout = rollout
        self._is_candidate = is_candidate
        self._began_ns = time.monotonic_ns()

    @property
    def is_compared(self) -> bool:
        """Whether a comparison hears of the outcome."""
        return self._rollout is not None

    def ended(self, end: RequestEnd) -> None:
        """Record the end of the request."""
        if self._rollout:
            self._rollout.requests.ended(
                self._began_ns,
                time.monotonic_ns(),
                self._rollout.slo_ns,
                end,
                is_candidate=self._is_candidate,
                client=self._client,
            )


@dataclass(eq=False, repr=False)
class VersionRollout:
    """Rollout of one model: its state, and what was compared. Use it only in the event loop."""

    model: str
    config: VersionRolloutConfig
    _directory: CurrentCatalog
    _random: Random

    def __post_init__(self) -> None:
        self._stable, self._candidate = str(self.config.stable), str(self.config.candidate or "")
        self.state = "waiting" if self.config.candidate else "pinned"
        """State, one of `ROLLOUT_STATES`."""
        self.verdict = ""
        """Reason for the latest change of state, or for none yet."""
        self.since_ns = time.monotonic_ns()
        """Beginning of the state, in ns of the monotonic clock."""
        self.requests = RequestComparison(self.model, self.config.tolerance)
        self.responses = ResponseComparison(self.config.min_agreement, self.config.max_slowdown)
        self._seen: Catalog | None = None
        self._ready: tuple[bool, bool] = False, False
        """Whether the stable version is ready on some Triton, and the candidate on all that have the model."""
        self._has_sequences = False
        """Whether the model keeps state between requests, which a change of version would lose."""

    @property
    def slo_ns(self) -> int:
        """SLO of the model."""
        model = self._directory.catalog.models.get(self.model)
        return NO_SLO_NS if model is None or model.slo_ns is None else model.slo_ns

    @property
    def settings(self) -> dict[str, Any]:
        """Settings other than defaults, as the file with verdicts has them."""
        return self.config.model_dump(mode="json", exclude_defaults=True)

    def choose(self, key: str, *, is_compared: bool) -> ChosenVersion | None:
        """Return the version for a request that names none; None: any. `key`: see `rollouts.versions.NAME.sticky`.

        `is_compared`: whether the outcome is reported; otherwise the request gets no candidate before its promotion.
        """
        has_stable, has_candidate = self._readiness()
        if self.state == "promoted" and has_candidate:
            return ChosenVersion(self._candidate)
        if not has_stable:
            return None
        if self.state != "canary" or not is_compared or not has_candidate or self._has_sequences:
            return ChosenVersion(self._stable)
        if key and self.requests.clients.is_returned(key):
            return ChosenVersion(self._stable, self, client=key)
        drawn = zlib.crc32(f"{self.model}/{key}".encode()) / (1 << 32) if key else self._random.random()
        is_candidate = drawn < (self.config.canary or 0.0)
        version = self._candidate if is_candidate else self._stable
        chosen = ChosenVersion(version, self, is_candidate=is_candidate, client=key)
        self.requests.began(time.monotonic_ns(), is_candidate=is_candidate)
        return chosen

    def copies(self) -> bool:
        """Return whether to copy the next request."""
        if self.state != "shadow" or not self._readiness()[1] or self._has_sequences:
            return False
        return self._random.random() < (self.config.shadow or 0.0)

    def any_of(self, tritons: Sequence[Backend]) -> Backend:
        """Return one of the Tritons for the next copy."""
        return tritons[int(self._random.random() * len(tritons))]

    def order(self) -> tuple[str, str]:
        """Return both versions in random order: what runs second may find caches warm."""
        pair = self._stable, self._candidate
        return pair if self._random.random() < 0.5 else pair[::-1]

    async def compare(self, took: Mapping[str, tuple[bytes | str, int]]) -> None:
        """Compare what the versions answered to one copy: a response or an error, and the ns that it took."""
        (answer, _), (other, _) = stable, candidate = took[self._stable], took[self._candidate]
        found = ""
        if isinstance(answer, bytes) and isinstance(other, bytes):  # large ones take time
            found = await asyncio.to_thread(why_different, answer, other, self.config.numeric_tolerance)
        self.responses.add(stable, candidate, found)

    def look(self, now_ns: int) -> None:
        """Advance to the next state if the comparison has a verdict, or if the time for one is over."""
        has_stable, has_candidate = self._readiness()
        if self.state == "waiting":
            if self._has_sequences:
                self.verdict = SEQUENCE_WORDS
            elif has_stable and has_candidate:
                self._enter(self._next_state("waiting"), "both versions are ready", now_ns)
            elif has_stable:
                self.verdict = f"version {self._candidate} is not ready on every Triton that has the model"
            else:
                self.verdict = f"version {self._stable} is not ready on any Triton"
        elif self.state in ("shadow", "canary") and self._has_sequences:
            self._enter("waiting", SEQUENCE_WORDS, now_ns)
        elif self.state in ("shadow", "canary"):
            compared = self.responses if self.state == "shadow" else self.requests
            verdict, words = compared.verdict(now_ns)
            if verdict is Verdict.WORSE:
                self._enter("undone", words, now_ns)
            elif verdict is Verdict.AS_GOOD:
                self._enter(self._next_state(self.state), words, now_ns)
            elif now_ns - self.since_ns > self.config.timeout_s * 1e9:
                words = f"no verdict within {self.config.timeout_s:g} s (timeout_s): {words}"
                self._enter("undone", words, now_ns)
            else:
                self.verdict = words

    def fail_early(self, now_ns: int) -> None:
        """Undo a canary whose errors leave no doubt, without waiting for blocks of time to settle."""
        if self.state == "canary" and (words := self.requests.why_hopeless()):
            self._enter("undone", words, now_ns)

    def restore(self, stored: StoredVerdict) -> None:
        """Take up a verdict of an earlier run."""
        self.state, self.verdict = stored.state, stored.why

    def to_store(self) -> StoredVerdict | None:
        """Return the verdict; None if there is none yet."""
        if self.state not in ("promoted", "undone"):
            return None
        return StoredVerdict(self.model, self.settings, self.state, self.verdict)

    def describe(self) -> str:
        """Describe the rollout in one sentence."""
        stable, candidate = f"version {self._stable}", f"version {self._candidate}"
        words = {
            "waiting": f"{stable} serves, {candidate} waits",
            "shadow": f"{stable} serves, {candidate} gets copies of {_percent(self.config.shadow)} of the requests",
            "canary": f"{candidate} gets {_percent(self.config.canary)} of the requests, {stable} the others",
            "promoted": f"{candidate} is promoted",
            "undone": f"{candidate} is undone, {stable} serves",
            "pinned": f"{stable} serves",
        }[self.state]
        words = f"{self.model}: {words}"
        return f"{words}: {self.verdict}." if self.verdict else f"{words}."

    def document(self) -> dict[str, Any]:
        """Return the rollout as JSON for GET /rollouts."""
        return {
            "model": self.model,
            "stable": self._stable,
            "candidate": self._candidate or None,
            "state": self.state,
            "why": self.verdict,
            "shadow": self.responses.document(),
            "canary": self.requests.document(),
        }

    def _next_state(self, state: str) -> str:
        stages = [
            name
            for name, fraction in (("shadow", self.config.shadow), ("canary", self.config.canary))
            if fraction is not None
        ]
        rest = stages if state == "waiting" else stages[stages.index(state) + 1 :]
        return rest[0] if rest else "promoted"

    def _enter(self, state: str, why: str, now_ns: int) -> None:
        self.state, self.verdict, self.since_ns = state, why, now_ns
        if state == "shadow":
            self.responses = ResponseComparison(self.config.min_agreement, self.config.max_slowdown)
        elif state == "canary":
            self.requests = RequestComparison(self.model, self.config.tolerance, now_ns)
        level = logging.WARNING if state == "undone" else logging.INFO
        fields = {"model": self.model, "stable": self._stable, "candidate": self._candidate, "state": state}
        log.log(level, "version rollout", extra={**fields, "why": why})

    def _readiness(self) -> tuple[bool, bool]:
        catalog = self._directory.catalog
        if catalog is not self._seen:
            loaded = [
                each
                for backend in catalog.hosts.get(self.model, ())
                for each in catalog.loaded.get(backend, ())
                if each.config.name == self.model
            ]
            versions = [each.versions for each in loaded]
            self._has_sequences = any(each.config.HasField("sequence_batching") for each in loaded)
            has_stable = any(self._stable in each for each in versions)
            self._ready = has_stable, bool(versions) and all(self._candidate in each for each in versions)
            self._seen = catalog
        return self._ready


class VersionRollouts(Collector):
    """Rollouts of all models that the configuration names. Use it only in the event loop, except `collect`."""

    def __init__(self, config: ServeConfig, directory: CurrentCatalog) -> None:
        self._directory = directory
        self._random = Random(config.seed)
        self._has_tenants = False
        """Whether a client's identity begins with its tenant; tenants that applications name are not known here."""
        self._samples: asyncio.Queue[tuple[VersionRollout, CopiedRequest]] = asyncio.Queue(maxsize=1)
        """The next request to copy."""
        self.of_model: dict[str, VersionRollout] = {}
        """Rollouts by model; empty: no model has one."""
        self._verdicts = VerdictFile(config.rollouts.verdict_file)
        self.follow(config)

    def follow(self, config: ServeConfig) -> None:
        """Begin the rollouts that have changed, and end those that are gone; the others go on."""
        self._has_tenants = config.tenants is not None and config.tenants.by != "application"
        if config.rollouts.verdict_file != self._verdicts.path:
            self._verdicts = VerdictFile(config.rollouts.verdict_file)
        self.of_model = {
            model: self.of_model[model]
            if model in self.of_model and self.of_model[model].config == wanted
            else self._begun(model, wanted)
            for model, wanted in config.rollouts.versions.items()
        }

    def _begun(self, model: str, config: VersionRolloutConfig) -> VersionRollout:
        """Return a rollout that begins, or has its verdict from an earlier run."""
        rollout = VersionRollout(model, config, self._directory, self._random)
        if stored := self._verdicts.find(rollout.model, rollout.settings):
            rollout.restore(stored)
        return rollout

    def route(self, message: bytes, call: RpcCall) -> tuple[bytes, RpcCall]:
        """Name a version in a ModelInferRequest that names none, and have its outcome compared."""
        rollout = self.of_model.get(first_string(message))
        if rollout is None or not lacks_model_version(message):
            return message, call
        chosen = rollout.choose(self._key(rollout, call.owner), is_compared=True)
        if chosen is None:
            return message, call
        if self.wants_copy(rollout.model):
            self.copy(rollout.model, message)
        named = with_model_version(message, chosen.version)
        return named, ComparedCall(call, chosen) if chosen.is_compared else call

    def route_in_stream(self, message: bytes) -> bytes:
        """Name a version in a request of a stream, whose outcome is not compared: no candidate before its promotion."""
        rollout = self.of_model.get(first_string(message))
        chosen = rollout.choose("", is_compared=False) if rollout else None
        return with_model_version(message, chosen.version) if chosen else message

    def choose(self, model: str, owner: str, *, is_compared: bool) -> ChosenVersion | None:
        """Return the version of an HTTP inference that names none; None: any.

        `owner`: client; `is_compared`: see `VersionRollout.choose`.
        """
        rollout = self.of_model.get(model)
        return rollout.choose(self._key(rollout, owner), is_compared=is_compared) if rollout else None

    def wants_copy(self, model: str) -> bool:
        """Draw whether to copy the next inference of a model, which names no version: see `copy`."""
        rollout = self.of_model.get(model)
        if rollout is None or not rollout.copies():
            return False
        if self._samples.full():
            rollout.responses.left_out += 1
            return False
        return True

    def copy(self, model: str, request: CopiedRequest) -> None:
        """Send copies of a request to both versions of its model."""
        if rollout := self.of_model.get(model):  # it may be gone meanwhile
            if self._samples.full():
                rollout.responses.left_out += 1
            else:
                self._samples.put_nowait((rollout, request))

    async def run(self, driver: Driver) -> None:
        """Run forever: look for verdicts, and compare copies while their Triton is idle."""
        await asyncio.gather(self._look(), self._compare_copies(driver))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(VERDICT_INTERVAL_S)
            for rollout in list(self.of_model.values()):
                with faults.contained("the rollout of a version"):  # requests do not depend on it
                    now_ns = time.monotonic_ns()
                    rollout.fail_early(now_ns)
                    rollout.look(now_ns)
            verdicts = [stored for rollout in self.of_model.values() if (stored := rollout.to_store())]
            if self._verdicts.differs(verdicts):
                await asyncio.to_thread(self._verdicts.write, verdicts)

    async def _compare_copies(self, driver: Driver) -> None:
        while True:
            rollout, copied = await self._samples.get()
            with faults.contained("comparing versions of a model"):  # requests do not depend on it
                await self._compare(rollout, copied, driver)

    def document(self) -> list[dict[str, Any]]:
        """Return all rollouts as JSON for GET /rollouts."""
        return [rollout.document() for rollout in self.of_model.values()]

    def sentences(self) -> list[str]:
        """Return a sentence for each rollout."""
        return [rollout.describe() for rollout in self.of_model.values()]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield states and comparisons as Prometheus metrics."""
        states = GaugeMetricFamily(
            "tidegate_version_rollout_state",
            "1 for the state of the rollout of a model's new version, 0 for all others.",
            labels=["model", "version", "state"],
        )
        gain = GaugeMetricFamily(
            "tidegate_version_rollout_gain",
            "Attainment, or fraction of requests without error, of the new version minus that of the stable one: the "
            "bounds of the 95 % interval.",
            labels=["model", "comparison", "bound"],
        )
        ratio = GaugeMetricFamily(
            "tidegate_version_rollout_copies_ratio",
            "Fraction of copied requests that both versions answer alike (agreement), and latency of the new version "
            "as a multiple of the stable one's (slowdown): the bounds of the 95 % interval.",
            labels=["model", "comparison", "bound"],
        )
        for rollout in list(self.of_model.values()):
            candidate = str(rollout.config.candidate or "")
            for state in ROLLOUT_STATES:
                states.add_metric([rollout.model, candidate, state], rollout.state == state)
            for metric, intervals in ((gain, rollout.requests.intervals()), (ratio, rollout.responses.intervals())):
                for comparison, interval in intervals.items():
                    for bound, value in zip(("low", "high"), interval or (), strict=False):
                        metric.add_metric([rollout.model, comparison, bound], value)
        yield from (states, gain, ratio)

    def _key(self, rollout: VersionRollout, owner: str) -> str:
        if not rollout.config.sticky:
            return ""
        return owner.partition("/")[0] if self._has_tenants else owner

    async def _compare(self, rollout: VersionRollout, copied: CopiedRequest, driver: Driver) -> None:
        """Ask both versions on the same Triton, and compare what they answer.

        Each is asked when the Triton is idle, so that clients do not wait.
        """
        message = copied if isinstance(copied, bytes) else await copied()
        request = PassedThrough.of(message or b"")
        living = [each for each in self._directory.catalog.takers(rollout.model, request.header) if each.alive]
        if message is None or not living or not _may_be_copied(request):
            rollout.responses.left_out += 1
            return
        backend = rollout.any_of(living)
        took: dict[str, tuple[bytes | str, int]] = {}
        for version in rollout.order():
            if not await wait_until_idle(backend, driver):
                rollout.responses.left_out += 1
                return
            began_ns = time.monotonic_ns()
            answer: bytes | str
            try:
                asked = with_other_model_version(message, version)
                answer = await backend.ask(INFER_METHOD, asked, timeout_s=COPY_TIMEOUT_S)
            except CallFailed as error:
                answer = str(error)
            took[version] = answer, time.monotonic_ns() - began_ns
        if backend.alive:  # what a lost Triton says is no fault of a version
            await rollout.compare(took)


def _may_be_copied(request: PassedThrough) -> bool:
    """Return whether a request can be sent to any Triton twice, and harms none."""
    if request.header is None or request.regions or request.sequence:
        return False
    return not guards.shape_problem((tensor.name, tensor.shape) for tensor in request.header.inputs)


def _percent(fraction: float | None) -> str:
    return f"{100 * (fraction or 0):g} %"


class ComparedCall(RpcCall):
    """gRPC call of a client whose outcome counts for the version that its request was given."""

    __slots__ = ("_call", "_chosen")

    def __init__(self, call: RpcCall, chosen: ChosenVersion) -> None:
        super().__init__(call.method, call.metadata)
        self.owner = call.owner
        self._call = call
        self._chosen = chosen

    def add_disconnect_callback(self, then: Callable[[], None]) -> None:
        """Call `then` once the client is gone."""
        self._call.add_disconnect_callback(then)

    def peer(self) -> str:
        """Address of the client, as gRPC writes it."""
        return self._call.peer()

    def remaining_s(self) -> float | None:
        """Return the seconds until the client's deadline."""
        return self._call.remaining_s()

    def receive(self, then: Callable[[bytes | None], None], within_s: float | None = None) -> None:
        """Call `then` with the next message."""
        self._call.receive(then, within_s)

    def release(self, size: int) -> None:
        """Release `size` received bytes."""
        self._call.release(size)

    def answer(self, message: bytes) -> None:
        """End the call with its response."""
        self._chosen.ended(RequestEnd.ANSWERED)
        self._call.answer(message)

    def send(self, message: bytes, then: Callable[[object], None]) -> None:
        """Send one message of a stream."""
        self._call.send(message, then)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, details: str = "", reason: str = "") -> None:
        """End the call without a response. `reason`: that of Tidegate, if it rejected the request."""
        self._chosen.ended(end_of_grpc(code, reason))
        self._call.end(code, details, reason)
