"""Dashboard page as one document: markup, style and script in one file that needs no network."""

from base64 import b64encode
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from tidegate_proxy.servers.http.interface import Headers


def _part(name: str, package: str = __package__) -> str:
    return files(package).joinpath(name).read_text("utf-8")


_STYLE: Final = _part("style.css", "tidegate.report") + _part("uplot/uPlot.min.css") + _part("page.css")
"""The colors and tables of reports, the chart library's style, and what only this page has."""
_SCRIPTS: Final = (
    "uplot/uPlot.min.js",
    "tables.js",
    "rollout.js",
    "charts.js",
    "drawing.js",
    "timeline.js",
    "page.js",
)
_SCRIPT: Final = "".join(map(_part, _SCRIPTS))


def _digest(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()


CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'none'; script-src 'sha256-{_digest(_SCRIPT)}'; style-src 'sha256-{_digest(_STYLE)}'; "
    "connect-src 'self'; img-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy of the page: only this script and this server.

Names that clients choose are text, never markup; if one became markup, nothing in it would run.
"""
PAGE_HEADERS: Final[Headers] = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


@lru_cache(maxsize=1)
def document() -> bytes:
    """Return the page."""
    return _part("page.html").replace("/*STYLE*/", _STYLE).replace("/*SCRIPT*/", _SCRIPT).encode()
