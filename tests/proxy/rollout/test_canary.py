"""For a share of the time all is scheduled, else all passes as it is, and both are compared."""

import asyncio
import heapq
import itertools
import json
import urllib.request
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.conftest import eventually
from tests.proxy.fixtures.here import ProxyHere
from tidegate.api import Batch, Model, Request, Stage
from tidegate.observation import StartStage
from tidegate_proxy.app.dashboard.live import section_of
from tidegate_proxy.configuration.config_file import ConfigError, read_config
from tidegate_proxy.rollout import canary, comparison
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
LISTEN = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "metrics": "127.0.0.1:0"}


def _request(model: str, value: float) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="X", datatype="FP32", shape=[1, 3])
    message.raw_input_contents.append(np.full((1, 3), value, np.float32).tobytes())
    return bytes(message.SerializeToString())


@pytest.fixture
def half(serve_here: Make, triton: EmbeddedTriton, monkeypatch: pytest.MonkeyPatch) -> ProxyHere:
    """A Tidegate that schedules half of the time, and compares at once."""
    monkeypatch.setattr(canary, "FOLD_EVERY_S", 0.02)
    monkeypatch.setattr(comparison, "BLOCK_NS", 20_000_000)
    monkeypatch.setattr(comparison, "BURN_IN_NS", 0)
    monkeypatch.setattr(comparison, "SETTLING_BLOCKS", 100)  # an answer on a busy machine takes its time,
    monkeypatch.setattr(comparison, "MAX_BLOCKS", 100_000)  # and so do all of them
    monkeypatch.setattr(comparison, "MIN_BLOCKS", 2)
    monkeypatch.setattr(comparison, "MIN_REQUESTS", 20)
    tritons = [{"grpc": triton.grpc_address, "http": triton.http_address}]
    slo = {"echo": {"slo_ms": 60_000}}
    proxy: ProxyHere = serve_here([triton], tritons=tritons, listen=LISTEN, canary=0.5, models=slo)
    return proxy


def _document(proxy: ProxyHere, path: str = "canary") -> Any:
    with urllib.request.urlopen(f"http://{proxy.serving.metrics_address}/{path}") as answer:
        return json.load(answer) if path == "canary" else answer.read().decode()


def test_a_share_is_scheduled_and_both_are_answered_alike_and_compared(
    half: ProxyHere, triton: EmbeddedTriton, call: Make
) -> None:
    for number in range(300):
        asked = _request("echo", number)
        assert call(half, "ModelInfer", asked) == call(triton, "ModelInfer", asked)
    assert 0 < half.engine.tally.accepted < 300  # blocks of time are drawn, and how many requests each has is luck

    def compared() -> dict[str, Any]:
        return next((each for each in _document(half)["compared"] if each["model"] == "echo"), {})

    def is_whole(found: dict[str, Any]) -> bool:
        return bool(found) and found["scheduled"]["requests"] + found["passed"]["requests"] == 300

    eventually(lambda: is_whole(compared()), "all requests in the comparison")
    found = compared()
    assert found["scheduled"]["requests"] == half.engine.tally.accepted
    # Some drawn as a block ends may be sent as the next has begun, on a busy machine: their answers are in neither.
    assert min(found[side]["attainment"] for side in ("scheduled", "passed")) > 0
    assert found["gain"][0] <= found["gain"][1]
    page = _document(half, "metrics")
    assert 'tidegate_canary_attainment{group="control",model="echo"} ' in page
    assert 'tidegate_canary_request_duration_seconds{group="treatment",model="echo",quantile="0.99"}' in page
    section = section_of(half.serving.rollout)
    assert section is not None
    assert (section.mode, section.policy, section.fraction) == ("canary", "fifs", 0.5)
    (row,) = [each for each in section.rows if each.model == "echo"]
    assert row.gain == tuple(found["gain"])
    assert [(side.name, side.requests) for side in row.sides] == [
        ("as it passes", found["passed"]["requests"]),
        ("scheduled by fifs", found["scheduled"]["requests"]),
    ]
    words = canary.describe("fifs", half.serving.rollout.canary._compared[0])
    assert words.startswith("echo: by fifs ")
    assert "gained " in words


def test_errors_are_tritons_on_either_side(half: ProxyHere, triton: EmbeddedTriton, call: Make) -> None:
    for _ in range(10):
        asked = _request("picky", -1)
        assert call(half, "ModelInfer", asked) == call(triton, "ModelInfer", asked)


def test_the_share_is_changed_while_it_serves_and_the_comparison_begins_anew(half: ProxyHere, call: Make) -> None:
    before = 0
    for share, scheduled in ((0.0, 0), (1.0, 20), (None, 20), (0.0, 0)):
        half.run(half.serving.reconfigure(half.serving.config.model_copy(update={"canary": share})))
        eventually(lambda share=share: half.serving.rollout.canary._share == share, "the new share")
        for number in range(20):
            assert call(half, "ModelInfer", _request("echo", number))[0] is grpc.StatusCode.OK
        assert half.engine.tally.accepted - before == scheduled
        before = half.engine.tally.accepted
    assert _document(half)["share"] == 0.0


def test_a_policy_that_breaks_is_not_spoken_of_as_if_it_scheduled(
    half: ProxyHere, call: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_half = half.serving.rollout.canary
    for number in range(40):
        call(half, "ModelInfer", _request("echo", number))
    eventually(lambda: _document(half)["compared"], "a comparison")
    monkeypatch.setattr(of_half, "_decides", lambda: "first come, first served, as fifs broke")
    eventually(lambda: not _document(half)["compared"], "it to begin anew")
    assert _document(half)["policy"] == "first come, first served, as fifs broke"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"canary": "5 parts"}, "canary: must be a share, such as 5% or 0.05, not '5 parts'"),
        ({"canary": "5"}, "canary: must be a share of at most 1, not 5: for 5 percent write 5%"),
        ({"canary": "nan"}, "canary: must be a finite number"),
        ({"canary": 5}, "canary: must be a share of at most 1"),
        ({"canary": "-1%"}, "canary: must be at least 0"),
        ({"canary": "5%", "shadow": True}, "canary: a share is scheduled, and shadow schedules nothing"),
        ({"canary": 0.05, "models": {"m": {"strip_queue_delay": True}}}, "canary: models.m.strip_queue_delay"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_config(flags={"tritons": ["localhost:8001"], **given})


def test_a_share_may_be_told_in_percent() -> None:
    for given in ("5%", " 5.0 %", "0.05", 0.05):
        assert read_config(flags={"tritons": ["localhost:8001"], "canary": given}).canary == 0.05


@pytest.mark.parametrize("ends_after_ns", [300_000_000, 30_000_000_000], ids=["soon", "after its block has settled"])
def test_streams_are_compared_by_their_first_responses(ends_after_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time: scheduled ones respond after 100 ms, and bypassed ones, which crowd Triton, after 700 ms."""
    now_ns = 0
    monkeypatch.setattr(canary, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    catalog = SimpleNamespace(models={"tokens": Model("tokens", 1, 500_000_000, streams=True)}, loaded={}, consents={})
    directory = cast("Any", SimpleNamespace(catalog=catalog))
    config = read_config(flags={"tritons": ["localhost:8001"], "canary": 0.5})
    in_force = cast("Any", SimpleNamespace(settings=SimpleNamespace(canary=0.5)))
    watched = canary.Canary(config, in_force, directory, lambda: "fifs")
    events: list[tuple[int, int, Callable[[], object]]] = []
    order, request_ids = itertools.count(), itertools.count()

    def at(instant_ns: int, work: Callable[[], object]) -> None:
        heapq.heappush(events, (instant_ns, next(order), work))

    def arrive() -> None:
        request = Request(next(request_ids), "tokens", 1, now_ns)
        batch = Batch(request.id, "tokens", (request.id,), (Stage(0, "tokens", now_ns, 0),))
        first_ns = now_ns + 100_000_000
        if watched.schedules(cast("Any", SimpleNamespace(model="tokens"))):
            effect = StartStage(batch, 0, 1)
            at(first_ns, lambda: watched.first_response(effect, [request], request.arrival_ns, first_ns))
            at(now_ns + ends_after_ns, lambda: watched.answered(batch, [request], first_ns))
        else:
            at(now_ns + 700_000_000, lambda: watched.passed("tokens", request.arrival_ns, 700_000_000, True))

    for number in range(2000):
        at(200_000_000 * number, arrive)
        at(200_000_000 * number + 1, lambda: watched.fold(now_ns))
    while events:
        now_ns, _, work = heapq.heappop(events)
        work()
    asyncio.run(watched._compare())
    (compared,) = watched.compared
    assert (compared.scheduled.attainment, compared.passed.attainment) == (1.0, 0.0)
    assert (compared.scheduled.others, compared.passed.others) == (0, 0), "each counts once"
    assert compared.gain is not None
    assert compared.gain[0] > 0.9
    assert not watched._responded
