"""Requests with random tensors, of the shapes and types that the server declares for a model."""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

from tidegate_loadtest.connection import AsksForModels, LoadTestError
from tidegate_loadtest.shapes import Shape, Shapes

DISTINCT_REQUESTS = 16
"""Number of different requests: enough to defeat caches, few enough to fit in memory."""
OF_DRAWN_SHAPES = 8
"""Factor on DISTINCT_REQUESTS where shapes are drawn too, as long as they are within MOST_BYTES."""
MAX_BYTES = 1 << 28
LIMITS_PARAMETER = "tidegate_input_limits"
"""Parameter of a config.pbtxt that bounds the values of integer inputs, as JSON: {"token_type_ids": 2}."""


class RandomValues(StrEnum):
    """Distribution of values in random tensors."""

    DRAWN = "drawn"
    """Floats from 0 to 1, integers below the limit of their input, or 128."""
    BITS = "bits"
    """Floats as in DRAWN, and integers of 0 and 1."""
    ONES = "ones"
    ZEROS = "zeros"


def infer_request(model: str, tensors: Mapping[str, NDArray[Any]], *, app: str = "") -> pb.ModelInferRequest:
    """Build a request with these tensors as raw bytes, by input name.

    `app`: its parameter of that name; "" for none.
    """
    request = pb.ModelInferRequest(model_name=model)
    if app:
        request.parameters["app"].string_param = app
    for name, tensor in tensors.items():
        request.inputs.add(name=name, datatype=np_to_triton_dtype(tensor.dtype), shape=tensor.shape)
        is_text = tensor.dtype == np.object_
        request.raw_input_contents.append(serialize_byte_tensor(tensor).item() if is_text else tensor.tobytes())
    return request


class RandomRequests:
    """Requests for one model, drawn once from a seed and sent cyclically: a `RequestFactory`."""

    def __init__(
        self,
        model: str,
        inputs: Mapping[str, tuple[str, Shape]],
        *,
        seed: int,
        distinct: int,
        values: RandomValues = RandomValues.DRAWN,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        """Draw `distinct` requests. `inputs`: (Triton data type, full shape) by input name.

        `limits`: exclusive upper bounds of integer inputs.
        """
        highest = {name: (limits or {}).get(name, 128) if values is RandomValues.DRAWN else 2 for name in inputs}
        rng = np.random.default_rng(seed)
        drawn = any(not isinstance(size, int) for _datatype, shape in inputs.values() for size in shape)
        self._requests: list[pb.ModelInferRequest] = []
        size_bytes = 0
        for number in range(distinct * OF_DRAWN_SHAPES if drawn else distinct):
            if number >= distinct and size_bytes > MAX_BYTES:
                break
            tensors = {
                name: _tensor(rng, datatype, _drawn(rng, shape), values, highest[name])
                for name, (datatype, shape) in inputs.items()
            }
            self._requests.append(infer_request(model, tensors))
            size_bytes += sum(map(len, self._requests[-1].raw_input_contents))

    def __call__(self, index: int) -> pb.ModelInferRequest:
        """The request to send as number `index`."""
        return self._requests[index % len(self._requests)]

    @classmethod
    async def for_model(
        cls,
        connection: AsksForModels,
        model: str,
        *,
        rows: int,
        shapes: Shapes,
        seed: int,
        distinct: int = DISTINCT_REQUESTS,
        values: RandomValues = RandomValues.DRAWN,
    ) -> "RandomRequests":
        """Query the server for the inputs. `shapes`: sizes of dynamic dimensions, by input name and without rows.

        An optional input is sent only if `shapes` names it. Raises LoadTestError for an unknown model, input or data
        type, a dimension that is still dynamic or contradicts the model's, and more rows than the model takes.
        `distinct`: number of different requests to draw.
        """
        metadata = await connection.model_metadata(model)
        config = await connection.model_config(model)
        max_rows = config.max_batch_size
        if rows > max(max_rows, 1):
            raise LoadTestError(f"model {model!r} takes at most {max(max_rows, 1)} rows, not {rows}")
        declared = {tensor.name: tensor for tensor in metadata.inputs}
        unknown = sorted(set(shapes) - set(declared))
        if unknown:
            raise LoadTestError(f"model {model!r} has no input {unknown[0]!r}; it has {', '.join(declared)}")
        optional = {tensor.name for tensor in config.input if tensor.optional}
        inputs = {}
        for name, tensor in declared.items():
            if name in optional and name not in shapes:
                continue
            dims = tuple(tensor.shape)[1:] if max_rows else tuple(tensor.shape)
            full = _fill(name, dims, shapes.get(name))
            inputs[name] = (tensor.datatype, (rows, *full) if max_rows else full)
        return cls(model, inputs, seed=seed, distinct=distinct, values=values, limits=_limits_of(config))


def _limits_of(config: model_config_pb2.ModelConfig) -> dict[str, int]:
    """The limits of integer inputs, as far as a model's configuration has them."""
    if LIMITS_PARAMETER not in config.parameters:
        return {}
    text = config.parameters[LIMITS_PARAMETER].string_value
    try:
        limits = {str(name): int(limit) for name, limit in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        where = f"model {config.name!r}: its config's parameter {LIMITS_PARAMETER!r}"
        raise LoadTestError(f'{where} is {text!r}: write JSON like {{"token_type_ids": 2}}') from error
    return {name: limit for name, limit in limits.items() if limit > 0}


def _fill(name: str, dims: tuple[int, ...], given: Shape | None) -> Shape:
    """The dimensions to send, rows left out: the model's, -1 replaced by the given ones."""
    if given is None:
        if any(dim < 0 for dim in dims):
            shown = ",".join(str(dim) for dim in dims)
            raise LoadTestError(f"input {name!r} is {shown}: give its -1 a size with --shape {name}:...")
        return dims
    fits = len(given) == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, given, strict=True))
    if not fits:
        shown = ",".join(str(dim) for dim in dims)
        asked = ",".join(str(size) if isinstance(size, int) else f"{min(size)}..{max(size)}" for size in given)
        raise LoadTestError(f"input {name!r} is {shown} (rows not counted), which {asked} does not fit")
    return given


def _drawn(rng: np.random.Generator, shape: Shape) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else size[int(rng.integers(len(size)))] for size in shape)


def _tensor(
    rng: np.random.Generator, datatype: str, shape: tuple[int, ...], values: RandomValues, highest: int
) -> NDArray[Any]:
    """A tensor of these values; its integers are smaller than `highest`."""
    if datatype == "BYTES":
        texts = [rng.bytes(8).hex().encode() for _ in range(int(np.prod(shape)))]
        return np.array(texts, np.object_).reshape(shape)
    dtype = triton_to_np_dtype(datatype)
    if dtype is None:
        raise LoadTestError(f"cannot draw random tensors of data type {datatype}")
    if values in (RandomValues.ONES, RandomValues.ZEROS):
        return np.full(shape, values is RandomValues.ONES).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        # 128: small enough for every type, and most vocabularies
        return rng.integers(0, min(highest, np.iinfo(dtype).max), shape).astype(dtype)
    if dtype is bool:
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.random(shape, np.float32).astype(dtype)
