"""Model for Triton's Python backend that runs an ONNX file, on the CPU unless another execution provider is named.

It needs numpy, onnxruntime and what Triton provides to every Python model, nothing else. Its parameters and a
configuration example are in the README of tidegate-triton-models.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils

Arrays = dict[str, "np.ndarray[Any, Any]"]

# Types that Triton's Python backend and onnxruntime share. BF16 is missing: numpy 1 has no such type.
_ONNX_TYPES = {
    "TYPE_BOOL": "tensor(bool)",
    "TYPE_UINT8": "tensor(uint8)",
    "TYPE_UINT16": "tensor(uint16)",
    "TYPE_UINT32": "tensor(uint32)",
    "TYPE_UINT64": "tensor(uint64)",
    "TYPE_INT8": "tensor(int8)",
    "TYPE_INT16": "tensor(int16)",
    "TYPE_INT32": "tensor(int32)",
    "TYPE_INT64": "tensor(int64)",
    "TYPE_FP16": "tensor(float16)",
    "TYPE_FP32": "tensor(float)",
    "TYPE_FP64": "tensor(double)",
    "TYPE_STRING": "tensor(string)",
}
_OPTIMIZATIONS = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class TritonPythonModel:
    """One model instance with an onnxruntime session of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the ONNX file of this version. Raises TritonModelException, failing the load, if it cannot."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        path = Path(args["model_repository"], args["model_version"], parameters.get("model_file", "model.onnx"))
        if not path.is_file():
            raise pb_utils.TritonModelException(f"there is no ONNX file {path} (parameter model_file names it)")
        try:
            self._session = ort.InferenceSession(path, _session_options(parameters), [_provider(parameters)])
        except pb_utils.TritonModelException:
            raise
        except Exception as error:  # onnxruntime's exceptions have no common class of their own
            raise pb_utils.TritonModelException(f"onnxruntime cannot load {path}: {error}") from error
        self._inputs = [entry["name"] for entry in config["input"]]
        # The set of those that hold strings, which need another form in onnxruntime.
        self._strings = {entry["name"] for entry in config["input"] if entry["data_type"] == "TYPE_STRING"}
        # Triton has no scalars: it takes and gives [1]. onnxruntime does not tell a scalar from a tensor of any rank.
        self._scalars = set(parameters.get("scalar_inputs", "").split(","))
        self._batches = config["max_batch_size"] > 0
        _check_tensors("input", config["input"], self._session.get_inputs(), path)
        _check_tensors("output", config["output"], self._session.get_outputs(), path)
        missing = [entry.name for entry in self._session.get_inputs() if entry.name not in self._inputs]
        if missing:
            raise pb_utils.TritonModelException(f"config.pbtxt lacks the inputs {', '.join(missing)} of {path}")

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer `requests`, in order; requests whose shapes agree apart from the rows run as one batch.

        A request that fails gets an error response and does not affect the others.
        """
        responses: list[Any] = [None] * len(requests)
        groups: dict[object, list[tuple[int, Arrays]]] = {}
        for index, request in enumerate(requests):
            try:
                arrays = self._read(request)
            except ValueError as error:
                responses[index] = _failed(error)
                continue
            key: object = index
            if self._batches:
                key = tuple((name, array.shape[1:]) for name, array in arrays.items())
            groups.setdefault(key, []).append((index, arrays))
        for group in groups.values():
            wanted = {index: requests[index].requested_output_names() for index, _ in group}
            for index, outputs in self._run_group(group, wanted):
                responses[index] = outputs
        return responses

    def finalize(self) -> None:
        """Free the memory of the session."""
        del self._session

    def _read(self, request: Any) -> Arrays:  # noqa: ANN401 - Triton's class exists only inside its process
        arrays = {}
        for name in self._inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:  # an optional input may be absent
                array = tensor.as_numpy()
                array = _decoded(name, array) if name in self._strings else array
                arrays[name] = array.reshape(()) if name in self._scalars else array
        return arrays

    def _run_group(self, group: list[tuple[int, Arrays]], wanted: dict[int, list[str]]) -> list[tuple[int, Any]]:
        """Run a group as one batch; if that fails, each alone, so that only those fail that are at fault."""
        try:
            return self._run(group, wanted)
        except Exception as error:  # onnxruntime's exceptions have no common class of their own
            if len(group) == 1:
                return [(group[0][0], _failed(error))]
        return [answer for member in group for answer in self._run_group([member], wanted)]

    def _run(self, group: list[tuple[int, Arrays]], wanted: dict[int, list[str]]) -> list[tuple[int, Any]]:
        first = group[0][1]
        if len(group) == 1:
            feed = first
        else:
            feed = {name: np.concatenate([arrays[name] for _, arrays in group]) for name in first}
        # onnxruntime computes the whole graph; outputs that no request asked for are not fetched.
        names = sorted({name for index, _ in group for name in wanted[index]})
        outputs = dict(zip(names, self._session.run(names, feed), strict=True))
        if not self._batches:
            return [(index, _answer(outputs, wanted[index])) for index, _ in group]
        rows = [next(iter(arrays.values())).shape[0] for _, arrays in group]
        for name, array in outputs.items():
            if array.ndim == 0 or array.shape[0] != sum(rows):
                raise ValueError(
                    f"output '{name}' has shape {list(array.shape)} for {sum(rows)} rows: the model does not batch "
                    "along its first dimension (max_batch_size: 0 says so to Triton)"
                )
        answers = []
        start = 0
        for (index, _), count in zip(group, rows, strict=True):
            own = {name: outputs[name][start : start + count] for name in wanted[index]}
            answers.append((index, _answer(own, wanted[index])))
            start += count
        return answers


def _answer(outputs: Arrays, wanted: list[str]) -> Any:  # noqa: ANN401
    return pb_utils.InferenceResponse(
        output_tensors=[pb_utils.Tensor(name, np.atleast_1d(outputs[name])) for name in wanted]
    )


def _failed(error: Exception) -> Any:  # noqa: ANN401
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error)))


def _decoded(name: str, array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Turn Triton's bytes into the str objects that onnxruntime takes; its strings are UTF-8."""
    decoded = np.empty(array.size, dtype=np.object_)
    for position, element in enumerate(array.flat):
        try:
            decoded[position] = element.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"element {position} of input '{name}' is not UTF-8, as onnxruntime's strings are: {error}"
            ) from error
    return decoded.reshape(array.shape)


def _provider(parameters: dict[str, str]) -> str:
    provider = parameters.get("execution_provider", "CPUExecutionProvider")
    available = ort.get_available_providers()
    if provider not in available:
        raise pb_utils.TritonModelException(
            f"parameter execution_provider is '{provider}': this onnxruntime has {', '.join(available)}"
        )
    return provider


def _session_options(parameters: dict[str, str]) -> ort.SessionOptions:
    options = ort.SessionOptions()
    # One thread by default: several instances share the cores, and Triton decides how many run.
    options.intra_op_num_threads = _threads(parameters, "intra_op_threads")
    options.inter_op_num_threads = _threads(parameters, "inter_op_threads")
    level = parameters.get("graph_optimization", "all")
    if level not in _OPTIMIZATIONS:
        raise pb_utils.TritonModelException(
            f"parameter graph_optimization is '{level}': expected one of {', '.join(_OPTIMIZATIONS)}"
        )
    options.graph_optimization_level = _OPTIMIZATIONS[level]
    return options


def _threads(parameters: dict[str, str], key: str) -> int:
    text = parameters.get(key, "1")
    if not text.isdecimal() or int(text) < 1:
        raise pb_utils.TritonModelException(f"parameter {key} is '{text}': expected a whole number of at least 1")
    return int(text)


def _check_tensors(kind: str, entries: list[dict[str, Any]], tensors: list[Any], path: Path) -> None:
    """Check that the file has each tensor that config.pbtxt names, with the same type."""
    types = {tensor.name: tensor.type for tensor in tensors}
    for entry in entries:
        name, data_type = entry["name"], entry["data_type"]
        if name not in types:
            raise pb_utils.TritonModelException(
                f"config.pbtxt names the {kind} '{name}', which {path} does not have: it has {', '.join(types)}"
            )
        if data_type not in _ONNX_TYPES:
            raise pb_utils.TritonModelException(
                f"{kind} '{name}' is {data_type}, which this runner does not support: {', '.join(_ONNX_TYPES)}"
            )
        if types[name] != _ONNX_TYPES[data_type]:
            raise pb_utils.TritonModelException(
                f"config.pbtxt gives {kind} '{name}' as {data_type}, but in {path} it is {types[name]}"
            )
