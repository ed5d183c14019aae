"""HTTP's codec of what concerns every Triton: the client's call goes to each as it is."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tidegate_proxy.servers.http.forward import Forwarder
from tidegate_proxy.servers.http.interface import Answer, Call, Handler, Triton
from tidegate_proxy.service.fan_out import (
    VERBS,
    AnyTriton,
    Changing,
    Codec,
    FanOut,
    IndexRow,
    Question,
    Verb,
    unnoticed,
)

_OK = 200


class HttpAnswers(Codec[AnyTriton, Question, Answer]):
    """Reads what is said over HTTP."""

    def succeeded(self, answer: Answer) -> bool:
        """Whether it has done what it was asked."""
        return answer.status == _OK

    def says_yes(self, answer: Answer) -> bool:
        """Whether it is ready, or lives: else it answers with an error."""
        return answer.status == _OK

    def index_in(self, answer: Answer) -> Iterable[IndexRow]:
        """The index that it has given."""
        rows = json.loads(answer.body)
        return [IndexRow(**{name: row[name] for name in IndexRow._fields if name in row}) for row in rows]

    def index_as(self, index: Sequence[IndexRow], like: Answer) -> Answer:
        """An index as an answer, with the headers of another one."""
        return replace(like, body=index_json(index))


class HttpCodec(HttpAnswers[Triton, Call]):
    """Asks a Triton on its HTTP port."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    async def ask(self, triton: Triton, question: Call) -> Answer:
        """What it says."""
        return await self._forwarder.whole(triton, question)


def index_json(index: Iterable[IndexRow]) -> bytes:
    """The index as Triton's HTTP endpoint prints it."""
    rows = [{name: value for name, value in row._asdict().items() if value} for row in index]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()


def merged_handlers(
    tritons: Sequence[Triton], forwarder: Forwarder, changing: Changing[Call, Any] = unnoticed
) -> dict[tuple[str, str], Handler]:
    """Handlers that ask every living Triton and make one answer of theirs, by HTTP method and pattern."""
    fan_out: FanOut[Triton, Call, Answer] = FanOut(tritons, HttpCodec(forwarder), changing=changing)

    def handler(verb: Verb) -> Handler:
        return partial(fan_out.answer, verb)

    return {route: handler(verb) for verb in VERBS for route in verb.routes}
