"""Compressed bodies within their limit; `test_infer` compares what is compressed with a real Triton's."""

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.messages.request import NotSchedulable
from tidegate_proxy.servers.http.compression import BodyDecompression, TooLarge, compress, decompress


@given(st.lists(st.binary()), st.sampled_from([b"gzip", b"deflate"]))
def test_what_is_compressed_is_decompressed(pieces: list[bytes], encoding: bytes) -> None:
    whole = b"".join(pieces)
    packed = compress(list(pieces), encoding)
    held: list[int] = []
    assert decompress(packed, None, held.append) == decompress(packed, len(whole), held.append) == whole
    assert sum(held) == 2 * len(whole)


def test_decompression_ends_at_the_limit() -> None:
    packed = gzip.compress(bytes(10_000))
    assert len(decompress(packed, 10_000, _taken)) == 10_000
    with pytest.raises(TooLarge):
        decompress(packed, 9_999, _taken)


def test_no_more_is_inflated_than_may_be_held() -> None:
    """Half a GiB, of which the second piece is one too many."""
    packed = gzip.compress(bytes(512 << 20), compresslevel=1)
    held: list[int] = []

    def hold(size: int) -> None:
        held.append(size)
        if len(held) == 2:
            raise MemoryError

    tracemalloc.start()
    with pytest.raises(MemoryError):
        decompress(packed, None, hold)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(held) <= 1 << 20
    assert peak_bytes < 8 << 20


@given(st.binary(max_size=2000), st.sampled_from([b"gzip", b"deflate"]), st.data())
def test_a_body_may_be_inflated_while_it_comes(whole: bytes, encoding: bytes, data: st.DataObject) -> None:
    packed = compress([whole], encoding)
    cut = data.draw(st.integers(0, len(packed)))
    inflation = BodyDecompression(len(whole))
    assert b"".join([*inflation.pieces(packed[:cut]), *inflation.pieces(packed[cut:])]) == whole
    assert inflation.is_whole


@pytest.mark.parametrize("body", [b"", b"plain", gzip.compress(b"cut", mtime=0)[:-1], zlib.compress(b"more") + b"x"])
def test_what_is_not_one_whole_stream_is_left_to_triton(body: bytes) -> None:
    with pytest.raises(NotSchedulable):
        decompress(body, None, _taken)


def _taken(_size: int) -> None:
    """Whatever it is."""
