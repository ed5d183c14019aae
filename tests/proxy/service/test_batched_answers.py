"""A request that shared a batch is answered as one that went to Triton directly."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.clients import infer_all, tensors
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Arrays = dict[str, "np.ndarray[Any, Any]"]
Make = Callable[..., Any]
OUTPUTS = ["SUM", "TANH", "SAID"]


def _arrays(generator: np.random.Generator, rows: int, columns: int) -> Arrays:
    words = [generator.bytes(generator.integers(0, 9)).hex().encode() for _ in range(rows * 2)]
    return {
        "A": generator.normal(size=(rows, columns)).astype(np.float32),
        "B": generator.normal(size=(rows, columns)).astype(np.float32),
        "WORDS": np.array(words, np.object_).reshape(rows, 2),
    }


def _counts(client: triton_grpc.InferenceServerClient, model: str) -> tuple[int, int]:
    (statistic,) = client.get_inference_statistics(model).model_stats
    return statistic.inference_count, statistic.execution_count


def test_concurrent_clients_are_answered_as_triton_would(
    triton: EmbeddedTriton, tidegate: object, connect: Make, jam: Make
) -> None:
    generator = np.random.default_rng(7)
    direct, through = connect(triton), connect(tidegate)
    asked: list[dict[str, Any]] = []
    for index in range(120):
        # Two widths: of each, requests can be merged; of both together, never.
        arrays = _arrays(generator, rows=8 if index % 20 == 0 else 1 + index % 3, columns=3 + index % 2)
        wanted = [name for name in OUTPUTS if generator.random() < 0.7] if index % 4 else None
        outputs = [triton_grpc.InferRequestedOutput(name) for name in wanted] if wanted else None
        asked.append({"inputs": tensors(arrays), "outputs": outputs, "request_id": f"request {index}"})
    before = _counts(direct, "mixer")
    answers = infer_all(through, "mixer", asked, once_sent=jam(tidegate))
    rows = before[0] + sum(request["inputs"][0].shape()[0] for request in asked)
    eventually(lambda: _counts(direct, "mixer")[0] >= rows, "Triton to count what it has answered")
    assert _counts(direct, "mixer")[0] == rows
    assert _counts(direct, "mixer")[1] - before[1] < len(asked) / 2, "hardly anything was merged"
    for request, answer in zip(asked, answers, strict=True):
        expected = direct.infer("mixer", **request)
        header, right = answer.get_response(), expected.get_response()
        assert (header.id, header.model_name, header.model_version) == (right.id, "mixer", "1")
        assert {output.name for output in header.outputs} == {output.name for output in right.outputs}
        for output in right.outputs:
            mine, theirs = answer.as_numpy(output.name), expected.as_numpy(output.name)
            assert mine.shape == theirs.shape
            if output.datatype == "BYTES":
                assert mine.tolist() == theirs.tolist()
            else:
                np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_a_full_batch_and_a_client_with_many_rows_fit(tidegate: object, connect: Make) -> None:
    client = connect(tidegate)
    array = np.arange(20, dtype=np.float32).reshape(4, 5)
    answers = infer_all(client, "echo", [{"inputs": tensors({"X": array + index})} for index in range(8)])
    for index, answer in enumerate(answers):
        np.testing.assert_array_equal(answer.as_numpy("Y"), array + index)


def test_one_request_that_fails_does_not_fail_its_batch(
    triton: EmbeddedTriton, tidegate: object, connect: Make, jam: Make
) -> None:
    client = connect(tidegate)
    before = _counts(connect(triton), "picky")
    values = [-index if index % 10 == 3 else index for index in range(40)]
    arrays = [np.full((1, 2), value, np.float32) for value in values]
    asked = [{"inputs": tensors({"X": array})} for array in arrays]
    answers = infer_all(client, "picky", asked, once_sent=jam(tidegate))
    for value, answer in zip(values, answers, strict=True):
        if value < 0:
            assert "negative values are refused" in str(answer)
        else:
            assert answer.as_numpy("Y").tolist() == [[value, value]]
    # Triton counts what succeeds, after it has answered.
    rows = before[0] + sum(value >= 0 for value in values)
    eventually(lambda: _counts(connect(triton), "picky")[0] >= rows, "Triton to count what it has answered")
    assert _counts(connect(triton), "picky")[0] == rows


def test_64_mib_pass(tidegate: object, connect: Make) -> None:
    array = np.arange(1 << 24, dtype=np.float32).reshape(1, -1)
    answer = connect(tidegate).infer("echo", tensors({"X": array}))
    np.testing.assert_array_equal(answer.as_numpy("Y"), array)


def test_a_batch_of_one_is_forwarded_as_it_came(triton: EmbeddedTriton, tidegate: object, call: Make) -> None:
    message = request_of("echo", {"X": np.ones((1, 3), np.float32)}, id="mine")
    message.parameters["priority"].uint64_param = 3
    assert call(tidegate, "ModelInfer", message) == call(triton, "ModelInfer", message)
    _, answer = call(tidegate, "ModelInfer", message)
    assert service_pb2.ModelInferResponse.FromString(answer).id == "mine"
