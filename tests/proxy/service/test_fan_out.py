"""Calls that concern every Triton: whom they are asked of, and which answer counts, over either protocol."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tidegate_proxy.base.outcome import Outcome, RequestFailed
from tidegate_proxy.servers.http.forward import HttpCodec, index_json
from tidegate_proxy.servers.http.interface import HttpAnswer, HttpCall
from tidegate_proxy.servers.http.routes import NO_ROUTE
from tidegate_proxy.service.fan_out import (
    CONTROL_VERBS,
    AnswerRule,
    ControlCall,
    ControlVerb,
    FanOut,
    GrpcCodec,
    IndexRow,
    index_of,
    whole_index,
)

VERB = {verb.method: verb for verb in CONTROL_VERBS}
ROWS = (IndexRow("m", "1", "READY"), IndexRow("m", "2", "UNAVAILABLE", "unloaded"), IndexRow("never loaded"))


@dataclass(eq=False)
class Triton:
    """One that says yes, no, or fails."""

    name: str
    says: bool = True
    fails: bool = False
    alive: bool = True
    rows: tuple[IndexRow, ...] = ROWS


class OverBoth:
    """Asks each over gRPC, and over HTTP."""

    async def ask(self, triton: Triton, method: str, *_: object) -> bytes:
        """Of `Routing`."""
        if triton.fails:
            raise RequestFailed(grpc.StatusCode.INTERNAL, triton.name)
        if method == "RepositoryIndex":
            response = service_pb2.RepositoryIndexResponse()
            for row in triton.rows:
                response.models.add(**row._asdict())
            return bytes(response.SerializeToString())
        return bytes(service_pb2.ModelReadyResponse(ready=triton.says).SerializeToString())

    async def whole(self, triton: Triton, call: HttpCall) -> HttpAnswer:
        """Of `Forwarder`."""
        if triton.fails:
            return HttpAnswer(500, [], triton.name.encode())
        if call.path.endswith(b"/index"):
            return HttpAnswer(200, [(b"from", triton.name.encode())], index_json(triton.rows))
        return HttpAnswer(200 if triton.says or call.method == "POST" else 400, [], b"")


def _over_grpc(verb: ControlVerb, tritons: list[Triton]) -> Outcome:
    fan_out: FanOut[Any, ControlCall, Outcome] = FanOut(tritons, GrpcCodec(cast("Any", OverBoth())))
    return asyncio.run(fan_out.answer(verb, ControlCall(verb.method)))


def _over_http(verb: ControlVerb, tritons: list[Triton]) -> HttpAnswer:
    fan_out: FanOut[Any, HttpCall, HttpAnswer] = FanOut(tritons, HttpCodec(cast("Any", OverBoth())))
    call = HttpCall(verb.routes[0][0], verb.routes[0][1].encode(), b"", [], b"", NO_ROUTE)
    return asyncio.run(fan_out.answer(verb, call))


_TRITONS = st.lists(
    st.builds(
        Triton,
        st.sampled_from("abc"),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.lists(st.sampled_from(ROWS), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=4,
)


@given(st.sampled_from(CONTROL_VERBS), _TRITONS)
def test_both_protocols_are_told_the_same(verb: ControlVerb, tritons: list[Triton]) -> None:
    over_grpc, over_http = _over_grpc(verb, tritons), _over_http(verb, tritons)
    if isinstance(over_grpc, RequestFailed):
        assert (over_http.status, over_http.body.decode()) == (500, over_grpc.details)
    elif verb.rule is AnswerRule.INDEX:
        assert json.loads(over_http.body) == json.loads(index_json(index_of(over_grpc)))
    elif verb.rule is AnswerRule.ANY:
        assert (over_http.status == 200) == service_pb2.ModelReadyResponse.FromString(over_grpc).ready
    else:
        assert over_http.status == 200


def test_one_that_says_yes_suffices_and_those_that_are_dead_are_not_asked() -> None:
    tritons = [Triton("a", fails=True), Triton("b", says=False), Triton("c")]
    assert _over_http(VERB["ModelReady"], tritons).status == 200
    tritons[2].alive = False
    assert _over_http(VERB["ModelReady"], tritons).status == 500, "the first answer"
    assert _over_http(VERB["ModelReady"], tritons[2:]).status == 200, "it may have come back"


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "TraceSetting", "SystemSharedMemoryRegister"])
def test_what_is_done_is_done_by_all_or_has_failed(method: str) -> None:
    tritons = [Triton("a"), Triton("b", fails=True), Triton("c", fails=True)]
    failed = _over_grpc(VERB[method], tritons)
    assert isinstance(failed, RequestFailed)
    assert failed.details == "b"
    assert _over_grpc(VERB[method], tritons[:1]) != failed


def test_an_index_is_of_those_that_answer() -> None:
    one, other = Triton("a", rows=ROWS[1:]), Triton("b", rows=(ROWS[0], ROWS[1]._replace(state="READY", reason="")))
    answer = _over_http(VERB["RepositoryIndex"], [Triton("c", fails=True), one, other])
    assert answer.headers == [(b"from", b"a")]
    assert json.loads(answer.body) == [
        {"name": "m", "version": "1", "state": "READY"},
        {"name": "m", "version": "2", "state": "READY"},
        {"name": "never loaded"},
    ]


def test_an_index_hides_partitions_and_shows_the_models_that_are_split() -> None:
    assert whole_index([ROWS, [IndexRow("m/head", "1", "READY")]], hidden={"m/head", "never loaded"}, split={"s"}) == [
        ROWS[0],
        ROWS[1],
        IndexRow("s", "1", "READY"),
    ]


@pytest.mark.parametrize("verb", CONTROL_VERBS, ids=lambda verb: verb.method)
def test_models_change_at_one_triton_after_the_other(verb: ControlVerb) -> None:
    under_way, most = 0, 0

    async def ask(_triton: Triton, _question: ControlCall) -> Outcome:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return b""

    fan_out: FanOut[Any, ControlCall, Outcome] = FanOut([Triton(name) for name in "abc"], GrpcCodec(cast("Any", None)))
    asyncio.run(fan_out.answer(verb, ControlCall(verb.method), ask))
    assert most == (1 if verb.changes_models else 3)
