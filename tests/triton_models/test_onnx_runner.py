"""The ONNX runner in a real Triton."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.conftest import eventually
from tests.triton_models.conftest import add_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton

DTYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "STRING": TensorProto.STRING,
}
# One execution as soon as eight rows wait: which requests meet does not depend on the clock.
EIGHT_ROWS = """
max_batch_size: 8
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 60000000 }
"""
GATHER = """
input { name: "X" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }
output [ { name: "Y" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "PICKED" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
TABLE = np.linspace(0, 1, 4096, dtype=np.float32)


def _tensor(name: str, kind: int, rank: int = 2) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [f"d{index}" for index in range(rank)])


def _save(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any], **how: bool | int | str
) -> None:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, **how)


def _save_identities(path: Path) -> None:
    _save(
        path,
        [helper.make_node("Identity", [f"IN_{name}"], [f"OUT_{name}"]) for name in DTYPES],
        [_tensor(f"IN_{name}", kind) for name, kind in DTYPES.items()],
        [_tensor(f"OUT_{name}", kind) for name, kind in DTYPES.items()],
        [],
    )


def _save_gather(path: Path, **how: bool | int | str) -> None:
    """Y = X, and PICKED = table[X], which fails for an index that the table lacks."""
    table = numpy_helper.from_array(TABLE, "table")
    _save(
        path,
        [helper.make_node("Identity", ["X"], ["Y"]), helper.make_node("Gather", ["table", "X"], ["PICKED"])],
        [_tensor("X", TensorProto.INT64)],
        [_tensor("Y", TensorProto.INT64), _tensor("PICKED", TensorProto.FLOAT)],
        [table],
        **how,
    )


@pytest.fixture(scope="module")
def server(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    repository = tmp_path_factory.mktemp("onnx")
    tensors = "".join(
        f'{way} {{ name: "{prefix}_{name}" data_type: TYPE_{name} dims: [ -1, -1 ] }}\n'
        for way, prefix in (("input", "IN"), ("output", "OUT"))
        for name in DTYPES
    )
    _save_identities(add_model(repository, "identities", "onnx_runner", "max_batch_size: 0\n" + tensors) / "model.onnx")
    _save_gather(add_model(repository, "gather", "onnx_runner", EIGHT_ROWS + GATHER) / "model.onnx")
    version = add_model(
        repository, "words", "onnx_runner", EIGHT_ROWS + GATHER.replace("INT64", "STRING").partition(", {")[0] + " ]"
    )
    _save(
        version / "model.onnx",
        [helper.make_node("Identity", ["X"], ["Y"])],
        [_tensor("X", TensorProto.STRING)],
        [_tensor("Y", TensorProto.STRING)],
        [],
    )
    version = add_model(
        repository,
        "external",
        "onnx_runner",
        "max_batch_size: 8\n" + GATHER,
        model_file="part.onnx",
        intra_op_threads=2,
        graph_optimization="basic",
    )
    _save_gather(version / "part.onnx", save_as_external_data=True, location="part.onnx.data", size_threshold=0)
    return start_triton([repository])


def _infer(
    triton: EmbeddedTriton, model: str, arrays: dict[str, np.ndarray[Any, Any]], wanted: list[str] | None = None
) -> triton_grpc.InferResult:
    inputs = []
    for name, array in arrays.items():
        inputs.append(triton_grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    outputs = None if wanted is None else [triton_grpc.InferRequestedOutput(name) for name in wanted]
    with triton_grpc.InferenceServerClient(triton.grpc_address) as client:
        return client.infer(model, inputs, outputs=outputs)


def _counts(triton: EmbeddedTriton, model: str) -> tuple[int, int]:
    """Rows inferred and executions, since the start."""
    with triton_grpc.InferenceServerClient(triton.grpc_address) as client:
        (statistic,) = client.get_inference_statistics(model).model_stats
    return statistic.inference_count, statistic.execution_count


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 0)])
def test_every_dtype_comes_back_as_it_went(server: EmbeddedTriton, shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(1)
    arrays = {}
    for name, kind in DTYPES.items():
        if name == "STRING":
            words = [f"wörd {index}\0".encode() for index in range(shape[0] * shape[1])]
            arrays[f"IN_{name}"] = np.array(words, dtype=np.object_).reshape(shape)
        else:
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            arrays[f"IN_{name}"] = generator.integers(0, 2 if name == "BOOL" else 100, shape).astype(dtype)
    result = _infer(server, "identities", arrays)
    for name, array in arrays.items():
        got = result.as_numpy(name.replace("IN_", "OUT_"))
        assert got.shape == shape
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


def test_only_the_outputs_asked_for_come_back(server: EmbeddedTriton) -> None:
    result = _infer(server, "external", {"X": np.array([[4095]])}, ["PICKED"])
    assert [output.name for output in result.get_response().outputs] == ["PICKED"]
    assert result.as_numpy("PICKED").tolist() == [[1.0]]


def test_a_dynamic_batch_is_one_run_and_each_gets_its_own_rows(server: EmbeddedTriton) -> None:
    before = _counts(server, "gather")
    requests = [
        np.array([[10 * row + column for column in range(3)] for row in rows]) for rows in ([0, 1], [2], [3, 4])
    ]
    # Another shape in the same execution: a group of its own.
    requests.append(np.array([[1], [2], [3]]))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda indices: _infer(server, "gather", {"X": indices}), requests))
    for indices, result in zip(requests, results, strict=True):
        np.testing.assert_array_equal(result.as_numpy("Y"), indices)
        np.testing.assert_array_equal(result.as_numpy("PICKED"), TABLE[indices])
    # Triton answers first, and counts then.
    eventually(lambda: _counts(server, "gather") == (before[0] + 8, before[1] + 1), "one execution of eight rows")


@pytest.mark.parametrize(
    ("model", "good", "bad", "reason"),
    [
        ("gather", np.array([[1, 2]] * 2), np.array([[1, 9999]] * 2), "indices element out of data bounds"),
        (
            "words",
            np.array([["a"], ["é".encode()]], dtype=np.object_),
            np.array([["a"], [b"\xff"]], dtype=np.object_),
            "element 1 of input 'X' is not UTF-8",
        ),
    ],
)
def test_a_failing_request_leaves_the_rest_of_its_batch_alone(
    server: EmbeddedTriton, model: str, good: np.ndarray[Any, Any], bad: np.ndarray[Any, Any], reason: str
) -> None:
    before = _counts(server, model)

    def one(array: np.ndarray[Any, Any]) -> triton_grpc.InferResult | InferenceServerException:
        try:
            return _infer(server, model, {"X": array})
        except InferenceServerException as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, [good, bad, good, good]))
    assert reason in str(results[1])
    expected = [[word.encode() if isinstance(word, str) else word for word in row] for row in good.tolist()]
    for result in (results[0], results[2], results[3]):
        assert result.as_numpy("Y").tolist() == expected
    eventually(lambda: _counts(server, model)[1] == before[1] + 1, "one execution")


def test_load_errors_say_what_and_where(load_errors: Callable[[Path], dict[str, str]], tmp_path: Path) -> None:
    def add(name: str, config: str = GATHER, **parameters: object) -> Path:
        return add_model(tmp_path, name, "onnx_runner", "max_batch_size: 8\n" + config, **parameters)

    add("absent")
    (add("broken") / "model.onnx").write_bytes(b"not ONNX")
    _save_gather(add("renamed", GATHER.replace("PICKED", "CHOSEN")) / "model.onnx")
    _save_gather(add("retyped", GATHER.replace("TYPE_INT64", "TYPE_INT32")) / "model.onnx")
    _save_gather(add("threads", intra_op_threads="many") / "model.onnx")
    _save_gather(add("level", graph_optimization="fast") / "model.onnx")
    _save_gather(add("provider", execution_provider="AbacusExecutionProvider") / "model.onnx")
    _save_gather(add("bf16", GATHER.replace("TYPE_FP32", "TYPE_BF16")) / "model.onnx")
    _save_identities(
        add(
            "lacks",
            'input { name: "IN_FP32" data_type: TYPE_FP32 dims: [ -1 ] }'
            + GATHER[GATHER.index("output") :].replace('"Y"', '"OUT_INT64"').replace("PICKED", "OUT_FP32"),
        )
        / "model.onnx"
    )
    reasons = load_errors(tmp_path)
    for name, reason in {
        "absent": "there is no ONNX file",
        "broken": "onnxruntime cannot load",
        "renamed": "output 'CHOSEN', which",
        "retyped": "input 'X' as TYPE_INT32, but in",
        "threads": "parameter intra_op_threads is 'many'",
        "level": "expected one of off, basic, extended, all",
        "provider": "parameter execution_provider is 'AbacusExecutionProvider': this onnxruntime has",
        "bf16": "'PICKED' is TYPE_BF16, which this runner does not support",
        "lacks": "lacks the inputs IN_BOOL",
    }.items():
        assert reason in reasons[name]
