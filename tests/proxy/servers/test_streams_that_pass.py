"""Streams in shadow mode over several Tritons: answers leave in the order of the requests, as from one Triton."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of, rest_of
from tests.proxy.fixtures.models import add_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]


def _executed(triton: EmbeddedTriton, model: str = "m") -> int:
    with triton_grpc.InferenceServerClient(triton.grpc_address) as client:
        return int(client.get_inference_statistics(model).model_stats[0].inference_stats.success.count)


def test_a_request_that_overtakes_at_another_triton_is_answered_in_its_turn(
    start_triton: Make, serve_here: Make, open_stream: Make, tmp_path: Path
) -> None:
    gates = [tmp_path / name / "gate" for name in ("shut", "open")]
    tritons = []
    for gate in gates:
        gate.parent.mkdir()
        repository = tmp_path / f"models_{gate.parent.name}"
        add_model(repository, "m", "max_batch_size: 4", gate=gate)
        tritons.append(start_triton([repository]))
    shut, opened = gates
    opened.touch()
    proxy = serve_here(tritons, shadow=True)
    row = np.ones((1, 2), np.float32)
    asked = [request_of("m", {"X": row}, id=str(number)) for number in range(6)]
    stream = open_stream(proxy, asked)
    eventually(lambda: _executed(tritons[1]), "the other Triton to answer while the first one waits")
    shut.touch()
    answers, code, _ = rest_of(stream)
    assert code is grpc.StatusCode.OK
    assert [answer.infer_response.id for answer in answers] == [str(number) for number in range(6)]
    eventually(lambda: _executed(tritons[0]) + _executed(tritons[1]) == 6, "both to count what they answered")
    assert 1 <= _executed(tritons[0]) <= 3, "no more than the other one, which answers"


@pytest.mark.parametrize("shadow", [True, False], ids=["scheduled otherwise", "passing"])
def test_each_triton_has_its_share_of_each_model_in_simultaneous_streams(
    shadow: bool, start_triton: Make, serve_here: Make, open_stream: Make, tmp_path: Path
) -> None:
    """It counts from the choice of a Triton, however many requests of a stream are chosen for at once."""
    gate, rows = tmp_path / "gate", 4 if shadow else 0
    tritons = []
    for name in ("one", "other"):
        for model in ("a", "b"):
            add_model(tmp_path / name, model, f"max_batch_size: {rows}", gate=gate)
        tritons.append(start_triton([tmp_path / name]))
    proxy = serve_here(tritons, shadow=shadow)
    array = np.ones((1, 2) if shadow else (2,), np.float32)
    asked = [request_of(model, {"X": array}) for _ in range(4) for model in ("a", "b")]
    streams = [open_stream(proxy, asked), open_stream(proxy, asked[::-1])]
    hosts = proxy.serving._directory.catalog.hosts["a"]
    eventually(lambda: sum(host.in_flight for host in hosts) == 16, "all of them to be on their way")
    assert [dict(host.in_flight_by_model) for host in hosts] == [{"a": 4, "b": 4}] * 2
    gate.touch()
    assert [len(rest_of(stream)[0]) for stream in streams] == [8, 8]
    eventually(lambda: not any(host.in_flight for host in hosts), "them to be over")
    assert not any(host.in_flight_by_model for host in hosts)
    eventually(lambda: [_executed(each, model) for each in tritons for model in "ab"] == [4] * 4, "them to be counted")


# Answers as often as the first value says, or once with an error of its own where that is negative.
SENDER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            sender, times = request.get_response_sender(), int(tensor.flat[0])
            if times < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("its own")))
            for _ in range(times):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_a_model_that_sends_its_responses_itself_answers_as_in_a_tritons_stream(
    start_triton: Make, serve_here: Make, open_stream: Make, tmp_path: Path
) -> None:
    """Of several responses the first one counts in a stream. A ModelInfer fails with several, and hides an error.

    Triton 2.51 dies of streams in which such a model has more than one request: nobody sends it those.
    """
    (add_model(tmp_path, "m", "max_batch_size: 4") / "model.py").write_text(SENDER)
    triton = start_triton([tmp_path])
    for times in ([2], [3, 1, 2], [-1], [1, -1, 2, 1]):
        proxy = serve_here([triton])
        asked = [request_of("m", {"X": np.full((1, 2), n, np.float32)}, id=str(n)) for n in times]
        alone = [rest_of(open_stream(triton, [one])) for one in asked]
        right = [(a.error_message, a.infer_response.id, len(a.infer_response.outputs)) for (a,), *_ in alone]
        for _ in range(2):
            answers, *end = rest_of(open_stream(proxy, asked))
            assert [(a.error_message, a.infer_response.id, len(a.infer_response.outputs)) for a in answers] == right
            assert end == [grpc.StatusCode.OK, ""] == list(alone[0][1:])
