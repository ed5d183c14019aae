"""Which tensors are sent for a scenario's requests."""

from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from tidegate.workload import RequestSequence, Scenario, draw_requests
from tidegate_loadtest.connection import Connection, LoadTestError
from tidegate_loadtest.scenario_requests import ScenarioRequests
from tidegate_loadtest.shapes import Shapes

if TYPE_CHECKING:
    from tests.loadtest.conftest import FakeTriton

LINE = {"alpha_ms": 1, "beta_ms": 5, "max_batch": 16}


def requests_for(*models: dict[str, Any]) -> RequestSequence:
    scenario = {
        "warmup_s": 0,
        "duration_s": 1,
        "workers": [{"count": 1}],
        "models": [{"profile": LINE, **model} for model in models],
        "arrivals": {"rate_rps": 60},
    }
    return draw_requests(Scenario.model_validate(scenario), seed=1)


def drawn(triton: "FakeTriton", requests: RequestSequence, shapes: Shapes) -> ScenarioRequests:
    async def run() -> ScenarioRequests:
        async with Connection(triton.target) as connection:
            return await ScenarioRequests.drawn(connection, requests, shapes=shapes, seed=0)

    return uvloop.run(run())


def test_each_is_for_its_model_and_has_its_rows(triton: "FakeTriton") -> None:
    rows = {"distribution": "table", "values": [1, 2, 8]}
    requests = requests_for({"name": "echo", "rows": rows}, {"name": "image"})
    request_of = drawn(triton, requests, {"IMAGE": (3, 2, 2)})
    sent = [request_of(index) for index in range(len(requests))]
    assert [(request.model_name, request.inputs[0].shape[0]) for request in sent] == [
        (request.model, request.rows) for request in requests
    ]
    assert {request.inputs[0].shape[0] for request in sent if request.model_name == "echo"} == {1, 2, 8}
    assert all(list(request.inputs[0].shape) == [1, 3, 2, 2] for request in sent if request.model_name == "image")


def test_a_shape_can_be_for_one_model_only(triton: "FakeTriton") -> None:
    requests = requests_for({"name": "image"}, {"name": "echo"})
    request_of = drawn(triton, requests, {"IMAGE": (3, 2, 2), "image/IMAGE": (3, 4, 4)})
    image = next(request_of(index) for index in range(len(requests)) if requests.model[index] == 0)
    assert list(image.inputs[0].shape) == [1, 3, 4, 4]


@pytest.mark.parametrize(
    ("model", "shapes", "says"),
    [
        ({"name": "absent"}, {}, "absent"),
        ({"name": "image"}, {}, "give its -1 a size with --shape IMAGE:"),
        ({"name": "echo"}, {"IMAGE": (3, 2, 2)}, "no model of the scenario has this input (echo: X)"),
        ({"name": "echo", "rows": 16}, {}, "takes at most 8 rows, not 16"),
        ({"name": "strange"}, {}, "cannot draw random tensors of data type INT4"),
    ],
)
def test_what_cannot_be_sent_is_said(triton: "FakeTriton", model: dict[str, Any], shapes: Shapes, says: str) -> None:
    with pytest.raises(LoadTestError) as error:
        drawn(triton, requests_for(model), shapes)
    assert says in str(error.value)
    assert triton.requests == []
