"""Declared padding of a model, checked against the tensors in the model's config."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from tritonclient.grpc import model_config_pb2

from tidegate_proxy.configuration.padding import FollowingSize, PaddingConfig
from tidegate_proxy.messages.model_signature import ELEMENT_BYTES, datatype_of
from tidegate_proxy.messages.padding import FollowingOutputSize, PaddedAxis
from tidegate_proxy.tritons.batching_mode import BatchingDecision, consent_of


class PaddingError(Exception):
    """Error: the configuration cannot be applied to a model; the message names the field and the remedy."""


def padding_of(
    config: model_config_pb2.ModelConfig, consent: BatchingDecision, declared: Sequence[PaddingConfig]
) -> tuple[PaddedAxis, ...]:
    """Return the padding that the operator declares for a model.

    `consent`: the scheduling decision; unbatched models are not padded. Raises PaddingError if the model's config
    contradicts it.
    """
    if not declared:
        return ()
    if consent.scheduling != "batched":
        can_be = consent_of(config, "batched").scheduling == "batched"
        remedy = (
            "say `scheduling: batched` if its rows may meet those of others, or leave it out"
            if can_be
            else "leave it out"
        )
        raise PaddingError(f"models.{config.name}.merge.pad: its requests share no batches ({consent.why}): {remedy}")
    axes = [
        _Entry(config, f"models.{config.name}.merge.pad.{number}", entry).axis()
        for number, entry in enumerate(declared)
    ]
    _refuse_twice([(each.input, each.axis) for each in axes], config.name, "padded")
    _refuse_twice([(one.output, one.axis) for each in axes for one in each.followers], config.name, "said to follow")
    spoken_of = {name for entry in declared for name in entry.outputs}
    for tensor in config.output:
        if -1 in tensor.dims and tensor.name not in spoken_of:
            raise PaddingError(
                f"models.{config.name}.merge.pad.0.outputs: output {tensor.name!r} has {_shape(tensor)}, and it is not "
                f"said whether what is open follows: add `{tensor.name}: {{}}` if it is as long as the input, "
                f"`{tensor.name}: {{stride: 8}}` if an eighth of that, `{tensor.name}: null` if it does not follow"
            )
    return tuple(axes)


def _refuse_twice(places: Sequence[tuple[str, int]], model: str, what: str) -> None:
    for (name, axis), times in Counter(places).items():
        if times > 1:
            raise PaddingError(
                f"models.{model}.merge.pad: axis {axis} of {name!r} is {what} {times} times: say it once"
            )


class _Entry:
    """One entry of the configuration, held against a model's config."""

    def __init__(self, config: model_config_pb2.ModelConfig, where: str, declared: PaddingConfig) -> None:
        self._config = config
        self._where = where
        self._declared = declared

    def axis(self) -> PaddedAxis:
        """Return the index of an axis given by name or number."""
        tensor = self._input()
        name, datatype = tensor.name, datatype_of(tensor.data_type)
        if datatype not in ELEMENT_BYTES:
            raise self._wrong("input", f"{name!r} is of strings, to which nothing can be added: leave it out")
        axis = self._axis("axis", tensor, self._declared.axis)
        fill = _bits(datatype, self._declared.value)
        if fill is None:
            raise self._wrong("value", f"{self._declared.value:g} is no {datatype}, of which {name!r} is")
        return PaddedAxis(name, axis, self._declared.sizes, fill, tuple(self._followers()))

    def _input(self) -> model_config_pb2.ModelInput:
        inputs = {tensor.name: tensor for tensor in self._config.input}
        if self._declared.input is not None:
            if self._declared.input not in inputs:
                raise self._wrong(
                    "input",
                    f"the model has no input {self._declared.input!r}; it has {', '.join(map(repr, sorted(inputs)))}",
                )
            return inputs[self._declared.input]
        varying = sorted(name for name, tensor in inputs.items() if -1 in tensor.dims)
        if not varying:
            raise self._wrong(
                "", "the model's config leaves no size of an input open, so that nothing varies: leave it out"
            )
        if len(varying) > 1:
            raise self._wrong("input", f"say which one: {', '.join(map(repr, varying))} have sizes that vary")
        return inputs[varying[0]]

    def _followers(self) -> Iterator[FollowingOutputSize]:
        outputs = {tensor.name: tensor for tensor in self._config.output}
        for name, following in self._declared.outputs.items():
            if name not in outputs:
                has = ", ".join(map(repr, sorted(outputs)))
                raise self._wrong("outputs", f"the model has no output {name!r}; it has {has}")
            if following is not None:
                yield self._follower(outputs[name], following)

    def _follower(self, tensor: model_config_pb2.ModelOutput, declared: FollowingSize) -> FollowingOutputSize:
        name = f"outputs.{tensor.name}"
        if datatype_of(tensor.data_type) not in ELEMENT_BYTES:
            raise self._wrong(name, "it is of strings, which cannot be cut: pad no input that it follows")
        axis = self._axis(f"{name}.axis", tensor, declared.axis)
        return FollowingOutputSize(tensor.name, axis, declared.scale, declared.offset, declared.stride)

    def _axis(
        self, field: str, tensor: model_config_pb2.ModelInput | model_config_pb2.ModelOutput, declared: int | None
    ) -> int:
        """An axis that is open, as in the shape with the rows."""
        has = f"{tensor.name!r} has {_shape(tensor)}"
        still_open = [axis for axis, size in enumerate(tensor.dims, 1) if size == -1]
        if declared is None:
            if len(still_open) == 1:
                return still_open[0]
            which = (
                f"axes {', '.join(map(str, still_open))} are open: say which"
                if still_open
                else "none is open: leave it out"
            )
            raise self._wrong(field, f"{has}: {which}")
        axis = declared + len(tensor.dims) + 1 if declared < 0 else declared
        if axis not in still_open:
            raise self._wrong(field, f"{has}: axis {declared} is none that is open, these are: {still_open or 'none'}")
        return axis

    def _wrong(self, field: str, what: str) -> PaddingError:
        return PaddingError(f"{self._where}{'.' if field else ''}{field}: {what}")


def _shape(tensor: model_config_pb2.ModelInput | model_config_pb2.ModelOutput) -> str:
    """A tensor's shape as its config has it, with the rows."""
    return f"the shape [rows, {', '.join(map(str, tensor.dims))}]"


def _bits(datatype: str, value: float) -> int | None:
    """The bytes of a number of a datatype, as an integer; None where it is none of those."""
    if datatype == "BOOL":
        return int(value) if value in (0, 1) else None
    if datatype == "BF16":
        wide = _bits("FP32", value)
        return None if wide is None else wide >> 16
    kind = np.dtype({"F": "f", "I": "i", "U": "u"}[datatype[0]] + str(ELEMENT_BYTES[datatype]))
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            number = np.float64(value).astype(kind)
        fits = bool(np.isfinite(number))
    else:
        limits = np.iinfo(kind)
        fits = value == int(value) and limits.min <= value <= limits.max
        number = np.array(int(value), kind) if fits else np.array(0, kind)
    return int(number.view(f"u{kind.itemsize}")) if fits else None
