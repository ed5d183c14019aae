"""Triton's HTTP routes, matched as in Triton: on the normalized path, without further decoding.

Each route belongs to an API, whose restrictions apply to it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from tidegate_proxy.configuration.apis import Api

DASHBOARD_PATH: Final = b"/dashboard"
_ABSOLUTE: Final = re.compile(rb"(?i:https?)://[^/?#@\\]+(?P<rest>[/?].*)?", re.DOTALL)
"""RFC 9112, section 3.2.2. User names before the host are refused (RFC 9110, section 4.2.4)."""
_ESCAPE: Final = re.compile(rb"%(..?)?", re.DOTALL)
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{2}")
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
"""RFC 3986, section 2.3: an escape of one of these means the same as the character itself."""
_SEPARATORS: Final = frozenset(b"/\\")
_FIRST_PRINTABLE, _DELETE = 0x20, 0x7F


def is_dashboard_path(path: bytes) -> bool:
    """Return whether a path belongs to the dashboard."""
    return path == DASHBOARD_PATH or path.startswith(DASHBOARD_PATH + b"/")


class NoNormalForm(ValueError):
    """Error: the request target is rejected; the message gives the cause."""


def normal_form(target: bytes) -> bytes:
    """Return the target in origin form: its path, with escapes of unreserved characters decoded, and its query.

    Access control, routes, screening and forwarder use it, and Triton gets it. Servers differ in their reading of dot
    segments, `//`, escapes and fragments: an ambiguous target has no normal form, and is rejected. Raises NoNormalForm.
    """
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is None:
            raise _refused(target, "is neither a path nor an http URL; begin it with '/'")
        rest = absolute["rest"] or b""
        target = rest if rest.startswith(b"/") else b"/" + rest
    if b"#" in target:
        raise _refused(target, "has a fragment; leave out '#' and what follows it")
    try:
        target.decode()
    except UnicodeDecodeError as error:
        raise _refused(target, "is not UTF-8; escape other bytes with '%'") from error
    path, mark, query = target.partition(b"?")
    if b"%" in path:
        path = _ESCAPE.sub(_escape_in_normal_form, path)
    if b"//" in path:
        raise _refused(target, "has an empty segment; write one '/' for '//'")
    if b"\\" in path:
        raise _refused(target, "has a backslash; write '/'")
    if b"/." in path and not {b".", b".."}.isdisjoint(path.split(b"/")):
        raise _refused(target, "has a dot segment; write the path that it leads to")
    return path + mark + query


def _escape_in_normal_form(escape: re.Match[bytes]) -> bytes:
    digits = escape[1] or b""
    if not _HEX.fullmatch(digits):
        raise _refused(escape.string, "has a '%' without two hexadecimal digits; write '%25' for '%'")
    (code,) = unquote_to_bytes(escape[0])
    if code in _UNRESERVED:
        return bytes((code,))
    if code in _SEPARATORS or code < _FIRST_PRINTABLE or code == _DELETE:
        raise _refused(escape.string, f"escapes a separator or control character ({escape[0].decode()}); leave it out")
    return b"%" + digits.upper()


def _refused(target: bytes, why: str) -> NoNormalForm:
    shown = target[:100].decode("latin1") + "..." * (len(target) > 100)
    return NoNormalForm(f"request target {shown!r} {why}")


INFER_PATH: Final = "/v2/models/{model}/infer"
INFERENCE_PATHS: Final = frozenset({INFER_PATH, "/v2/models/{model}/generate", "/v2/models/{model}/generate_stream"})

_OF_MODEL: Final[Mapping[bytes, Api]] = {
    b"": "metadata",
    b"infer": "inference",
    b"generate": "inference",
    b"generate_stream": "inference",
    b"ready": "health",
    b"config": "model-config",
    b"stats": "statistics",
    b"trace/setting": "trace",
}
"""The last part of `/v2/models/{model}[/versions/{version}]/...`."""
_PLAIN: Final[Mapping[str, Api]] = {
    "/v2": "metadata",
    "/v2/health/live": "health",
    "/v2/health/ready": "health",
    "/v2/models/stats": "statistics",
    "/v2/logging": "logging",
    "/v2/trace/setting": "trace",
}
"""Looked up before models: `/v2/models/stats` is no model's metadata."""

_INFER = re.compile(rb"/v2/models/([^/]+)(?:/versions/([0-9]+))?/infer")
_MODEL = re.compile(
    rb"/v2/models/([^/]+)(?:/versions/([0-9]+))?(?:/(%b))?" % b"|".join(action for action in _OF_MODEL if action)
)
_REPOSITORY = re.compile(rb"/v2/repository(?:/([^/]+))?/(?:(index)|models/([^/]+)/(load|unload))")
_SHARED_MEMORY = re.compile(rb"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)")


@dataclass(frozen=True, slots=True)
class Route:
    """Route of Triton's HTTP API."""

    pattern: str
    """Name of the route: variables in braces, without optional parts (versions, `/region/R`, repository name)."""
    api: Api
    model: str = ""
    version: str = ""
    region: str = ""
    repository: str = ""


NO_ROUTE: Final = Route("", "metadata")
"""Route for requests whose route does not matter."""


def match(path: bytes) -> Route | None:
    """Return the route of a normalized path, or None if Triton has none."""
    if found := _INFER.fullmatch(path):
        return Route(INFER_PATH, _OF_MODEL[b"infer"], _text(found[1]), _text(found[2]))
    if api := _PLAIN.get(plain := _text(path)):
        return Route(plain, api)
    return _match_parts(path)


def with_version(path: bytes, version: str) -> bytes:
    """Return the path of an inference that names no version with one."""
    model, _, action = path.rpartition(b"/")
    return b"%b/versions/%b/%b" % (model, version.encode(), action)


def _match_parts(path: bytes) -> Route | None:
    if found := _MODEL.fullmatch(path):
        model, version, action = found.groups()
        if action == b"trace/setting" and version:
            return None
        suffix = f"/{_text(action)}" if action else ""
        return Route("/v2/models/{model}" + suffix, _OF_MODEL[action or b""], _text(model), _text(version))
    if found := _SHARED_MEMORY.fullmatch(path):
        kind, region, action = found.groups()
        return Route(f"/v2/{_text(kind)}sharedmemory/{_text(action)}", "shared-memory", region=_text(region))
    if found := _REPOSITORY.fullmatch(path):
        repository, index, model, action = found.groups()
        pattern = "/v2/repository/index" if index else f"/v2/repository/models/{{model}}/{_text(action)}"
        return Route(pattern, "model-repository", model=_text(model), repository=_text(repository))
    return None


def _text(part: bytes | None) -> str:
    return part.decode() if part else ""
