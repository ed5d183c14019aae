"""Run times by node, and blocks of equal run time."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate_repo_generator.dataflow import Dataflow, SplitError
from tidegate_repo_generator.splitting.blocks import open_model
from tidegate_repo_generator.splitting.cutting import Cutter
from tidegate_repo_generator.splitting.run_times import (
    data_times,
    equal_cuts,
    measure_nodes,
    read_profile,
    times_from_profile,
)
from tidegate_repo_generator.splitting.split import split_model

SaveText = Callable[..., Path]


def chain(save_text: SaveText, length: int) -> Path:
    names = ["x", *(f"a{number}" for number in range(1, length)), "y"]
    nodes = "  ".join(f"{later} = Relu({earlier})" for earlier, later in pairwise(names))
    path = save_text(f"g (float[n, 4] x) => (float[n, 4] y) {{ {nodes} }}")
    model = onnx.load(path)
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    onnx.save(model, path)
    return path


@pytest.fixture
def cutter(save_text: SaveText) -> Cutter:
    """Twelve nodes in a row."""
    return open_model(chain(save_text, 12), {})[0]


def events(times: dict[str, list[float]]) -> str:
    return json.dumps(
        [{"cat": "Session", "name": "session_initialization", "dur": 9}]
        + [
            {"cat": "Node", "name": f"{name}_kernel_time", "dur": time, "args": {}}
            for name, all_times in times.items()
            for time in all_times
        ]
    )


@pytest.mark.parametrize(
    ("times", "blocks", "cuts"),
    [
        ([1.0] * 12, 3, [4, 8]),
        ([1.0] * 12, 12, list(range(1, 12))),
        ([6.0, *[1.0] * 6, *[0.0] * 5], 2, [1]),
        ([100.0, *[1.0] * 11], 4, [1, 2, 3]),  # the first node is more than three blocks' share
        ([*[1.0] * 11, 100.0], 4, [9, 10, 11]),
    ],
)
def test_blocks_of_equal_run_time(cutter: Cutter, times: list[float], blocks: int, cuts: list[int]) -> None:
    assert equal_cuts(cutter, times, blocks) == cuts


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(0.5, 1.5), min_size=12, max_size=12), st.integers(1, 5))
def test_every_cut_is_the_nearest_to_its_share(cutter: Cutter, times: list[float], blocks: int) -> None:
    until = np.cumsum([0.0, *times])
    for number, cut in enumerate(equal_cuts(cutter, times, blocks), start=1):
        share = until[-1] * number / blocks
        assert abs(until[cut] - share) == pytest.approx(min(abs(until[1:-1] - share)))


def test_slack_moves_a_cut_to_where_fewer_bytes_cross(save_text: SaveText) -> None:
    path = save_text("g (float[n, 4] x) => (float[n, 4] y) { a = Relu(x)  b = Exp(a)  c = Mul(a, b)  y = Neg(c) }")
    cutter = open_model(path, {})[0]
    times = [1.0, 1.0, 0.1, 2.0]
    assert [cutter.bytes_per_row(position) for position in (1, 2, 3)] == [16, 32, 16]
    assert [equal_cuts(cutter, times, 2, slack) for slack in (0.0, 0.02, 0.04, 1.0)] == [[2], [2], [3], [3]]


def test_too_many_blocks(cutter: Cutter) -> None:
    with pytest.raises(SplitError, match="cannot be cut into 13 blocks: 11 of 11 places"):
        equal_cuts(cutter, [1.0] * 12, 13)


def test_constants_and_shapes_count_where_they_are_first_needed(save_text: SaveText) -> None:
    path = save_text("""g (float[n, 4] x) => (float[n, 4] y) {
        s = Shape(x)  t = Identity(s)  z = ConstantOfShape(t)  a = Relu(x)  b = Add(a, z)  y = Add(b, z) }""")
    flow = Dataflow(onnx.load(path))
    assert data_times(flow, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]) == [8.0, 23.0, 32.0]


def test_measured_nodes(save_text: SaveText) -> None:
    """Calls of local functions are inlined when they run; their time is the call's."""
    path = save_text(
        """g (float[n, 4] x) => (float[n, 4] y) {
        k = Constant<value = float[4] {1, 2, 3, 4}>()  a = own.f(x)  b = Add(a, k)  y = own.f(b) }""",
        header='<ir_version: 8, opset_import: ["" : 17, "own" : 1]>',
        functions='<domain: "own", opset_import: ["" : 17]> f (u) => (v) { t = Relu(u)  v = Exp(t) }',
    )
    steps: list[int] = []
    flow = Dataflow(onnx.load(path))
    feed = {"x": np.ones((1, 4), np.float32)}
    times = measure_nodes(flow, path.parent, feed, lambda: steps.append(1), runs=2)
    assert [time > 0 for time in times] == [False, True, True, True]
    assert len(steps) == 5


def test_a_profile_of_onnxruntime(save_text: SaveText, tmp_path: Path) -> None:
    path = chain(save_text, 4)
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for _ in range(3):
        session.run(None, {"x": np.ones((1, 4), np.float32)})
    manifest = split_model(path, tmp_path / "blocks", blocks=2, profile=Path(session.end_profiling()))
    assert len(manifest.blocks) == 2


def test_the_median_of_a_profile_counts(save_text: SaveText, tmp_path: Path) -> None:
    path, profile = chain(save_text, 3), tmp_path / "p.json"
    profile.write_text(events({"node0": [5, 1, 1], "node1": [3, 4, 5], "node2": [2, 2, 2]}))
    assert read_profile(profile) == {"node0": 1, "node1": 4, "node2": 2}
    assert times_from_profile(Dataflow(onnx.load(path)), profile) == [1, 4, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no profile of onnxruntime's"),
        ("[1]", "is no profile of onnxruntime's"),
        ("[]", "has no kernel times"),
        (events({"node0": [1], "fused_node": [9]}), "90% of its time belongs to no node of the model, e.g. fused_node"),
    ],
)
def test_what_is_no_profile(save_text: SaveText, tmp_path: Path, text: str, said: str) -> None:
    path, profile = chain(save_text, 3), tmp_path / "p.json"
    profile.write_text(text)
    with pytest.raises(SplitError, match=said):
        split_model(path, tmp_path / "blocks", blocks=2, profile=profile)


def test_a_profile_that_is_not_there(save_text: SaveText, tmp_path: Path) -> None:
    with pytest.raises(SplitError, match=r"none\.json: No such file"):
        split_model(chain(save_text, 3), tmp_path / "blocks", blocks=2, profile=tmp_path / "none.json")


def test_nodes_of_one_name_cannot_be_told_apart(save_text: SaveText, tmp_path: Path) -> None:
    path, profile = chain(save_text, 3), tmp_path / "p.json"
    profile.write_text(events({"node0": [1]}))
    model: Any = onnx.load(path)
    model.graph.node[1].name = "node0"
    with pytest.raises(SplitError, match="nodes of the model share names"):
        times_from_profile(Dataflow(model), profile)
