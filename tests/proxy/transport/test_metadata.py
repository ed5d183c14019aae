"""Metadata, time limits and details as grpcio writes and reads them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.transport.http2.headers import headers_of, metadata_of, quoted, timeout_of, timeout_s_of, unquoted

_TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["token", "te-name", "tenant-id"]), _TEXT),
            st.tuples(st.sampled_from(["trace-bin", "x-bin"]), st.binary(max_size=30)),
        ),
        max_size=6,
    )
)
def test_metadata_comes_back(metadata: list[tuple[str, str | bytes]]) -> None:
    assert metadata_of(headers_of(metadata)) == metadata


def test_what_belongs_to_the_transport_is_no_metadata() -> None:
    headers = [(b":path", b"/a"), (b"te", b"trailers"), (b"grpc-timeout", b"1S"), (b"tenant", b"me"), (b"temp", b"1")]
    assert metadata_of(headers) == [("tenant", "me"), ("temp", "1")]


def test_several_binary_values_may_share_a_header() -> None:
    assert metadata_of([(b"x-bin", b"AQ,Ag==, Aw")]) == [("x-bin", b"\1"), ("x-bin", b"\2"), ("x-bin", b"\3")]


@given(st.floats(0, 3e9))
def test_a_time_limit_is_never_shortened(seconds: float) -> None:
    read = timeout_s_of(timeout_of(seconds))
    assert read >= seconds * (1 - 1e-9)
    assert math.isclose(read, seconds, rel_tol=0.05, abs_tol=1e-8)


@pytest.mark.parametrize("value", [b"", b"1", b"S", b"123456789S", b"-1S", b"1x"])
def test_what_is_no_time_limit_is_said(value: bytes) -> None:
    with pytest.raises(ValueError, match="grpc-timeout"):
        timeout_s_of(value)


@given(st.text(max_size=50).filter(lambda text: text.isprintable()))
def test_details_come_back(details: str) -> None:
    assert unquoted(quoted(details, 10_000)) == details


@given(st.text(max_size=100), st.integers(10, 100))
def test_long_details_are_cut_off_between_characters_of_the_wire(details: str, most_bytes: int) -> None:
    message = quoted(details, most_bytes)
    assert len(message) <= most_bytes
    if message.endswith(b" ...") and not details.endswith(" ..."):
        begin = unquoted(message.removesuffix(b" ...")).rstrip("\ufffd")  # of a character that needs several
        assert details.startswith(begin)
    else:
        assert unquoted(message) == details
