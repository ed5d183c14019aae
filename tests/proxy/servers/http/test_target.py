"""Request targets: one normal form for all who read them, and 400 for those that have none."""

import re
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.proxy.servers.http.by_hand import NOT_FOUND, Upstream, exchange
from tidegate_proxy.access.gate import HttpRefusal, http_refusal
from tidegate_proxy.configuration.apis import Api
from tidegate_proxy.servers.http.routes import NoNormalForm, match, normal_form

INDEX = b"/v2/repository/index"


@pytest.mark.parametrize(
    ("target", "form"),
    [
        *((path, path) for path in (b"/", b"/v2", INDEX, b"/v2/x/", b"/v2/a;b", b"/v2/a%20b", b"/v2/...", b"/v2/a.b")),
        (b"http://x/v2/repository/index", INDEX),
        (b"HTTPS://[::1]:8000/v2/repository/index?a=b", INDEX + b"?a=b"),
        (b"http://x", b"/"),
        (b"http://x?a", b"/?a"),
        (b"/v2/%72epository/%69nde%78", INDEX),
        (b"/v2/%7e%2D%5f", b"/v2/~-_"),
        (b"/v2/%c3%a9%3f%25", b"/v2/%C3%A9%3F%25"),
        (b"/v2/%2569ndex", b"/v2/%2569ndex"),
        (b"/v2/caf\xc3\xa9", b"/v2/caf\xc3\xa9"),
        (b"/v2?a=%2e%2e/..//%zz\\", b"/v2?a=%2e%2e/..//%zz\\"),
    ],
)
def test_the_normal_form(target: bytes, form: bytes) -> None:
    assert normal_form(target) == form
    assert normal_form(form) == form


NONE = {
    "a fragment": [b"/v2#", INDEX + b"?a#b", INDEX + b"#b", b"http://x/v2/repository/index?a#b", b"/#/v2"],
    "an empty segment": [b"//x/v2/repository/index", b"/v2//repository/index", b"http://x//v2", b"//"],
    "a dot segment": [b"/v2/./repository/index", b"/v2/x/../repository/index", b"/..", b"/v2/%2e%2E/v2", b"/v2/.%2e"],
    "escapes a separator": [b"/v2/repository%2findex", b"/v2%5Crepository", b"/v2/a%2F%2e%2e%2Fb"],
    "or control character": [b"/v2/a%00", b"/v2/a%0d%0aX:%20y", b"/v2/%7f"],
    "a backslash": [b"/v2\\repository", b"/\\x/v2"],
    "without two hexadecimal digits": [b"/v2/%", b"/v2/%4", b"/v2/%zz", b"/v2/%+1"],
    "neither a path nor": [
        b"*",
        b"",
        b"x:80",
        b"v2",
        b"?a",
        b"ftp://x/v2",
        b"http:///v2",
        b"http://a@x/v2",
        b"http:/v2",
    ],
    "not UTF-8": [b"/v2/\xff", b"/v2?\xff"],
}


@pytest.mark.parametrize(("why", "target"), [(why, target) for why, targets in NONE.items() for target in targets])
def test_what_has_no_normal_form(why: str, target: bytes) -> None:
    with pytest.raises(NoNormalForm, match=why):
        normal_form(target)


@given(st.lists(st.sampled_from([*b"/.%2eFf5cC?#;\\:a", *b"http"]), max_size=30).map(bytes))
def test_other_readings_of_a_normal_form_lead_to_the_same_route(target: bytes) -> None:
    """What a server makes of it that decodes escapes, removes dot segments and merges slashes."""
    try:
        path = normal_form(b"/v2/" + target).partition(b"?")[0]
    except NoNormalForm:
        return
    read = urllib.parse.unquote_to_bytes(path).partition(b"?")[0].partition(b"#")[0]
    segments = read.split(b"/")
    assert b"." not in segments
    assert b".." not in segments
    assert b"" not in segments[1:-1]
    assert read.count(b"/") == path.count(b"/")


def closed(api: Api | None, _headers: object) -> HttpRefusal | None:
    """A guard that closes the repository."""
    return http_refusal(403, "This API is closed") if api == "model-repository" else None


def test_a_closed_api_is_closed_however_its_route_is_written(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    upstream = start_upstream(NOT_FOUND)
    http_server = start_http_server([upstream.http_url], None, {}.get, guard=closed)
    targets = [target for targets in NONE.values() for target in targets if target]
    targets += [INDEX, b"http://x/v2/repository/index", b"/v2/repository/%69ndex", b"HTTP://x/v2/repository/index?#"]
    for target in targets:
        request = b"POST " + target + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
        statuses = re.findall(rb"HTTP/1.1 (\d+)", exchange(http_server, request))
        assert statuses in ([b"403"], [b"400"], []), target  # some are none to the parser, either: it is closed
    assert not upstream.received


def test_a_refused_target_is_answered_in_its_turn_and_the_connection_goes_on(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    http_server = start_http_server([start_upstream(NOT_FOUND).http_url], None, {}.get)
    head = b" HTTP/1.1\r\nHost: x\r\n"
    received = exchange(
        http_server,
        b"GET /v2/nope" + head + b"\r\n" + b"POST /v2//x" + head + b"Content-Length: 3\r\n\r\nabc",
        b"GET /v2/./x" + head + b"Connection: close\r\n\r\n",
    )
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"404", b"400", b"400"]
    assert b"{\"error\":\"request target '/v2//x' has an empty segment; write one '/' for '//'\"}" in received


def test_a_triton_is_sent_the_normal_form(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    upstream = start_upstream(NOT_FOUND)
    http_server = start_http_server([upstream.http_url], None, {}.get)
    exchange(http_server, b"GET http://elsewhere/v2/%6eope?a=%41 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert upstream.received.startswith(b"GET /v2/nope?a=%41 HTTP/1.1\r\n")


def test_headers_that_two_servers_could_read_as_two_requests_reach_no_triton(
    start_http_server: Callable[..., Any], start_upstream: Callable[[bytes], Upstream]
) -> None:
    upstream = start_upstream(NOT_FOUND)
    http_server = start_http_server([upstream.http_url], None, {}.get)
    for lines in (
        b"Content-Length: 2\r\n folded",
        b"X: a\r\n b\r\nContent-Length: 2",
        b"Content-Length : 2",
        b"Content-Length: 2\r\nContent-Length: 3",
        b"Transfer-Encoding: x, chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding: chunked, chunked",
    ):
        received = exchange(http_server, b"POST /v2/nope HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n\r\n{}")
        assert received.count(b"HTTP/1.1") <= 1, lines
        assert b"\nHTTP/1.1 200" not in received
    assert not upstream.received
    assert match(b"/v2/nope") is None
