"""Ensembles through Tidegate, as Triton's L0_simple_ensemble, L0_optional_input, L0_infer_reshape and others ask."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.integration.triton_qa.asking import Served, message_of, over_grpc, over_http
from tests.proxy.fixtures.calls import rest_of

Make = Callable[..., Any]


def _pair(model: str, rows: int = 1, wanted: tuple[str, ...] = (), **fields: Any) -> Any:
    one, other = (np.arange(16 * rows, dtype=np.int32).reshape(rows, 16) * factor for factor in (3, 1))
    return message_of(model, {"INPUT0": one, "INPUT1": other}, wanted=wanted, **fields)


def _floats(model: str, *names: str, columns: int = 1, wanted: tuple[str, ...] = (), **parameters: Any) -> Any:
    arrays = {name: np.full((1, columns), index + 1.5, np.float32) for index, name in enumerate(names)}
    return message_of(model, arrays, parameters, wanted=wanted)


CASES = {
    "one row": _pair("ensemble_add_sub", id="mine"),
    "eight rows": _pair("ensemble_add_sub", 8),
    "nine rows": _pair("ensemble_add_sub", 9, id="mine"),
    "no rows": _pair("ensemble_add_sub", 0),
    "one output": _pair("ensemble_add_sub", 8, ("OUTPUT0",)),
    "the other output": _pair("ensemble_add_sub", 1, ("OUTPUT1",)),
    "an output twice": _pair("ensemble_add_sub", 1, ("OUTPUT1", "OUTPUT1")),
    "an unknown output": _pair("ensemble_add_sub", 1, ("OUTPUT2",)),
    "a chain": _pair("ensemble_latest", 4, id="mine"),
    "one output of a chain": _pair("ensemble_latest", 4, ("OUTPUT1",)),
    "a step gives too little": _pair("ensemble_partial", id="mine"),
    "a step gives all that is wanted": _pair("ensemble_partial", 1, ("OUTPUT0",)),
    "a step gives nothing that is wanted": _pair("ensemble_partial", 1, ("OUTPUT1",)),
    "a step gives too little for the next": _pair("ensemble_gap"),
    "a missing input": message_of("ensemble_add_sub", {"INPUT0": np.ones((1, 16), np.int32)}),
    "an unknown input": message_of("ensemble_add_sub", {"INPUT2": np.ones((1, 16), np.int32)}),
    "a wrong shape": message_of("ensemble_add_sub", dict.fromkeys(("INPUT0", "INPUT1"), np.ones((1, 15), np.int32))),
    "unlike rows": message_of(
        "ensemble_add_sub", {"INPUT0": np.ones((1, 16), np.int32), "INPUT1": np.ones((2, 16), np.int32)}
    ),
    "no batch dimension": message_of("ensemble_add_sub", dict.fromkeys(("INPUT0", "INPUT1"), np.ones(16, np.int32))),
    "a wrong type": message_of("ensemble_add_sub", dict.fromkeys(("INPUT0", "INPUT1"), np.ones((1, 16), np.float32))),
    "an unknown version": _pair("ensemble_add_sub", model_version="2"),
    "all optional inputs": _floats("ensemble_optional", "INPUT0", "INPUT1"),
    "one optional input": _floats("ensemble_optional", "INPUT1"),
    "no optional input": _floats("ensemble_optional"),
    "an optional input of a chain": _floats("ensemble_optional_chain", "INPUT0"),
    "a step without one of its inputs": _floats("ensemble_unconnected", "INPUT0", "INPUT1"),
    "steps that reshape": _floats("ensemble_reshaped", "INPUT0", columns=4),
    "steps that reshape something else": _floats("ensemble_reshaped", "INPUT0", columns=3),
    "without a batch dimension": message_of("ensemble_flat", {"INPUT0": np.ones(5, np.float32)}, id="mine"),
    "parameters": _floats("ensemble_tells", "INPUT0", flavor="sweet", number=7, deep=True, share=0.5),
    "a reserved parameter": _floats("ensemble_tells", "INPUT0", triton_mine=True),
    "priority and timeout": _floats("ensemble_tells", "INPUT0", priority=1, timeout=60_000_000),
    "a sequence": _floats("ensemble_tells", "INPUT0", sequence_id=7, sequence_start=True, sequence_end=True),
}


@pytest.mark.parametrize("name", CASES)
def test_calls(name: str, direct: Served, through: Served, call: Make) -> None:
    expected = over_grpc(call, direct, CASES[name])
    for _ in range(2):  # the first one for a set of outputs bypasses
        assert over_grpc(call, through, CASES[name]) == expected


@pytest.mark.parametrize("name", CASES)
def test_streams(name: str, direct: Served, through: Served, open_stream: Make) -> None:
    expected = rest_of(open_stream(direct, [CASES[name]]))
    for _ in range(2):
        assert rest_of(open_stream(through, [CASES[name]])) == expected


@pytest.mark.parametrize("name", CASES)
def test_http(name: str, direct: Served, through: Served) -> None:
    expected = over_http(direct, CASES[name])
    for _ in range(2):
        assert over_http(through, CASES[name]) == expected


def _counts(call: Make, server: Served) -> Counter[tuple[str, str, str]]:
    """Requests that succeeded or failed, and rows, by model and version."""
    _, answer = call(server, "ModelStatistics", service_pb2.ModelStatisticsRequest())
    counts: Counter[tuple[str, str, str]] = Counter()
    for each in service_pb2.ModelStatisticsResponse.FromString(answer).model_stats:
        counts[each.name, each.version, "success"] = each.inference_stats.success.count
        counts[each.name, each.version, "fail"] = each.inference_stats.fail.count
        counts[each.name, each.version, "rows"] = each.inference_count
    return counts


@pytest.mark.parametrize(
    "names",
    [
        ["one row", "eight rows"],
        ["one output", "one output"],
        ["a chain", "one output of a chain"],
        ["steps that reshape"],
        ["a step without one of its inputs"],
    ],
    ids=lambda names: names[0],
)
def test_statistics_of_the_ensemble_and_of_each_version_of_its_steps(
    names: list[str], direct: Served, through: Served, call: Make
) -> None:
    for name in names:  # the first one for a set of outputs bypasses
        over_grpc(call, through, CASES[name])

    def added(server: Served, expected: int) -> Counter[tuple[str, str, str]]:
        """Return the counts that one request to each ensemble adds to the statistics."""
        before = _counts(call, server)
        for name in names:
            assert over_grpc(call, server, CASES[name])[0] is grpc.StatusCode.OK

        def requests() -> int:
            return sum(count for (_, _, what), count in (_counts(call, server) - before).items() if what == "success")

        eventually(lambda: requests() >= expected, "the statistics")
        return _counts(call, server) - before

    steps = {"one row": 6, "one output": 4, "a chain": 6, "steps that reshape": 3}
    expected = steps.get(names[0], 3)
    assert added(through, expected) == added(direct, expected)
