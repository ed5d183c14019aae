"""An ensemble or graph that is a step of another one is expanded within it, or passes as a whole."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.gate import Gate
from tests.proxy.fixtures.here import ProxyHere
from tests.proxy.fixtures.models import BEHIND_GATE, ENSEMBLE, add_model
from tests.python_models import write_model
from tidegate.api import Model
from tidegate_proxy.messages.request import AsyncPendingRequest
from tidegate_proxy.service.graph_runs import GraphRuns, StageRequest
from tidegate_proxy.tritons.batching_mode import lines_of
from tidegate_proxy.tritons.catalog import Catalog
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.array([[1, 2, 3]], np.float32)
BATCHED = "max_batch_size: 4"
STAGES = {"deeper": 4, "nested": 3, "chain": 2}
"""Stages of each ensemble of `nested_triton`, at any depth."""


def _with_steps(first: str, second: str) -> str:
    return ENSEMBLE.replace('"echo"', '"FIRST"').replace('"picky"', f'"{second}"').replace("FIRST", first)


@pytest.fixture(scope="module")
def nested_triton(
    start_triton: Callable[..., EmbeddedTriton], gate_itself: Gate, tmp_path_factory: pytest.TempPathFactory
) -> EmbeddedTriton:
    """A Triton with ensembles that are steps of others."""
    repository = tmp_path_factory.mktemp("nested")
    add_model(repository, "echo", BATCHED)
    add_model(repository, "picky", BATCHED, refuses_negative=1)
    add_model(repository, "gated", BATCHED, gate=gate_itself.file)
    write_model(repository, "chain", "", ENSEMBLE)
    write_model(repository, "nested", "", _with_steps("chain", "echo"))
    write_model(repository, "deeper", "", _with_steps("nested", "echo"))
    write_model(repository, "behind_gate", "", BEHIND_GATE)
    write_model(repository, "outer_gate", "", _with_steps("behind_gate", "echo"))
    return start_triton([repository])


def _parsed(outcome: tuple[grpc.StatusCode, Any]) -> Any:
    code, said = outcome
    return service_pb2.ModelInferResponse.FromString(said) if code is grpc.StatusCode.OK else (code, said)


def _serve(serve_here: Make, triton: EmbeddedTriton, *expanded: str, **options: Any) -> ProxyHere:
    tidegate: ProxyHere = serve_here(
        [triton], models={name: {"scheduling": "expanded"} for name in expanded}, **options
    )
    return tidegate


def _stages_of(tidegate: ProxyHere, call: Make, message: Any) -> tuple[Any, int]:
    """Answer to a message, and the number of stages scheduled for it, once the form of each answer is known."""
    for _ in range(4):
        before = tidegate.engine.tally.accepted
        answer = _parsed(call(tidegate, "ModelInfer", message))
    return answer, tidegate.engine.tally.accepted - before


def test_steps_of_steps_are_stages_and_answers_and_errors_are_tritons(
    nested_triton: EmbeddedTriton, serve_here: Make, call: Make, connect: Make
) -> None:
    tidegate = _serve(serve_here, nested_triton, "deeper", "nested", "chain")
    for name, count in STAGES.items():
        message = request_of(name, {"X": ROW}, id="mine")
        answer, stages = _stages_of(tidegate, call, message)
        assert answer == _parsed(call(nested_triton, "ModelInfer", message))
        assert stages == count
        bad = request_of(name, {"X": -ROW}, id="bad")
        theirs = _parsed(call(nested_triton, "ModelInfer", bad))
        assert theirs[0] is grpc.StatusCode.INTERNAL
        assert _parsed(call(tidegate, "ModelInfer", bad)) == theirs
    ours = {each.name: each for each in connect(tidegate).get_inference_statistics().model_stats}
    theirs = {each.name: each for each in connect(nested_triton).get_inference_statistics().model_stats}
    for name in STAGES:
        success = ours[name].inference_stats.success.count
        assert success >= 4, f"an ensemble counts its requests, those of other ensembles included: {name}"
    assert ours["chain"].inference_stats.success.count >= 12
    (line,) = (line for line in _lines(tidegate) if "deeper" in line)
    assert "its step nested likewise (expanded)" in line


def _lines(tidegate: ProxyHere) -> list[str]:
    return lines_of(tidegate.serving._directory.catalog.consents)


def test_a_step_that_is_not_expanded_passes_as_a_whole(
    nested_triton: EmbeddedTriton, serve_here: Make, call: Make
) -> None:
    tidegate = _serve(serve_here, nested_triton, "deeper", "nested")
    message = request_of("deeper", {"X": ROW})
    answer, stages = _stages_of(tidegate, call, message)
    assert answer == _parsed(call(nested_triton, "ModelInfer", message))
    assert stages == 2, "echo of each of the two; chain bypasses"
    bad = request_of("deeper", {"X": -ROW})
    assert _parsed(call(tidegate, "ModelInfer", bad)) == _parsed(call(nested_triton, "ModelInfer", bad))
    (line,) = (line for line in _lines(tidegate) if "nested" in line and "deeper" not in line.partition("(")[0])
    assert "its step chain passes as a whole, as Triton runs it" in line


def test_a_client_that_leaves_takes_nested_stages_along(
    nested_triton: EmbeddedTriton, serve_here: Make, start_call: Make, call: Make, gate: Gate
) -> None:
    tidegate = _serve(serve_here, nested_triton, "behind_gate", "outer_gate")
    message = request_of("outer_gate", {"X": ROW})
    gate.open()
    assert _stages_of(tidegate, call, message)[1] == 3
    gate.shut()
    under_way = start_call(tidegate, "ModelInfer", message)
    eventually(gate.somebody_waits, "the innermost stage to run")
    under_way.cancel()
    eventually(lambda: tidegate.engine.tally.cancelled == 1, "the stage to be cancelled")
    gate.open()
    eventually(lambda: not tidegate.engine.in_flight, "the stage to end")
    models = tidegate.in_loop(lambda: tidegate.serving.driver.observability.metrics.counts.models)
    assert [models[name].cancelled for name in ("outer_gate", "behind_gate")] == [1, 1]


def test_a_nested_deadline_is_within_that_of_its_graph(
    nested_triton: EmbeddedTriton, serve_here: Make, call: Make
) -> None:
    tidegate = _serve(serve_here, nested_triton, "deeper", "nested", "chain")
    message = request_of("deeper", {"X": ROW})
    assert _stages_of(tidegate, call, message)[1] == STAGES["deeper"]
    runs = tidegate.serving._inference._graphs
    alone, batched = tidegate.in_loop(lambda: runs.expected_ns("deeper", 1))
    echo, picky = tidegate.in_loop(lambda: (runs.expected_ns("echo", 1), runs.expected_ns("picky", 1)))
    assert (alone, batched) == (3 * echo[0] + picky[0], 3 * echo[1] + picky[1]), "its longest path"
    message.parameters["slo_ms"].int64_param = 0
    words = "in ensemble 'deeper', in ensemble 'nested', in ensemble 'chain', Request timeout expired"
    assert call(tidegate, "ModelInfer", message) == (grpc.StatusCode.UNAVAILABLE, words)


def test_graphs_of_the_configuration_within_each_other(
    nested_triton: EmbeddedTriton, serve_here: Make, call: Make
) -> None:
    inner = {
        "inputs": ["IN"],
        "outputs": ["OUT"],
        "steps": [{"model": "picky", "input_map": {"X": "IN"}, "output_map": {"Y": "OUT"}}],
    }
    outer = {
        "inputs": ["A"],
        "outputs": ["C"],
        "steps": [
            {"model": "inner", "input_map": {"IN": "A"}, "output_map": {"OUT": "B"}},
            {"model": "chain", "input_map": {"X": "B"}, "output_map": {"Y": "C"}},
        ],
    }
    tidegate = _serve(serve_here, nested_triton, "chain", graphs={"outer": outer, "inner": inner})
    answer, stages = _stages_of(tidegate, call, request_of("outer", {"A": ROW}))
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == ROW[0].tolist()
    assert stages == 1 + 2
    code, words = call(tidegate, "ModelInfer", request_of("outer", {"A": -ROW}))
    assert code is grpc.StatusCode.INTERNAL
    assert words.startswith("in ensemble 'outer', in ensemble 'inner', ")


def test_a_graph_with_a_step_that_cannot_be_served(nested_triton: EmbeddedTriton, serve_here: Make) -> None:
    inner = {
        "inputs": ["IN"],
        "outputs": ["OUT"],
        "steps": [{"model": "absent", "input_map": {"X": "IN"}, "output_map": {"Y": "OUT"}}],
    }
    outer = {
        "inputs": ["A"],
        "outputs": ["B"],
        "steps": [{"model": "inner", "input_map": {"IN": "A"}, "output_map": {"OUT": "B"}}],
    }
    with pytest.raises(Exception, match=r"graphs\.outer: its step is graph 'inner', which cannot be served") as raised:
        _serve(serve_here, nested_triton, graphs={"outer": outer, "inner": inner})
    assert "graphs.inner.steps.0: no Triton has model 'absent'" in str(raised.value)


class CountedTimes:
    """Expectations that count how often they are asked."""

    def __init__(self) -> None:
        self.version = 0
        self.asked = 0

    def fastest_ns(self, _partition: str, rows: int) -> int:
        """Return a time that depends on the version."""
        self.asked += 1
        return rows + self.version


def test_expected_times_of_deeply_nested_graphs_are_computed_once() -> None:
    depth = 16
    ensembles: dict[str, tuple[tuple[str, str], ...]] = {
        f"e{level}": ((f"e{level + 1}", ""),) * 2 for level in range(depth)
    }
    ensembles[f"e{depth - 1}"] = (("m", ""), ("m", ""))
    times, directory = CountedTimes(), SimpleNamespace(catalog=Catalog({"m": Model("m", 4)}, ensembles=ensembles))
    driver: Any = SimpleNamespace(engine=SimpleNamespace(expectations=times))

    async def made() -> GraphRuns:
        unused: Any = None
        where: Any = directory
        return GraphRuns(where, driver, unused, unused, unused)

    runs = asyncio.run(made())
    for _ in range(2):
        assert runs.expected_ns("e0", 3) == (3 * 2**depth, 4 * 2**depth)
    assert times.asked == 2, "once for the request, and once for the largest batch"
    times.version = 1
    assert runs.expected_ns("e0", 3) == (4 * 2**depth, 5 * 2**depth), "profiles have changed"
    directory.catalog = Catalog({"m": Model("m", 5)}, ensembles=ensembles)
    assert runs.expected_ns("e0", 3) == (4 * 2**depth, 6 * 2**depth), "the catalog has changed"


def test_a_stage_has_the_protocol_of_the_client_at_any_depth() -> None:
    async def client() -> AsyncPendingRequest:
        unused: Any = None
        return AsyncPendingRequest(unused, ())

    def stage_of(request: Any) -> StageRequest:
        run: Any = SimpleNamespace(client=request)
        return StageRequest(request.envelope, run, 0)

    assert stage_of(stage_of(asyncio.run(client()))).protocol == "http"
