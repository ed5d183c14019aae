"""Routes that concern all Tritons, answered as if they were one."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

from tidegate_proxy.http.forward import Forwarder
from tidegate_proxy.http.infer_response import error
from tidegate_proxy.http.interface import Answer, Call, Handler, Triton

_ANY: Final = (
    ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"),
    ("GET", "/v2/models/{model}/ready"),
)
"""Fine as soon as one of them says so."""
_EVERY: Final = (
    ("POST", "/v2/repository/models/{model}/load"),
    ("POST", "/v2/repository/models/{model}/unload"),
    ("POST", "/v2/systemsharedmemory/register"),
    ("POST", "/v2/systemsharedmemory/unregister"),
    ("POST", "/v2/cudasharedmemory/register"),
    ("POST", "/v2/cudasharedmemory/unregister"),
)
"""Done by all of them; the first error, in their order, is the answer."""


def merged_handlers(tritons: Sequence[Triton], forwarder: Forwarder) -> dict[tuple[str, str], Handler]:
    """Handlers that ask every living Triton and make one answer of theirs."""

    async def ask_all(call: Call) -> list[Answer]:
        living = [triton for triton in tritons if triton.alive]
        if not living:
            return [error(503, "none of the Tritons can be reached")]
        return list(await asyncio.gather(*(forwarder.whole(triton, call) for triton in living)))

    async def one_suffices(call: Call) -> Answer:
        answers = await ask_all(call)
        return next((answer for answer in answers if answer.status == 200), answers[0])

    async def all_must(call: Call) -> Answer:
        answers = await ask_all(call)
        return next((answer for answer in answers if answer.status != 200), answers[0])

    async def index(call: Call) -> Answer:
        answers = await ask_all(call)
        failed = next((answer for answer in answers if answer.status != 200), None)
        return failed or Answer(200, answers[0].headers, _union([json.loads(each.body) for each in answers]))

    return {
        **dict.fromkeys(_ANY, one_suffices),
        **dict.fromkeys(_EVERY, all_must),
        ("POST", "/v2/repository/index"): index,
    }


def _union(indexes: list[list[dict[str, Any]]]) -> bytes:
    """Every model and version once, in the order of names as Triton has it; ready where it is ready somewhere."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in (row for rows_of_one in indexes for row in rows_of_one):
        key = (row["name"], row.get("version", ""))
        if key not in rows or row.get("state") == "READY":
            rows[key] = row
    ordered = [rows[key] for key in sorted(rows)]
    return json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode()
