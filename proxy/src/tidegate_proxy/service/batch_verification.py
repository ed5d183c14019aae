"""Verification while serving that batching changes no response: runs one request of a batch alone and compares.

Consent to batching (`consent`) states that the rows of a model are independent; if that is wrong, the model returns
wrong responses that no client can detect. So one request of some batches is executed again alone, after its client has
its response, while its Triton is idle. If the responses differ, the request runs alone once more, and so does the
batch: a model that is not deterministic, or was reloaded meanwhile, is no evidence. A confirmed difference ends
batching of the model until another version of it, or another configuration, is loaded.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from tidegate_proxy.access.gate import AccessControl
from tidegate_proxy.base.internal_errors import faults
from tidegate_proxy.base.outcome import Outcome
from tidegate_proxy.configuration.config import BatchVerification
from tidegate_proxy.configuration.settings import SettingsHolder
from tidegate_proxy.messages.forwarded_metadata import forwarded
from tidegate_proxy.messages.merging import ScatterError, read_answer
from tidegate_proxy.messages.model_signature import split_elements
from tidegate_proxy.messages.request import InferenceRequest
from tidegate_proxy.observability.metrics import Metrics
from tidegate_proxy.scheduling.driver import Driver
from tidegate_proxy.scheduling.in_flight import BatchPayload, OutputSizes, StageRun, StageTarget
from tidegate_proxy.service.discovery import Discovery
from tidegate_proxy.transport import CallFailed, Metadata
from tidegate_proxy.tritons.backend import INFER_METHOD, Backend
from tidegate_proxy.tritons.catalog import CurrentCatalog, UnbatchedModel

log = logging.getLogger(__name__)

FIRST_BATCH: Final = 8
"""Number of a model's batch that is verified first; then at doubled distances, up to the configured fraction."""
PAUSE_S: Final = 1.0
"""Shortest time in seconds between two verifications, of all models together."""
IDLE_POLL_S: Final = 0.01
IDLE_TIMEOUT_S: Final = 10.0
"""Time in seconds within which a Triton must be idle once; otherwise the batch is not verified."""
CALL_TIMEOUT_S: Final = 30.0
MAX_BATCH_BYTES: Final = 64 << 20
"""Size in bytes of requests above which batches are not verified, because they have to be kept."""
MAX_UNEQUAL_FRACTION: Final = 0.05
"""Largest fraction of an output's elements that may differ: near ties of labels and ranks can go either way."""
CONCLUSIVE_ELEMENTS: Final = 20
"""Elements of an output from which one difference ends batching; below it, two recent verifications must differ."""
WINDOW_VERIFICATIONS: Final = 20
"""Number of recent verifications of a model that are considered."""


@dataclass(frozen=True, slots=True)
class VerificationSample:
    """Sample: an answered batch, and the request in it to verify."""

    target: StageTarget
    envelopes: Sequence[InferenceRequest]
    metadata: Metadata
    """Metadata of that request, from its client."""
    position: int
    """Position of the request in the batch."""
    answer: bytes
    """Response to the request: a serialized ModelInferResponse."""

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.envelopes[0].model


@dataclass(slots=True)
class _History:
    """Verifications of one model."""

    batches: int = 0
    next_batch: int = field(default_factory=lambda: FIRST_BATCH)
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW_VERIFICATIONS))
    """Whether the latest ones found a confirmed difference."""
    is_nondeterministic: bool = False


class BatchVerifier:
    """Verifier that samples batches on the hot path, and verifies them one at a time in `run`."""

    def __init__(self, directory: CurrentCatalog, in_force: SettingsHolder, metrics: Metrics) -> None:
        self._directory = directory
        self._in_force = in_force
        self._metrics = metrics
        self._histories: dict[str, _History] = {}
        self._pending: VerificationSample | None = None
        self._has_sample = asyncio.Event()

    def answered(self, run: StageRun, outcomes: Sequence[Outcome]) -> None:
        """Sample a batch of several requests that was answered, if one is due. Never raises."""
        settings = self._in_force.settings.batch_verification
        if not settings.fraction or not run.target.alone:
            return
        history = self._histories.setdefault(run.effect.batch.model, _History())
        history.batches += 1
        if history.batches < history.next_batch or self._pending or history.is_nondeterministic:
            return
        position = history.batches % len(outcomes)
        answer, clients = outcomes[position], run.clients
        if isinstance(answer, bytes) and sum(len(each.envelope.message) for each in clients) <= MAX_BATCH_BYTES:
            history.next_batch = history.batches + _batches_between(history, settings)
            envelopes = [client.envelope for client in clients]
            self._pending = VerificationSample(
                run.target, envelopes, clients[position].forwarded_metadata, position, answer
            )
            self._has_sample.set()

    async def run(self, driver: Driver, discovery: Discovery, gate: AccessControl) -> None:
        """Verify samples until cancelled."""
        while True:
            await self._has_sample.wait()
            sample = self._pending
            assert sample, "the event is set with it"
            try:
                if await wait_until_idle(sample.target.backend, driver):
                    sample = replace(sample, metadata=forwarded(sample.metadata, gate.credential_headers()))
                    await self._verify(sample, discovery)
            except (CallFailed, ScatterError) as error:
                log.debug("batch verification failed", extra={"model": sample.model, "error": str(error)})
            except Exception as error:  # requests do not depend on it
                faults.report("the verification of a batch", error)
            self._has_sample.clear()
            self._pending = sample = None
            await asyncio.sleep(PAUSE_S)

    async def _verify(self, sample: VerificationSample, discovery: Discovery) -> None:
        model, catalog = sample.model, self._directory.catalog
        tolerance = self._in_force.settings.batch_verification.tolerance
        one = [sample.envelopes[sample.position]]
        alone = (await _execute(sample, one))[0]
        found = await asyncio.to_thread(difference, sample.answer, alone, tolerance)
        result = "same"
        if found:
            again = (await _execute(sample, one))[0]
            if await asyncio.to_thread(difference, again, alone, tolerance):
                result = "nondeterministic"
            else:  # the same weights answer both: it may have been reloaded since the batch
                merged = (await _execute(sample, sample.envelopes))[sample.position]
                found = await asyncio.to_thread(difference, merged, alone, tolerance)
                result = "different" if found else "inconclusive"
        if self._directory.catalog.loaded.get(sample.target.backend) != catalog.loaded.get(sample.target.backend):
            result = "inconclusive"
        self._metrics.counts.verified[model, result] += 1
        history = self._histories[model]
        if result == "nondeterministic":
            history.is_nondeterministic = True
            log.info(
                "batches not verified: the model answers one request in two ways",
                extra={"model": model, "error": str(found)},
            )
        if result in {"same", "different"}:
            history.recent.append(result == "different")
        if result != "different" or found is None:
            return
        history.next_batch = history.batches + 1
        if found.elements >= CONCLUSIVE_ELEMENTS or sum(history.recent) > 1:
            await self._end_batching(model, found, discovery)

    async def _end_batching(self, model: str, found: "OutputDifference", discovery: Discovery) -> None:
        why = f"its answers in a batch differ from those alone ({found}); scheduling: batched must not be given for it"
        log.error("batching stopped", extra={"model": model, "error": why})
        loaded = [
            each for models in self._directory.catalog.loaded.values() for each in models if each.config.name == model
        ]
        self._directory.unbatched[model] = UnbatchedModel(why, tuple(loaded))
        self._histories.pop(model, None)
        await discovery.refresh()


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """Output in which two responses differ most."""

    output: str
    elements: int
    unequal: int
    largest: float | None
    """Largest difference, as a fraction of the output's largest magnitude; None for other than numbers."""

    def __str__(self) -> str:
        size = "" if self.largest is None else f", by up to {self.largest:.3g} of its largest magnitude"
        return f"output {self.output!r}: {self.unequal} of {self.elements} elements{size}"


def difference(answer: bytes, other: bytes, tolerance: float) -> OutputDifference | None:
    """Compare two serialized ModelInferResponses for one request; return None if they agree.

    Floating-point elements agree within `tolerance` times the largest magnitude of their output, others if they are
    equal. Outputs agree if at most `MAX_UNEQUAL_FRACTION` of their elements do not. Raises ScatterError for an invalid
    response. `answer`, `other`: the two responses.
    """
    (header, tensors), (other_header, other_tensors) = read_answer(answer), read_answer(other)
    theirs = {each.name: (each, tensor) for each, tensor in zip(other_header.outputs, other_tensors, strict=True)}
    worst = None
    for mine, tensor in zip(header.outputs, tensors, strict=True):
        if mine.name not in theirs:
            continue  # a client that names its outputs is answered those alone
        declared, other_tensor = theirs[mine.name]
        if (mine.datatype, tuple(mine.shape)) != (declared.datatype, tuple(declared.shape)):
            count = int(np.prod(mine.shape, dtype=np.int64))
            return OutputDifference(mine.name, max(count, CONCLUSIVE_ELEMENTS), max(count, 1), None)
        found = _difference_of(mine.name, mine.datatype, list(mine.shape), (tensor, other_tensor), tolerance)
        if found and (worst is None or found.unequal * worst.elements > worst.unequal * found.elements):
            worst = found
    return worst


def _difference_of(
    name: str, datatype: str, shape: Sequence[int], tensors: tuple[memoryview, memoryview], tolerance: float
) -> OutputDifference | None:
    largest = None
    if datatype == "BYTES":
        count = int(np.prod(shape, dtype=np.int64))
        unequal, elements = _unequal_strings(tensors, count), count
    elif datatype in _FLOATS:
        one, two = (_FLOATS[datatype](tensor) for tensor in tensors)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(one - two)
            scale = float(max((np.abs(each[np.isfinite(each)]).max(initial=0.0)) for each in (one, two)))
            same = (one == two) | (np.isnan(one) & np.isnan(two)) | (apart <= tolerance * scale)
        unequal, elements = int((~same).sum()), len(one)
        finite = apart[np.isfinite(apart)]
        largest = float(finite.max(initial=0.0)) / scale if scale else None
    else:
        width = max(1, len(tensors[0]) // max(1, int(np.prod(shape, dtype=np.int64))))
        raw, other = (np.frombuffer(tensor, np.uint8).reshape(-1, width) for tensor in tensors)
        unequal, elements = int((raw != other).any(axis=1).sum()), len(raw)
    if unequal <= MAX_UNEQUAL_FRACTION * elements:
        return None
    return OutputDifference(name, elements, unequal, largest)


def _unequal_strings(tensors: tuple[memoryview, memoryview], count: int) -> int:
    one, two = ([0, *split_elements(tensor, count)] for tensor in tensors)
    return sum(tensors[0][one[at] : one[at + 1]] != tensors[1][two[at] : two[at + 1]] for at in range(count))


_FLOATS: Final[dict[str, Callable[[memoryview], np.ndarray[tuple[int], np.dtype[np.float64]]]]] = {
    "FP16": lambda tensor: np.frombuffer(tensor, np.float16).astype(np.float64),
    "BF16": lambda tensor: (
        (np.frombuffer(tensor, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    ),
    "FP32": lambda tensor: np.frombuffer(tensor, np.float32).astype(np.float64),
    "FP64": lambda tensor: np.frombuffer(tensor, np.float64),
}


def _batches_between(history: _History, settings: BatchVerification) -> int:
    """How many batches of a model come before the next that is verified: ever more, up to the fraction."""
    return min(history.batches, round(1 / settings.fraction))


async def wait_until_idle(backend: Backend, driver: Driver) -> bool:
    """Wait until a Triton runs no request, scheduled or bypassed, and none is queued; return whether that came in time.

    Calls of Tidegate itself, such as copies, do not count.
    """
    for _ in range(round(IDLE_TIMEOUT_S / IDLE_POLL_S)):
        if not backend.alive:
            return False
        is_busy = backend.in_flight or driver.engine.queued or any(run.backend is backend for run in driver.running)
        if not is_busy:
            return True
        await asyncio.sleep(IDLE_POLL_S)
    return False


async def _execute(sample: VerificationSample, envelopes: Sequence[InferenceRequest]) -> list[bytes]:
    """Execute requests of a sample as one batch; their answers. Raises CallFailed and ScatterError."""
    payload = BatchPayload(envelopes, OutputSizes(), None)
    message = payload.request(sample.target)
    answer = await sample.target.backend.ask(INFER_METHOD, message, sample.metadata, timeout_s=CALL_TIMEOUT_S)
    return payload.outcomes(answer)
