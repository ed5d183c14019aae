"""Requests that come, in as few words as a story needs."""

from dataclasses import dataclass

from tidegate.api import NEVER_NS, Request, RequestArrived


@dataclass(frozen=True)
class Arrivals:
    """What the requests of a test file have in common; called, it makes one of them arrive."""

    model: str = "m"
    slo_ns: int = NEVER_NS
    """How long after its arrival a request is due whose test does not say when."""
    unit_ns: int = 1
    """What the instants of arrivals are counted in."""

    def __call__(
        self,
        request_id: int,
        at: float = 0,
        model: str | None = None,
        *,
        rows: int = 1,
        due_ns: int | None = None,
        key: str = "",
        client: str = "",
    ) -> RequestArrived:
        """`at`: in the file's unit. `due_ns`: when it is due, not after how long."""
        now_ns = round(at * self.unit_ns)
        if due_ns is None:
            due_ns = min(NEVER_NS, now_ns + self.slo_ns)
        request = Request(request_id, model or self.model, rows, now_ns, due_ns, merge_key=key, client=client)
        return RequestArrived(now_ns, request)
