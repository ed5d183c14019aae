"""Parser of an inference request: fields that scheduling needs, and its tensors unparsed.

Its header, everything besides the id and the tensors, is parsed once for all requests with the same one; a request laid
out like an earlier one is split by comparison. Deadline, application and shape come from the header.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tidegate.api import NEVER_NS, Model, ms_to_ns
from tidegate.schemas import format_shape
from tidegate_proxy.base.labels import FrequentLabels, digest, label, may_be_secret
from tidegate_proxy.base.outcome import Outcome, RequestFailed
from tidegate_proxy.configuration.apis import Protocol
from tidegate_proxy.configuration.clients import AppConfig, FeatureConfig
from tidegate_proxy.messages import wire
from tidegate_proxy.messages.model_signature import ELEMENT_BYTES, ModelSignature, split_elements
from tidegate_proxy.messages.padding import PaddingPlan, padded
from tidegate_proxy.messages.wire import Buffer
from tidegate_proxy.transport import Metadata

_ENDLESS: Final = 1e15
"""A number of milli- or microseconds from which on it limits nothing."""


class RequestTimes(NamedTuple):
    """Deadline and timeout that a request asks for."""

    slo_ns: int | None
    timeout_ns: int | None


def times_in(header: service_pb2.ModelInferRequest) -> RequestTimes:
    """Read the parameters `slo_ms` and `timeout`; None for one that is missing or sets no limit."""
    parameters = header.parameters
    slo_ms = _number(parameters["slo_ms"]) if "slo_ms" in parameters else None
    timeout_us = (_number(parameters["timeout"]) or 0) if "timeout" in parameters else 0
    return RequestTimes(
        None if slo_ms is None else ms_to_ns(slo_ms),
        round(timeout_us * 1_000) if timeout_us > 0 else None,
    )


def priority_in(header: service_pb2.ModelInferRequest) -> int:
    """Read the parameter `priority`; 0 if it is missing."""
    if "priority" not in header.parameters:
        return 0
    parameter = header.parameters["priority"]
    return int(parameter.uint64_param or parameter.int64_param)


class ResponseDeadline(NamedTuple):
    """Deadline of a response, and the limit for a late one."""

    deadline_ns: int
    """Instant of the deadline, not before the arrival; NEVER_NS without one."""
    late_until_ns: int
    """Instant until which a late response is still wanted; 0: it is not."""


def response_deadline(
    now_ns: int,
    model: Model | None,
    times: RequestTimes,
    grpc_remaining_s: float | None,
    *,
    heeds_timeout: bool = False,
) -> ResponseDeadline:
    """Return the deadline of a request that arrives now. `model`: None if it is not served any more.

    `heeds_timeout`: its Triton applies the parameter `timeout`. Otherwise Tidegate applies it if the model or the
    request has an SLO. `times`: its parameters; `grpc_remaining_s`: seconds until the client's own deadline, or None.
    """
    slo_ns = times.slo_ns if times.slo_ns is not None or model is None else model.slo_ns
    limit_ns = NEVER_NS
    if times.timeout_ns is not None and (heeds_timeout or slo_ns is not None):
        limit_ns = now_ns + times.timeout_ns
    limit_ns = min(limit_ns, end_of_call_ns(now_ns, grpc_remaining_s))
    if slo_ns is None:
        return ResponseDeadline(limit_ns, 0)
    deadline_ns = min(limit_ns, now_ns + max(0, slo_ns))
    served_late = model is not None and model.on_deadline_miss == "serve" and deadline_ns < limit_ns
    return ResponseDeadline(deadline_ns, limit_ns if served_late else 0)


def end_of_call_ns(now_ns: int, grpc_remaining_s: float | None) -> int:
    """Return the instant at which a client's call ends by its own deadline; NEVER_NS without one."""
    if grpc_remaining_s is None or grpc_remaining_s >= 1e9:  # so much is grpc's way to say "none"
        return NEVER_NS
    return now_ns + round(grpc_remaining_s * 1e9)


def _number(parameter: service_pb2.InferParameter) -> float | None:
    """The value of a parameter of any numeric sort, also one given as text; None for what is none, or endless."""
    kind = parameter.WhichOneof("parameter_choice")
    value = getattr(parameter, kind) if kind else None
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) < _ENDLESS else None


def shape_of(inputs: Iterable[tuple[str, Sequence[int]]], signature: ModelSignature) -> str:
    """Return the sizes of the inputs with dynamic dimensions, as `format_shape` writes them.

    Empty if there are none. A long text is shortened, and identified by its digest.

    Args:
        inputs: names and full shapes (rows first) that fit the signature.
        signature: signature of the model.
    """
    return label(format_shape({name: shape[1:] for name, shape in inputs if -1 in signature.inputs[name].dims}))


@dataclass(frozen=True, slots=True)
class WireFingerprint:
    """Parts that messages share if they differ only in ids and in the contents of tensors of equal sizes."""

    before: bytes
    """Fields before the id, or before the tensors if there is no id."""
    after: bytes
    """Fields between the id and the tensors."""
    tensors: tuple[tuple[bytes, int], ...]
    """Encoded tag and length of each tensor, and the length as a number."""

    def take(self, message: bytes) -> tuple[bytes, list[memoryview]] | None:
        """Split a message into the field of its id and its tensors, as `wire.split` does; None for another layout."""
        position, id_field, tensors = len(self.before), b"", []
        if not message.startswith(self.before):
            return None
        if message.startswith(_ID, position):
            length = message[position + 1] if position + 1 < len(message) else 0x80
            if length >= 0x80:  # of more than a byte: read it
                return None
            id_field = message[position : position + 2 + length]
            position += 2 + length
        if not message.startswith(self.after, position):
            return None
        position += len(self.after)
        view = memoryview(message)
        for lead, size in self.tensors:
            if not message.startswith(lead, position):
                return None
            position += len(lead) + size
            tensors.append(view[position - size : position])
        return (id_field, tensors) if position == len(message) else None


def form_of(message: bytes, raw_field: int) -> WireFingerprint | None:
    """Return the layout of a message that `wire.split` accepts; None if it is unusual.

    `raw_field`: number of the field with raw tensors. Usual messages have at most one id, and their tensors last.
    """
    raw_tag = raw_field << 3 | 2
    ids: list[tuple[int, int]] = []
    tensors: list[tuple[bytes, int]] = []
    header_end = len(message)
    for start, value, end, tag in wire.fields_of(message, 0, len(message)):
        if tag == raw_tag:
            header_end = min(header_end, start)
            tensors.append((message[start:value], end - value))
        elif tensors:
            return None
        elif tag == wire.ID_TAG:
            ids.append((start, end))
    if len(ids) > 1:
        return None
    id_start, id_end = ids[0] if ids else (header_end, header_end)
    return WireFingerprint(message[:id_start], message[id_end:header_end], tuple(tensors))


_ID = bytes((wire.ID_TAG,))


MAX_BYTES: Final = 1 << 20
"""Largest message that is re-encoded; to encode a larger one would block the event loop."""
_FIELDS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where Triton reads the elements of a datatype; of others it takes raw contents only."""
_DTYPES: Final = {"BOOL": np.dtype("?"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")} | {
    f"{sign}INT{bits}": np.dtype(f"<{kind}{bits // 8}")
    for sign, kind in (("", "i"), ("U", "u"))
    for bits in (8, 16, 32, 64)
}


def with_raw_contents(message: bytes) -> bytes | None:
    """Re-encode a serialized ModelInferRequest with raw contents.

    None if Triton must see it unmodified: tensors in shared memory, or contents that do not fit shape or datatype.
    """
    if len(message) > MAX_BYTES:
        return None
    try:
        request = service_pb2.ModelInferRequest.FromString(message)
    except DecodeError:
        return None
    if request.raw_input_contents or not request.inputs:
        return None
    for tensor in request.inputs:
        raw = _raw(tensor)
        if raw is None:
            return None
        request.raw_input_contents.append(raw)
        tensor.ClearField("contents")
    written: bytes = request.SerializeToString()
    return written


def _raw(tensor: service_pb2.ModelInferRequest.InferInputTensor) -> bytes | None:
    field = _FIELDS.get(tensor.datatype)
    if field is None or [descriptor.name for descriptor, _ in tensor.contents.ListFields()] != [field]:
        return None
    elements: Any = getattr(tensor.contents, field)
    if len(elements) != prod(tensor.shape):
        return None
    if field == "bytes_contents":
        return b"".join(len(element).to_bytes(4, "little") + element for element in elements)
    dtype = _DTYPES[tensor.datatype]
    given = np.array(elements, dtype if dtype.kind in "fb" else f"{dtype.kind}8")
    written = given.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(written, given):
        return None  # Triton casts what its datatype cannot hold
    return written.tobytes()


MAX_APPLICATIONS: Final = 100
"""Number of applications that are distinguished at a time."""


class ApplicationTags:
    """Reader of a request's application name, from the configured parameter or header."""

    def __init__(self, config: AppConfig, feature: FeatureConfig | None = None) -> None:
        """Create a reader. `feature`: source of the number that explains a request's latency; None: there is none."""
        self.feature = feature
        self.parameter = config.parameter or ""
        """Parameter with the application; "" if none."""
        self._header = config.header or ""
        self._is_secret = may_be_secret(self._header)
        self._labels = FrequentLabels(MAX_APPLICATIONS)

    def of(self, heading: "ParsedHeader", metadata: Metadata) -> str:
        """Return the application of a request with this header and metadata, or HTTP headers; "" without one.

        Beyond `MAX_APPLICATIONS`, the least frequent ones share the name `other`.
        """
        said = heading.app if self.parameter else self._in(metadata) if self._header else ""
        return self._labels.of(said, time.monotonic()) if said else ""

    def _in(self, metadata: Metadata) -> str:
        for name, value in metadata:
            if name == self._header:
                text = value.decode("latin1") if isinstance(value, bytes) else value
                return digest(text) if self._is_secret else label(text)
        return ""


RESERVED_PARAMETER_PREFIX = "triton_"
FINAL_RESPONSE_PARAMETER = "triton_enable_empty_final_response"
"""The only parameter with that prefix that Triton takes from a client."""
PRIVATE_PARAMETERS = frozenset({"timeout", "priority", "slo_ms", FINAL_RESPONSE_PARAMETER})
"""Parameters that concern one request only: they do not prevent batching, and are not sent with a merged batch."""
MAX_HEADER_BYTES = 1 << 20
"""Maximum bytes of a request beside its tensors, so that one client's request cannot delay all others by seconds."""
REMEMBERED_BYTES: Final = 1 << 12
"""Largest header in bytes that is cached."""
MAX_REMEMBERED: Final = 512
"""Number of cached headers per model; bounded, because clients choose their contents."""
_INTEGERS = {"timeout": ("int64_param",), "priority": ("int64_param", "uint64_param")}
"""Parameters that Triton refuses in any other form, and below zero the priority."""
_SMALL_HEADER_BYTES = 1 << 16
_NOT_MERGEABLE = ("sequence_id", "sequence_start", "sequence_end")


class NotSchedulable(Exception):
    """Error: the request must go to Triton unmodified, because it cannot be batched or is invalid."""


class OversizedRequest(NotSchedulable):
    """Error: the request has too many bytes besides its tensors to be parsed in reasonable time."""


@dataclass(frozen=True, slots=True)
class ParsedHeader:
    """Header that many requests of a batchable model share; parsed once. Immutable."""

    header: service_pb2.ModelInferRequest
    """Message without its id and its tensors."""
    model: str
    version: str
    """Model version; "": the latest."""
    rows: int
    merge_key: str
    """Key that is equal for requests that can share a batch."""
    shape: str
    """Shape class of its tensors beyond the batch dimension (`shape_of`)."""
    padded: PaddingPlan | None
    """Padding of its tensors and cuts of its outputs; None: no padding."""
    app: str
    """Application, if its parameter is set; else ""."""
    private: frozenset[str]
    """Parameters of this request that concern it alone."""
    sizes: tuple[int, ...]
    """Sizes of the inputs in bytes, in the header's order; for BYTES the number of elements."""
    has_bytes: bool
    """Whether an input has type BYTES, whose elements carry their own lengths."""
    order: tuple[int, ...]
    """Positions of the inputs, sorted by name, because clients may list them in any order."""
    wanted: tuple[str, ...]
    """Requested outputs; empty: all of them."""
    times: RequestTimes
    """Deadline parameters of the request."""
    priority: int
    """Its parameter `priority`; 0: it names none."""
    feature: float = 0.0
    """Number that explains its latency, if its parameter or its rows give it; else 0."""
    merged: dict[tuple[int, tuple[str, ...]], bytes] = field(default_factory=dict, compare=False, repr=False)
    """Headers of batches that begin with such a request, by rows and requested outputs."""

    def shape_run(self, name: str, shape: Sequence[int]) -> Sequence[int]:
        """Return the shape of an input after padding."""
        return self.padded.shapes[name] if self.padded else shape

    def check_sizes(self, tensors: Sequence[Buffer]) -> None:
        """Raise NotSchedulable unless the contents have the sizes of its inputs."""
        if len(tensors) != len(self.sizes):
            raise NotSchedulable("typed contents or shared memory")
        if not self.has_bytes:
            for tensor, size in zip(tensors, self.sizes, strict=True):
                if len(tensor) != size:
                    raise NotSchedulable("a tensor's size is not that of its shape")
            return
        for declared, tensor, size in zip(self.header.inputs, tensors, self.sizes, strict=True):
            if declared.datatype == "BYTES":
                try:
                    split_elements(tensor, size)
                except ValueError as error:
                    raise NotSchedulable(str(error)) from error
            elif len(tensor) != size:
                raise NotSchedulable("a tensor's size is not that of its shape")


class HeaderCache:
    """Cache of the headers of requests to a batchable model, each parsed once. Thread-safe."""

    def __init__(
        self, signature: ModelSignature, app_parameter: str = "", feature: FeatureConfig | None = None
    ) -> None:
        """Create an empty cache.

        `app_parameter`: the parameter with a request's application; "" if none. `feature`: source of the number that
        explains a request's latency; None: there is none.
        """
        self.signature = signature
        self._app_parameter = app_parameter
        self._feature = feature or FeatureConfig()
        self._known: dict[bytes, ParsedHeader] = {}
        self._forms: dict[int, tuple[WireFingerprint, ParsedHeader]] = {}
        """How requests were written that came again, by their size in bytes."""

    def take(self, message: bytes) -> tuple[ParsedHeader, bytes, list[memoryview]] | None:
        """Return a request's header, the field of its id and its tensors; None if its layout is not cached."""
        form, heading = self._forms.get(len(message), (None, None))
        taken = form.take(message) if form else None
        return (heading, *taken) if heading and taken else None

    def read(self, message: bytes, header: bytes, tensors: Sequence[Buffer]) -> ParsedHeader:
        """Parse the header of a request that was split into these parts.

        Raises NotSchedulable, as `of`, or for its tensors. `message`: the whole request.
        """
        is_known = header in self._known
        heading = self.of(header, len(tensors))
        heading.check_sizes(tensors)
        if is_known and not heading.has_bytes and (form := form_of(message, wire.REQUEST_RAW_FIELD)):
            if len(self._forms) >= MAX_REMEMBERED:
                self._forms.clear()
            self._forms[len(message)] = form, heading
        return heading

    def feature_of(self, heading: ParsedHeader, tensors: Sequence[Buffer]) -> float:
        """Return the number that explains the latency of a request with these parts; 0: none."""
        if self._feature.size == "bytes":
            return sum(map(len, tensors)) / heading.rows
        return heading.feature

    def of(self, header: bytes, tensors: int) -> ParsedHeader:
        """Parse a serialized ModelInferRequest without its id and tensors.

        Raises NotSchedulable for a request that cannot be batched (sequences, shared memory, classification) or is
        malformed, since a batch must never fail because of one request.
        """
        if heading := self._known.get(header):
            return heading
        heading = _read(parsed(header), tensors, self.signature, self._app_parameter, self._feature)
        if len(header) <= REMEMBERED_BYTES:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[header] = heading
        return heading


def parsed(header: bytes) -> service_pb2.ModelInferRequest:
    """Parse a serialized ModelInferRequest without its tensors. Raises NotSchedulable."""
    try:
        if len(header) > _SMALL_HEADER_BYTES:
            header = wire.without_contents(header)
        if len(header) > MAX_HEADER_BYTES:
            raise OversizedRequest(f"the request says more than {MAX_HEADER_BYTES} bytes beside its tensors")
        return service_pb2.ModelInferRequest.FromString(header)
    except wire.TooManyFields as error:
        raise OversizedRequest(str(error)) from error
    except (wire.WireError, DecodeError) as error:
        raise NotSchedulable("it is no ModelInferRequest") from error


def _read(
    header: service_pb2.ModelInferRequest,
    tensors: int,
    signature: ModelSignature,
    app_parameter: str,
    feature: FeatureConfig,
) -> ParsedHeader:
    if header.model_name != signature.model:
        raise NotSchedulable("it names its model twice, and the last one counts")
    _check_parameters(header)
    if any(output.parameters or output.name not in signature.outputs for output in header.outputs):
        raise NotSchedulable("an output goes to shared memory, is classified, or is unknown")
    rows, sizes = _check_inputs(header, tensors, signature)
    shapes = {declared.name: tuple(declared.shape) for declared in header.inputs}
    element_bytes = {declared.name: ELEMENT_BYTES.get(declared.datatype, 0) for declared in header.inputs}
    as_padded = padded(signature.padding, shapes, element_bytes) if signature.padding else None
    run_shapes = as_padded.shapes if as_padded else shapes
    names = [*shapes]
    private = PRIVATE_PARAMETERS.union(filter(None, (app_parameter, feature.parameter)))
    return ParsedHeader(
        header,
        header.model_name,
        header.model_version,
        rows,
        _merge_key(header, run_shapes, private),
        shape_of(run_shapes.items(), signature),
        as_padded,
        _text_of(header.parameters[app_parameter]) if app_parameter in header.parameters else "",
        private,
        sizes,
        any(declared.datatype == "BYTES" for declared in header.inputs),
        tuple(sorted(range(len(names)), key=names.__getitem__)),
        tuple(output.name for output in header.outputs),
        times_in(header),
        priority_in(header),
        _feature_in(header, rows, feature),
    )


def _feature_in(header: service_pb2.ModelInferRequest, rows: int, feature: FeatureConfig) -> float:
    """The number that the request declares, or its rows; 0 if it declares none, or a negative one."""
    if feature.size == "rows":
        return float(rows)
    if feature.parameter and feature.parameter in header.parameters:
        return max(0.0, _number(header.parameters[feature.parameter]) or 0.0)
    return 0.0


def _check_parameters(header: service_pb2.ModelInferRequest) -> None:
    for name, value in header.parameters.items():
        if name in _NOT_MERGEABLE:
            raise NotSchedulable("it belongs to a sequence or a stream")
        if name in _INTEGERS and value.WhichOneof("parameter_choice") not in _INTEGERS[name]:
            raise NotSchedulable(f"{name} is no integer")
        if name == "priority" and value.int64_param < 0:
            raise NotSchedulable("priority is negative")
        if name.startswith(RESERVED_PARAMETER_PREFIX) and name != FINAL_RESPONSE_PARAMETER:
            raise NotSchedulable(f"parameter {name!r} is reserved")


def _check_inputs(
    header: service_pb2.ModelInferRequest, tensors: int, signature: ModelSignature
) -> tuple[int, tuple[int, ...]]:
    """The request's rows and its inputs' sizes, once everything about them is as the model's config says."""
    if tensors != len(header.inputs):
        raise NotSchedulable("typed contents or shared memory")
    rows = 0
    sizes = []
    names = set()
    for declared in header.inputs:
        spec = signature.inputs.get(declared.name)
        shape = tuple(declared.shape)
        if spec is None or declared.parameters or not spec.accepts(declared.datatype, shape):
            raise NotSchedulable(f"input {declared.name!r} is not as the model's config says")
        if declared.HasField("contents"):
            raise NotSchedulable("typed contents beside raw ones")
        rows = rows or shape[0]
        if shape[0] != rows or not 1 <= rows <= signature.max_rows:
            raise NotSchedulable(f"its rows differ, are none, or exceed max_batch_size, {signature.max_rows}")
        sizes.append(prod(shape) * ELEMENT_BYTES.get(declared.datatype, 1))
        names.add(declared.name)
    if not rows:
        raise NotSchedulable("it has no inputs, so that nothing says how many rows it has")
    missing = any(name not in names and not spec.optional for name, spec in signature.inputs.items())
    if missing or len(names) != tensors:
        raise NotSchedulable("an input is missing or given twice")
    return rows, tuple(sizes)


def _text_of(parameter: service_pb2.InferParameter) -> str:
    """Return the value of a parameter of any type as a label."""
    kind = parameter.WhichOneof("parameter_choice")
    return label(str(getattr(parameter, kind))) if kind else ""


def _merge_key(
    header: service_pb2.ModelInferRequest, shapes: Mapping[str, Sequence[int]], private: Container[str]
) -> str:
    """Equal for requests that can share a batch, and only for them: all that Triton sees but rows, tensors and outputs.

    The version, names, datatypes and shapes beyond the rows of the inputs, and the parameters that are not private. As
    Python writes tuples: what is in a name stays between its quotes. `shapes`: those in which the inputs run.
    """
    inputs = sorted([(declared.name, declared.datatype, *shapes[declared.name][1:]) for declared in header.inputs])
    parameters = sorted(
        [(name, value.SerializeToString()) for name, value in header.parameters.items() if name not in private]
    )
    return repr((header.model_version, inputs, parameters))


MAX_ROWS = 2**31 - 1
"""Largest number of rows that a shape without contents may state: they are counted in 64 bits."""


@dataclass(slots=True)
class InferenceRequest:
    """Valid request of a batchable model. Immutable."""

    message: bytes
    """Message as the client sent it; a batch of one request is forwarded unchanged."""
    heading: ParsedHeader
    """Header of the message, without id and tensors."""
    id_field: bytes
    """Field of its id, valid in request and response; empty without one."""
    id: str
    tensors: list[memoryview]
    """Raw contents of the inputs, in the header's order; slices of `message`."""
    signature: ModelSignature
    """Signature that it was checked against; the model may have changed since."""
    model: str
    """Model name."""
    rows: int
    """Size along the batch dimension."""
    merge_key: str
    """Key that is equal for requests that can share a batch."""
    feature: float = 0.0
    """Number that is known before it runs and explains its latency; 0: none."""

    def fits(self, signature: ModelSignature) -> bool:
        """Return whether it can be scheduled if its model has this signature."""
        if signature is self.signature:
            return True
        if replace(signature, max_rows=self.signature.max_rows) == self.signature:
            return self.rows <= signature.max_rows
        try:
            open_envelope(self.message, signature)
        except NotSchedulable:
            return False
        return True


def open_envelope(message: bytes, signature: ModelSignature) -> InferenceRequest:
    """Parse a request of a batchable model without a cache; see `open_known`."""
    return open_known(message, HeaderCache(signature))


def open_known(message: bytes, headings: HeaderCache) -> InferenceRequest:
    """Parse a request of a batchable model, with cached headers.

    Raises NotSchedulable for one that cannot be batched (sequences, shared memory, classification) or is invalid: a
    batch must never fail because of one request in it. Typed contents are re-encoded as raw ones.
    """
    if taken := headings.take(message):
        heading, id_field, tensors = taken
        name = _id_in(id_field)
    else:
        header, id_field, name, tensors = split_message(message)
        if not tensors and (raw := with_raw_contents(message)):
            message = raw
            header, id_field, name, tensors = split_message(message)
        heading = headings.read(message, header, tensors)
    return InferenceRequest(
        message,
        heading,
        id_field,
        name,
        tensors,
        headings.signature,
        heading.model,
        heading.rows,
        heading.merge_key,
        headings.feature_of(heading, tensors),
    )


def split_message(message: bytes) -> tuple[bytes, bytes, str, list[memoryview]]:
    """Return the header, the id as a field and as text, the tensors. Raises NotSchedulable, OversizedRequest."""
    try:
        header, id_field, tensors = wire.split(message, wire.REQUEST_RAW_FIELD)
    except wire.TooManyFields as error:
        raise OversizedRequest(str(error)) from error
    except wire.WireError as error:
        raise NotSchedulable("it is no ModelInferRequest") from error
    return header, id_field, _id_in(id_field), tensors


def _id_in(field: bytes) -> str:
    try:
        return wire.string_in(field) if field else ""
    except wire.WireError as error:
        raise NotSchedulable("it is no ModelInferRequest") from error


Sender = tuple[str, str]
"""Client and model of a request."""


class BatchRefusal:
    """Reason for which a batch was refused.

    As long as none of its requests has a response, the Triton may be at fault, and no request is blamed.
    """

    def __init__(self, poisoned: Callable[[Sender], None]) -> None:
        """Create the batch refusal. `poisoned`: called with each sender of a poison request."""
        self._poisoned = poisoned
        self._failed: list[Sender] = []
        self.somebody_answered = False
        """Whether a sender of the batch has got a response since, to a request of it or to a later one."""

    def sender_answered(self) -> None:
        """Record that a sender's later request was answered."""
        self.somebody_answered = True

    def answered(self) -> None:
        """Record that one of the requests was answered after all."""
        if self.somebody_answered and not self._failed:
            return
        self.somebody_answered = True
        failed, self._failed = self._failed, []
        for sender in failed:
            self._poisoned(sender)

    def failed(self, sender: Sender) -> None:
        """Record that a request of `sender` also failed when executed alone (poison request)."""
        if self.somebody_answered:
            self._poisoned(sender)
        else:
            self._failed.append(sender)


class PendingRequest(ABC):
    """Request of a client that waits for its response."""

    __slots__ = (
        "arrival_ns", "batch_id", "due_ns", "ended_ns", "envelope", "leave_instead", "owner", "refusal", "request_id",
        "runs_apart", "span", "started_ns", "until_ns",
    )  # fmt: skip

    def __init__(self, envelope: InferenceRequest, owner: str = "") -> None:
        self.envelope = envelope
        self.owner = owner
        """Client identity for fair queueing (`access.owners`)."""
        self.request_id = -1
        self.arrival_ns = 0
        self.due_ns = 0
        """Deadline of the response."""
        self.until_ns = 0
        """Instant until which a late response is still wanted."""
        self.batch_id: int | None = None
        """Batch that runs for it."""
        self.started_ns = 0
        """Start of its first stage; 0: not started."""
        self.ended_ns = 0
        """End of its last stage; 0: not ended."""
        self.refusal: BatchRefusal | None = None
        """Failure of the batch that it was in; None: none failed."""
        self.runs_apart = False
        """Whether it shares batches with some requests only, after poison requests of its sender, or suspected ones."""
        self.span: Any = None
        """OpenTelemetry span of its trace; None: not traced."""
        self.leave_instead: Callable[[], bool] | None = None
        """Handles a client that left (`leaves_by`); None: it is scheduled as one request."""

    @property
    def protocol(self) -> Protocol:
        """Protocol of the client's call."""
        return "grpc"

    @property
    def metadata(self) -> Metadata:
        """GRPC metadata or HTTP headers of the request."""
        return ()

    @property
    def forwarded_metadata(self) -> Metadata:
        """Metadata to forward to a Triton over gRPC."""
        return self.metadata

    def leaves_by(self, leave: Callable[[], bool]) -> None:
        """Have `leave` handle a client that left, and return whether it waited: others run for it in the engine."""
        self.leave_instead = leave

    @abstractmethod
    def resolve(self, outcome: Outcome) -> None:
        """Take the response or the failure. Called once; must not block."""


class AsyncPendingRequest(PendingRequest):
    """Pending request that awaits its response in an event loop."""

    __slots__ = ("_metadata", "answer")

    def __init__(self, envelope: InferenceRequest, metadata: Metadata, owner: str = "") -> None:
        super().__init__(envelope, owner)
        self._metadata = metadata
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    @property
    def protocol(self) -> Protocol:
        """Protocol of the client's call: HTTP."""
        return "http"

    @property
    def metadata(self) -> Metadata:
        """Metadata of the request."""
        return self._metadata

    @property
    def forwarded_metadata(self) -> Metadata:
        """Metadata to forward to Triton: that of gRPC, or HTTP headers unless the model reads headers."""
        return () if self.envelope.signature.reads_headers else self._metadata

    def resolve(self, outcome: Outcome) -> None:
        """Set the outcome for the waiting coroutine."""
        if self.answer.done():
            return
        if isinstance(outcome, RequestFailed):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)
