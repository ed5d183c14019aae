"""Compressed bodies within their limit; `test_infer` compares what is compressed with a real Triton's."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.envelope import NotSchedulable
from tidegate_proxy.http.compression import TooLarge, compress, decompress


@given(st.lists(st.binary()), st.sampled_from([b"gzip", b"deflate"]))
def test_what_is_compressed_is_decompressed(pieces: list[bytes], encoding: bytes) -> None:
    whole = b"".join(pieces)
    packed = compress(list(pieces), encoding)
    assert decompress(packed, None) == decompress(packed, len(whole)) == whole


def test_decompression_ends_at_the_limit() -> None:
    packed = gzip.compress(bytes(10_000))
    assert len(decompress(packed, 10_000)) == 10_000
    with pytest.raises(TooLarge):
        decompress(packed, 9_999)


@pytest.mark.parametrize("body", [b"", b"plain", gzip.compress(b"cut", mtime=0)[:-1], zlib.compress(b"more") + b"x"])
def test_what_is_not_one_whole_stream_is_left_to_triton(body: bytes) -> None:
    with pytest.raises(NotSchedulable):
        decompress(body, None)
