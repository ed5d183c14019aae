"""Requests of models with slots, as scheduling sees them: one slot each, whatever their tensors are.

Their messages are forwarded unmodified, so nothing about the tensors is checked: Triton reports what is wrong.
"""

from tritonclient.grpc import model_config_pb2, service_pb2

from tidegate.schemas import format_shape
from tidegate_proxy.base.labels import label
from tidegate_proxy.messages.forwarded_metadata import may_read_headers
from tidegate_proxy.messages.model_signature import ModelSignature, TensorSpec, datatype_of
from tidegate_proxy.messages.passed_through import PassedThrough
from tidegate_proxy.messages.request import InferenceRequest, ParsedHeader, priority_in, times_in


def slot_signature_of(config: model_config_pb2.ModelConfig) -> ModelSignature:
    """Return the signature of a model with slots: full shapes, and requests of one row."""
    rows = (-1,) if config.max_batch_size > 0 else ()
    return ModelSignature(
        model=config.name,
        inputs={
            tensor.name: TensorSpec(datatype_of(tensor.data_type), (*rows, *tensor.dims), tensor.optional)
            for tensor in config.input
        },
        outputs=frozenset(tensor.name for tensor in config.output),
        max_rows=1,
        reads_headers=may_read_headers(config),
        is_decoupled=config.model_transaction_policy.decoupled,
    )


def slot_request_of(message: bytes, request: PassedThrough, signature: ModelSignature) -> InferenceRequest:
    """Return a request of a model with slots, in the form that the driver schedules.

    `message`: the serialized request, empty over HTTP; `request`: facts about it.
    """
    header = request.header or service_pb2.ModelInferRequest(model_name=request.model, model_version=request.version)
    heading = ParsedHeader(
        header,
        signature.model,
        request.version,
        rows=1,
        merge_key="",
        shape=_shape_of(header, signature),
        padded=None,
        app="",
        private=frozenset(),
        sizes=(),
        has_bytes=False,
        order=(),
        wanted=(),
        times=times_in(header),
        priority=priority_in(header),
    )
    return InferenceRequest(message, heading, b"", request.id, [], signature, signature.model, 1, "")


def _shape_of(header: service_pb2.ModelInferRequest, signature: ModelSignature) -> str:
    """The sizes of the inputs that vary, such as the length of a prompt."""
    varying = {}
    for tensor in header.inputs:
        spec = signature.inputs.get(tensor.name)
        if spec is not None and -1 in spec.dims:
            varying[tensor.name] = tuple(tensor.shape)
    return label(format_shape(varying))
