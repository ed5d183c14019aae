"""What a request says of itself beside its id and its tensors: read once for all requests that say the same."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tidegate_proxy import wire
from tidegate_proxy.deadlines import Times, times_in
from tidegate_proxy.form import Form, form_of
from tidegate_proxy.labels import label
from tidegate_proxy.padding import Padded, padded
from tidegate_proxy.shape import shape_of
from tidegate_proxy.signature import ELEMENT_BYTES, Signature, split_elements
from tidegate_proxy.wire import Buffer

PRIVATE_PARAMETERS = frozenset({"timeout", "priority", "slo_ms", "triton_enable_empty_final_response"})
"""Parameters that concern one request only: they neither hinder a merge nor go to Triton with a merged batch."""
MOST_HEADER_BYTES = 1 << 20
"""What a request says of its tensors, at most: what takes a client a moment to send must not take everybody seconds."""
REMEMBERED_BYTES: Final = 1 << 12
"""The most bytes of a header that is remembered."""
MOST_REMEMBERED: Final = 512
"""Headers of one model. What they say is the clients' choice: it must not pile up."""
_INTEGERS = {"timeout": ("int64_param",), "priority": ("int64_param", "uint64_param")}
"""Parameters that Triton refuses in any other form, and below zero the priority."""
_SMALL_HEADER_BYTES = 1 << 16
_NOT_MERGEABLE = ("sequence_id", "sequence_start", "sequence_end")


class NotSchedulable(Exception):
    """A request that Triton has to see as it is: it cannot be merged, or is wrong and Triton knows the words for it."""


class Overgrown(NotSchedulable):
    """A request that says so much beside its tensors that nobody can look at it in reasonable time."""


@dataclass(frozen=True, slots=True)
class Heading:
    """What requests of a batchable model have in common that say the same of themselves. Nobody changes it."""

    header: service_pb2.ModelInferRequest
    """The message without its id and its tensors."""
    model: str
    version: str
    """"": the latest."""
    rows: int
    merge_key: str
    """Equal for requests that can share a batch."""
    shape: str
    """What varies in its tensors beyond the batch, as they run, in words (`shape_of`)."""
    padded: Padded | None
    """How its tensors are padded, and its outputs cut back; None: it runs as it came."""
    app: str
    """Its application, if it has the parameter that tells it; else empty."""
    private: frozenset[str]
    """Parameters that concern such a request only, if it has them."""
    sizes: tuple[int, ...]
    """The sizes of the inputs in bytes, in the header's order; for BYTES the number of elements."""
    has_bytes: bool
    """Whether there is an input whose elements carry their own lengths."""
    order: tuple[int, ...]
    """Positions of the inputs, sorted by name: clients may list them in any order."""
    wanted: tuple[str, ...]
    """The outputs that are asked for; none: all of them."""
    times: Times
    """When its client wants an answer."""
    merged: dict[tuple[int, tuple[str, ...]], bytes] = field(default_factory=dict, compare=False, repr=False)
    """What headers of batches that begin with such a request were made: by their rows and the outputs they ask for."""

    def shape_run(self, name: str, shape: Sequence[int]) -> Sequence[int]:
        """The shape in which an input runs that came in another, perhaps."""
        return self.padded.shapes[name] if self.padded else shape

    def check_sizes(self, tensors: Sequence[Buffer]) -> None:
        """Raises NotSchedulable unless these are the contents of its inputs."""
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


class Headings:
    """The headings of the requests to a batchable model, each read once. Several threads may use it."""

    def __init__(self, signature: Signature, app_parameter: str = "") -> None:
        """`app_parameter`: the parameter that tells a request's application; "": none does."""
        self.signature = signature
        self._app_parameter = app_parameter
        self._known: dict[bytes, Heading] = {}
        self._forms: dict[int, tuple[Form, Heading]] = {}
        """How requests were written that came again, by their size in bytes."""

    def take(self, message: bytes) -> tuple[Heading, bytes, list[memoryview]] | None:
        """A request's heading, its id as a field and its tensors; None where it is not written as one before was."""
        form, heading = self._forms.get(len(message), (None, None))
        taken = form.take(message) if form else None
        return (heading, *taken) if heading and taken else None

    def read(self, message: bytes, header: bytes, tensors: Sequence[Buffer]) -> Heading:
        """The heading of a request that was divided into these. Raises NotSchedulable, as `of`, or for its tensors."""
        is_known = header in self._known
        heading = self.of(header, len(tensors))
        heading.check_sizes(tensors)
        if is_known and not heading.has_bytes and (form := form_of(message, wire.REQUEST_RAW_FIELD)):
            if len(self._forms) >= MOST_REMEMBERED:
                self._forms.clear()
            self._forms[len(message)] = form, heading
        return heading

    def of(self, header: bytes, tensors: int) -> Heading:
        """What a serialized ModelInferRequest without its id and its tensors says, which are that many.

        Raises NotSchedulable for one that cannot be merged (sequences, shared memory, classification)
        or is not well-formed: a batch must never fail because of one request in it.
        """
        if heading := self._known.get(header):
            return heading
        heading = _read(parsed(header), tensors, self.signature, self._app_parameter)
        if len(header) <= REMEMBERED_BYTES:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[header] = heading
        return heading


def parsed(header: bytes) -> service_pb2.ModelInferRequest:
    """A serialized ModelInferRequest without its tensors. Raises NotSchedulable."""
    try:
        if len(header) > _SMALL_HEADER_BYTES:
            header = wire.without_contents(header)
        if len(header) > MOST_HEADER_BYTES:
            raise Overgrown(f"the request says more than {MOST_HEADER_BYTES} bytes beside its tensors")
        return service_pb2.ModelInferRequest.FromString(header)
    except wire.TooManyFields as error:
        raise Overgrown(str(error)) from error
    except (wire.WireError, DecodeError) as error:
        raise NotSchedulable("it is no ModelInferRequest") from error


def _read(header: service_pb2.ModelInferRequest, tensors: int, signature: Signature, app_parameter: str) -> Heading:
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
    private = PRIVATE_PARAMETERS | {app_parameter} if app_parameter else PRIVATE_PARAMETERS
    return Heading(
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
    )


def _check_parameters(header: service_pb2.ModelInferRequest) -> None:
    for name, value in header.parameters.items():
        if name in _NOT_MERGEABLE:
            raise NotSchedulable("it belongs to a sequence or a stream")
        if name in _INTEGERS and value.WhichOneof("parameter_choice") not in _INTEGERS[name]:
            raise NotSchedulable(f"{name} is no integer")
        if name == "priority" and value.int64_param < 0:
            raise NotSchedulable("priority is negative")


def _check_inputs(
    header: service_pb2.ModelInferRequest, tensors: int, signature: Signature
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
    """What a parameter says, of whichever type it is, as a label."""
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
