"""Triton's routes, matched as Triton matches them: on the path as it is on the wire, of which nothing is decoded."""

import re
from dataclasses import dataclass
from typing import Final

INFER: Final = "/v2/models/{model}/infer"
INFERENCES: Final = frozenset({INFER, "/v2/models/{model}/generate", "/v2/models/{model}/generate_stream"})

_INFER = re.compile(rb"/v2/models/([^/]+)(?:/versions/([0-9]+))?/infer")
_MODEL = re.compile(
    rb"/v2/models/([^/]+)(?:/versions/([0-9]+))?(?:/(generate|generate_stream|ready|config|stats|trace/setting))?"
)
_REPOSITORY = re.compile(rb"/v2/repository(?:/([^/]+))?/(?:(index)|models/([^/]+)/(load|unload))")
_SHARED_MEMORY = re.compile(rb"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)")
_PLAIN = frozenset(
    {"/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/logging", "/v2/trace/setting"}
)


@dataclass(frozen=True, slots=True)
class Route:
    """A path of Triton's."""

    pattern: str
    """The route's name: what varies in the path stands in braces, what is optional is left out (versions, `/region/R`,
    the repository's name)."""
    model: str = ""
    version: str = ""
    region: str = ""
    repository: str = ""


NONE: Final = Route("")
"""Where the route does not matter."""


def match(path: bytes) -> Route | None:
    """The route of a raw path; None where Triton knows none."""
    if found := _INFER.fullmatch(path):
        return Route(INFER, _text(found[1]), _text(found[2]))
    if (plain := _text(path)) in _PLAIN:
        return Route(plain)
    return _match_parts(path)


def _match_parts(path: bytes) -> Route | None:
    if found := _MODEL.fullmatch(path):
        model, version, action = found.groups()
        if action == b"trace/setting" and version:
            return None
        suffix = f"/{_text(action)}" if action else ""
        return Route("/v2/models/{model}" + suffix, _text(model), _text(version))
    if found := _SHARED_MEMORY.fullmatch(path):
        kind, region, action = found.groups()
        return Route(f"/v2/{_text(kind)}sharedmemory/{_text(action)}", region=_text(region))
    if found := _REPOSITORY.fullmatch(path):
        repository, index, model, action = found.groups()
        pattern = "/v2/repository/index" if index else f"/v2/repository/models/{{model}}/{_text(action)}"
        return Route(pattern, model=_text(model), repository=_text(repository))
    return None


def _text(part: bytes | None) -> str:
    # A name that is no UTF-8 belongs to no model; Triton gets the path itself, byte for byte.
    return part.decode(errors="replace") if part else ""
