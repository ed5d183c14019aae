"""Tensors of a split model that go around partitions, or are outputs of the whole, are given where they are wanted."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.examples import few
from tests.proxy.fixtures.split_model import infer, write_config
from tests.python_models import write_model

Make = Callable[..., Any]
AROUND = {
    "a": ("X", {"M": "x * 2", "EARLY": "x + 100"}),
    "b": ("M", {"N": "m + 1"}),
    "c": ("N X", {"Y": "n - x"}),
}
"""Partitions: what each takes and gives. X goes around b and M; EARLY is an output of the whole."""


@pytest.mark.parametrize("width", few([40_000, 2], ids=["shared", "sent"]))
def test_tensors_go_around_partitions_that_do_not_take_them(
    start_triton: Make, start_tidegate: Make, connect: Make, tmp_path: Path, width: int
) -> None:
    for name, (taken, given) in AROUND.items():
        tensors = [f'input {{ name: "{each}" data_type: TYPE_FP32 dims: [ -1 ] }}' for each in taken.split()]
        tensors += [f'output {{ name: "{each}" data_type: TYPE_FP32 dims: [ -1 ] }}' for each in given]
        config = 'backend: "python"\nmax_batch_size: 4\n' + "\n".join(tensors)
        reads = [
            f'{each.lower()} = pb.get_input_tensor_by_name(request, "{each}").as_numpy()' for each in taken.split()
        ]
        gives = ", ".join(f'pb.Tensor("{each}", {formula})' for each, formula in given.items())
        lines = [
            "import triton_python_backend_utils as pb",
            "class TritonPythonModel:",
            "    def execute(self, requests):",
        ]
        lines += [
            "        answers = []",
            "        for request in requests:",
            *(f"            {line}" for line in reads),
        ]
        lines += [f"            answers.append(pb.InferenceResponse([{gives}]))", "        return answers"]
        write_model(tmp_path / "models", name, "\n".join(lines), config)
    layout = {
        "models": [{"name": "m", "pipelines": [{"partitions": ["a", "b", "c"], "batch": 4}]}],
        "partitions": [
            {"name": name, "model": "m", "blocks": [number, number + 1], "latency_ms": {"cpu": [1, 1, 1, 1]}}
            for number, name in enumerate(AROUND)
        ],
        "workers": [
            {"name": f"w{number}", "device": {"node": "a", "id": number, "product": "cpu"}, "hosts": [*AROUND]}
            for number in range(2)
        ],
    }
    tritons = {f"w{number}": start_triton([tmp_path / "models"]) for number in range(2)}
    client = connect(start_tidegate([], config=write_config(tmp_path, tritons, layout)))
    assert [tensor.name for tensor in client.get_model_metadata("m").outputs] == ["EARLY", "Y"]

    def ask(number: int) -> None:
        x = np.full((1 + number % 3, width), float(number))
        outputs = [triton_grpc.InferRequestedOutput("EARLY")] if number % 2 else None
        answer = infer(client, x, outputs=outputs)
        np.testing.assert_array_equal(answer.as_numpy("EARLY"), x + 100)
        if number % 2 == 0:
            np.testing.assert_array_equal(answer.as_numpy("Y"), x + 1)

    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(24)))
