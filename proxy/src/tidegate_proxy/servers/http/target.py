"""The normal form of a request target: gate, routes, screens and forwarder see it, and a Triton is sent it.

Servers differ in how they read dot segments, `//`, escapes and fragments. A target that two of them could read as two
paths has no normal form, and is refused.
"""

import re
from typing import Final
from urllib.parse import unquote_to_bytes

_ABSOLUTE: Final = re.compile(rb"(?i:https?)://[^/?#@\\]+(?P<rest>[/?].*)?", re.DOTALL)
"""RFC 9112, section 3.2.2. User names before the host are refused (RFC 9110, section 4.2.4)."""
_ESCAPE: Final = re.compile(rb"%(..?)?", re.DOTALL)
_HEX: Final = re.compile(rb"[0-9A-Fa-f]{2}")
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
"""RFC 3986, section 2.3: an escape of one of these means the same as the character itself."""
_SEPARATORS: Final = frozenset(b"/\\")
_FIRST_PRINTABLE, _DELETE = 0x20, 0x7F


class NoNormalForm(ValueError):
    """A request target is refused; the message says why."""


def normal_form(target: bytes) -> bytes:
    """The target in origin form: its path, with escapes of unreserved characters decoded, and its query as it came.

    Raises NoNormalForm.
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
