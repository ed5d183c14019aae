"""Streams in shadow mode over several Tritons: answers leave in the order of the requests, as from one Triton."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton_grpc

from tidegate_proxy.embedded import EmbeddedTriton

Make = Callable[..., Any]


def _executed(triton: EmbeddedTriton) -> int:
    with triton_grpc.InferenceServerClient(triton.grpc_address) as client:
        return int(client.get_inference_statistics("m").model_stats[0].inference_stats.success.count)


def test_a_request_that_overtakes_at_another_triton_is_answered_in_its_turn(
    start_triton: Make,
    add_model: Make,
    serve_here: Make,
    open_stream: Make,
    rest_of: Make,
    request_of: Make,
    eventually: Make,
    tmp_path: Path,
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
    assert _executed(tritons[0])
