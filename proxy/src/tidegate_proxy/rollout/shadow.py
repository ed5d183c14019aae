"""Shadow mode: bypasses all requests and simulates in another process what a policy would gain.

That process runs at the lowest priority (`tidegate.sim.shadow`). The proxy never waits for it: requests that it does
not read in time are left out and counted, and if it exits another is started later.
"""

import asyncio
import logging
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from google.protobuf.json_format import MessageToDict
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from tritonclient.grpc import service_pb2
from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching

from tidegate.schemas import ProfileFile, options_of
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.labels import label
from tidegate_proxy.base.tasks import cancel
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.messages.request import InferenceRequest
from tidegate_proxy.transport import CallFailed
from tidegate_proxy.tritons.backend import SERVICE_PREFIX, Backend
from tidegate_proxy.tritons.catalog import Catalog, CurrentCatalog, catalog_for_shadow
from tidegate_proxy.tritons.initial_profiles import hosted, starting_profiles

log = logging.getLogger(__name__)

SHADOW_COMMAND: Final = ("-m", "tidegate.sim.shadow_process")
TELL_EVERY_S: Final = 1.0
REPORT_EVERY: Final = 10
"""Number of messages between two requests for a report."""
MAX_REQUESTS: Final = 20_000
"""Largest number of requests between two messages; further ones are counted, and left out."""
MAX_UNREAD_BYTES: Final = 16 << 20
"""Maximum bytes that the process has not read; messages beyond are dropped."""
MAX_REPORT: Final = 4 << 20
START_AGAIN_S: Final = 60.0
OVERDUE_S: Final = 60.0
"""Seconds after which a missing report is logged."""
GIVE_UP_S: Final = 300.0
"""Seconds after which a missing report would be outdated: the process is stopped, or stuck."""
LAST_WORDS_WITHIN_S: Final = 5.0
STATISTICS_METHOD: Final = SERVICE_PREFIX + "ModelStatistics"
LAST_WORDS: Final = 20
"""Number of lines of the process's standard error that are kept."""


Executed = tuple[str, str, int, int, list[tuple[int, int, int]]]
"""Statistics of a Triton on a model (`tidegate.sim.shadow_messages.TritonStatistics`)."""


class Shadow(Collector):
    """Shadow mode: sends bypassed requests to a process that simulates a policy.

    Call only from the event loop, except `seen` and `collect`.
    """

    def __init__(
        self, config: ServeConfig, in_force: SettingsHolder, directory: CurrentCatalog, measured: ProfileFile
    ) -> None:
        self._policy = config.policy
        self._models = config.models
        self._seed = config.seed
        self._in_force = in_force
        self._directory = directory
        self._measured = measured
        self._seen: list[tuple[int, str, int, str, str]] = []
        self._ended: list[tuple[int, str, int, bool]] = []
        self._counts = Counter[str]()
        self._starting: asyncio.Task[asyncio.subprocess.Process] | None = None
        """Task that starts the process; cancelling a waiter does not cancel the start."""
        self._process: asyncio.subprocess.Process | None = None
        self._judged: tuple[Catalog, Catalog] | None = None
        """The current catalog, and that which is judged: one value, since threads replace it. None: not asked for."""
        self._reported_catalog: Catalog | None = None
        self._report: dict[str, Any] | None = None
        self._messages = 0
        self._asked_s: float | None = None
        """Since when a report is awaited, by the monotonic clock; None: none is."""
        self._asked_of = config.policy
        """The policy of which a report was asked for last."""
        self._ended_why = ""
        """Why the process ended that was there last; empty while one runs."""
        self._said_nothing = ""
        """Why nothing was said, as the log has it already."""

    @property
    def is_on(self) -> bool:
        """Whether shadow mode is on, so that requests bypass scheduling."""
        return self._in_force.settings.shadow

    def judged(self) -> Catalog:
        """Return the catalog to simulate.

        Models that could be scheduled count as scheduled, and those that Triton batches as batched.
        """
        current = self._directory.catalog
        known = self._judged
        if known is None or known[0] is not current:
            known = current, catalog_for_shadow(current, self._models, self._directory.unbatched)
            self._judged = known
        return known[1]

    @property
    def assumed(self) -> tuple[str, ...]:
        """Models that are judged as if `scheduling: batched` were set, which it is not."""
        return _batched_on_trial(self._directory.catalog, self.judged()) if self.is_on else ()

    @property
    def policy(self) -> str:
        """Name of the simulated policy."""
        return self._policy.name

    @property
    def process_id(self) -> int | None:
        """Id of the simulating process; None: none runs."""
        return self._process.pid if self._process else None

    @property
    def why(self) -> str:
        """Reason for a missing or outdated report; "" if none is known."""
        if not self.is_on:
            return ""
        if self._ended_why:
            return f"the simulator {self._ended_why} (requests do not notice); it is started again after a minute"
        if (late_s := self._late_s) > OVERDUE_S:
            return f"the simulator has not answered for {late_s:.0f} s: it has the lowest priority on this machine"
        if all(model.slo_ns is None for model in self.judged().models.values()):
            return "no model has an SLO to be on time for: --slo MODEL=MS, or models.MODEL.slo_ms"
        if self._report and not self._report["estimates"]:
            return "nothing has come that could have been scheduled, of models that have an SLO, in the latest minute"
        return ""

    @property
    def _late_s(self) -> float:
        """For how long a report is awaited."""
        return 0.0 if self._asked_s is None else time.monotonic() - self._asked_s

    def seen(self, envelope: InferenceRequest) -> None:
        """Record a bypassed request that could have been scheduled."""
        if len(self._seen) < MAX_REQUESTS:
            heading = envelope.heading
            merge_key = label(heading.merge_key)  # clients choose how long it is
            self._seen.append((time.monotonic_ns(), heading.model, heading.rows, merge_key, heading.shape))
        else:
            self._counts["left_out"] += 1

    def ended(self, model: str, sent_ns: int, took_ns: int, ok: bool) -> None:
        """Record the response to a bypassed request; ignored for models that cannot be scheduled.

        `sent_ns`: instant of sending; `took_ns`: its latency; `ok`: whether it succeeded.
        """
        if self.is_on and len(self._ended) < MAX_REQUESTS and model in self.judged().models:
            self._ended.append((sent_ns, model, took_ns, ok))

    def document(self) -> dict[str, Any]:
        """Return the latest report as JSON for GET /shadow."""
        return {
            "shadow": self.is_on,
            "seen": self._counts["seen"],
            "left_out": self._counts["left_out"],
            "simulator": "runs" if self._process else "does not run",
            "why": self.why,
            "as_if_batched": self.assumed,
            "report": self._report,
        }

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the latest report as Prometheus metrics."""
        return gauges((self._report or {}).get("estimates", ()) if self.is_on else ())

    def follow(self, config: ServeConfig) -> None:
        """Simulate another policy, or other settings of models, from now on."""
        if (config.policy, config.models) != (self._policy, self._models):
            self._policy, self._models, self._reported_catalog, self._report = config.policy, config.models, None, None
            self._judged = None

    async def run(self) -> None:
        """Run forever: send bypassed requests to the process while shadow mode is on."""
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            if not self.is_on:
                await self._end()
                continue
            why = ""
            try:
                why = await self._run_process()
            except Exception as error:
                faults.report("the simulator of shadow mode", error)
                why = f"could not be run: {type(error).__name__}: {error}"
            await self._end()
            if self.is_on:
                self._ended_why = why
                log.warning(
                    "shadow simulator ended, requests are not affected",
                    extra={"error": why, "restart_in_s": START_AGAIN_S},
                )
                await asyncio.sleep(START_AGAIN_S)
                self._ended_why = ""
                self._counts["left_out"] += len(self._seen)  # there would be gaps in it
                self._seen, self._ended = [], []

    async def close(self) -> None:
        """Stop the process."""
        await self._end()

    async def _run_process(self) -> str:
        """Until it ends, or shadow mode does: why it ended, in words that follow "the simulator"."""
        pipe = asyncio.subprocess.PIPE
        self._starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                sys.executable,
                *SHADOW_COMMAND,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                limit=MAX_REPORT,
                start_new_session=True,  # Ctrl-C is for this process, which ends it when it has drained
            )
        )
        self._process = process = await asyncio.shield(self._starting)
        self._reported_catalog = self._asked_s = None
        last_words = deque[str](maxlen=LAST_WORDS)
        reading = asyncio.create_task(self._read(process))
        hearing = asyncio.create_task(_hear(process, last_words))
        try:
            while self.is_on and process.returncode is None and not reading.done():
                executed = await self._executed() if self._messages % REPORT_EVERY in (0, REPORT_EVERY - 1) else []
                self._tell(process, executed)
                await asyncio.sleep(TELL_EVERY_S)
                if self._late_s > GIVE_UP_S:
                    return f"had not answered for {GIVE_UP_S:g} s, and was ended"
            if reading.done() and (error := reading.exception()):
                return f"said what cannot be read: {type(error).__name__}: {error}"
            if self.is_on:
                await asyncio.wait_for(asyncio.gather(process.wait(), hearing), LAST_WORDS_WITHIN_S)
            return _end_in_words(process.returncode, last_words)
        finally:
            await cancel(reading, hearing)

    async def _executed(self) -> list[Executed]:
        """Return the statistics of scheduled models from the Tritons that answer."""
        catalog = self.judged()
        asked = [backend for backend in catalog.loaded if backend.alive]
        answers = zip(asked, await asyncio.gather(*map(statistics_of, asked)), strict=True)
        of_each = (
            executed(backend.address, answer, catalog.models) for backend, answer in answers if answer is not None
        )
        return list(chain.from_iterable(of_each))

    def _tell(self, process: asyncio.subprocess.Process, executed: Sequence[Executed]) -> None:
        seen, self._seen = self._seen, []
        ended, self._ended = self._ended, []
        stdin = process.stdin
        if stdin is None or stdin.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._counts["left_out"] += len(seen)
            return
        self._counts["seen"] += len(seen)
        catalog = self.judged()
        if self._reported_catalog is None or not catalog.same_plan(self._reported_catalog):
            self._reported_catalog = catalog
            stdin.write(msgspec.json.encode(self._begin(catalog)) + b"\n")
        self._messages += 1
        is_wanted = self._messages % REPORT_EVERY == 0 and self._asked_s is None  # or they would pile up
        if is_wanted:
            self._asked_s, self._asked_of = time.monotonic(), self._policy
        passed = {
            "type": "passed",
            "now_ns": time.monotonic_ns(),
            "seen": seen,
            "ended": ended,
            "report": is_wanted,
            "executed": executed,
        }
        stdin.write(msgspec.json.encode(passed) + b"\n")

    def _begin(self, catalog: Catalog) -> dict[str, Any]:
        guessed = {
            name
            for name, device_class in hosted(catalog)
            if not self._measured.profiles_of(name, device_class, catalog.models[name].max_rows)
        }
        setup = {
            "models": tuple(catalog.models.values()),
            "workers": tuple(catalog.workers),
            "profiles": starting_profiles(catalog, self._measured),
            "seed": self._seed,
        }
        policy = self._policy
        return {
            "type": "begin",
            "setup": setup,
            "policy": policy.name,
            "options": policy.options,
            "batcher": own_batching(catalog),
            "guessed": sorted(guessed),
            "assumed": _batched_on_trial(self._directory.catalog, catalog),
        }

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout, "it was asked for"
        while line := await process.stdout.readline():
            report, self._asked_s = msgspec.json.decode(line, type=dict[str, Any]), None
            if self._asked_of != self._policy:
                continue  # another is spoken of by now
            self._report = report
            for estimate in report["estimates"]:
                if not estimate["model"]:
                    log.info(
                        "shadow estimate", extra={"detail": _in_words(report["policy"], report["tuned"], estimate)}
                    )
            if (why := self.why) != self._said_nothing:
                self._said_nothing = why
                if why:
                    log.info("no shadow estimate", extra={"detail": why})

    async def _end(self) -> None:
        if self._starting is not None:  # it exists even if the task that starts it is cancelled
            await asyncio.wait([self._starting])
            self._process = None if self._starting.exception() else self._starting.result()
            self._starting = None
        process = self._process
        self._seen, self._ended = [], []
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()
        self._process = None  # not before: if this is cancelled, the task that closes continues with it
        # Pipes with unread output would stay open, and asyncio has no public way to close them.
        process._transport.close()  # type: ignore[attr-defined]


async def _hear(process: asyncio.subprocess.Process, last_words: deque[str]) -> None:
    """Keep what it says of its own end, and of nothing else: it has no log."""
    assert process.stderr, "it was asked for"
    while line := await process.stderr.readline():
        if text := line.decode(errors="replace").strip():
            last_words.append(text)


def _end_in_words(status: int | None, last_words: Sequence[str]) -> str:
    """How a process ended, to follow "the simulator"."""
    if status is not None and status < 0:
        return f"was ended by signal {signal.Signals(-status).name}"
    error_text = f": {last_words[-1]}" if last_words else ""
    return f"ended with {status}{error_text}"


def gauges(estimates: Iterable[dict[str, Any]]) -> Iterator[GaugeMetricFamily]:
    """Yield estimates as metrics."""
    attainment = GaugeMetricFamily(
        "tidegate_shadow_attainment",
        "Fraction of requests on time in the latest minute of shadow mode: as measured, and as simulated under "
        "Triton's own batcher, unmodified and tuned, and under the policy.",
        labels=["model", "source"],
    )
    gain = GaugeMetricFamily(
        "tidegate_shadow_gain",
        "What the policy would add to the attainment: the bounds of the 95 % interval. Absent where nothing is "
        "promised.",
        labels=["model", "bound"],
    )
    for estimate in estimates:
        for source in ("measured", "batcher", "tuned", "policy"):
            attainment.add_metric([estimate["model"], source], estimate[source])
        for bound, value in zip(("low", "high"), estimate["gain"] or (), strict=False):
            gain.add_metric([estimate["model"], bound], value)
    yield attainment
    yield gain


async def statistics_of(backend: Backend) -> service_pb2.ModelStatisticsResponse | None:
    """Return the statistics of a Triton; None if it does not answer."""
    try:
        message = service_pb2.ModelStatisticsRequest().SerializeToString()
        answer = await backend.ask(STATISTICS_METHOD, message, timeout_s=TELL_EVERY_S)
    except CallFailed:
        return None
    return service_pb2.ModelStatisticsResponse.FromString(answer)


def executed(address: str, answer: service_pb2.ModelStatisticsResponse, models: Container[str]) -> list[Executed]:
    """Return the statistics of these models, by version, from the Triton at this address."""
    return [
        (
            model.name,
            f"{address} {model.version}",
            model.inference_stats.success.count,
            model.inference_stats.success.ns,
            [
                (
                    batch.batch_size,
                    batch.compute_infer.count,
                    batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns,
                )
                for batch in model.batch_stats
            ],
        )
        for model in answer.model_stats
        if model.name in models
    ]


def own_batching(catalog: Catalog) -> dict[str, Any]:
    """Return the configuration of the Tritons' own batchers, as options of the policy `triton`.

    If the Tritons batch a model differently, the most common configuration counts. Models on one worker share it by
    Triton's rate limiter, which prefers the model with the fewest executions.
    """
    ways: dict[str, Counter[bytes]] = {}
    for models in catalog.loaded.values():
        for model in models:
            if model.config.name in catalog.models:
                way = model.config.dynamic_batching.SerializeToString(deterministic=True)
                ways.setdefault(model.config.name, Counter())[way] += 1
    batching = {name: _batching(found.most_common(1)[0][0]) for name, found in sorted(ways.items())}
    return {"queue_order": "fewest", "models": batching}


def _batched_on_trial(current: Catalog, judged: Catalog) -> tuple[str, ...]:
    """Return the models that are batched in one catalog, and are unbatched or bypassed in the current one."""
    return tuple(
        sorted(
            name
            for name in judged.models
            if judged.consents[name].scheduling == "batched" != current.consents[name].scheduling
        )
    )


def _batching(way: bytes) -> dict[str, Any]:
    return options_of(MessageToDict(ModelDynamicBatching.FromString(way), preserving_proto_field_name=True))


def _in_words(policy: str, tuned: str, estimate: dict[str, Any]) -> str:
    text = f"{100 * estimate['measured']:.1f} % on time of {estimate['requests']} requests"
    if estimate["gain"] is None:
        return f"{text}; what {policy} would gain is not said: {estimate['why']}"
    low, high = (100 * bound for bound in estimate["gain"])
    tuned_low, tuned_high = (100 * bound for bound in estimate["over_tuned"])
    doubt = f". {estimate['doubt']}" if estimate["doubt"] else ""
    return (
        f"{text}; with {policy} {low:+.1f} to {high:+.1f} percentage points, {tuned_low:+.1f} to {tuned_high:+.1f} "
        f"over Triton tuned ({tuned or 'its own settings'}){doubt}"
    )
