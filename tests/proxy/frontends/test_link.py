"""Frames over a link: whatever the pieces in which bytes arrive, they come out as they went in."""

import grpc
from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.frontends import frames
from tidegate_proxy.frontends.frames import FRAME_HEADER, FrameType
from tidegate_proxy.frontends.link import Link

_KINDS = st.sampled_from(FrameType)
_FRAMES = st.lists(st.tuples(_KINDS, st.integers(0, 2**32 - 1), st.binary(max_size=200)))
_TEXT = st.text(max_size=30)
_METADATA = st.lists(st.tuples(_TEXT, st.one_of(_TEXT, st.binary(max_size=30))), max_size=5)


class _End:
    """Keeps what comes."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int, bytes]] = []

    def take(self, kind: int, number: int, payload: bytes) -> None:
        self.taken.append((kind, number, payload))

    def lost(self) -> None:
        """Of LinkEnd."""


class _Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.written += b"".join(parts)


def _link() -> tuple[Link, _End, _Transport]:
    end, transport = _End(), _Transport()
    link = Link(lambda _link: end)
    link.connection_made(transport)  # type: ignore[arg-type]
    return link, end, transport


def _sent(*given: tuple[FrameType, int, bytes]) -> bytes:
    link, _, transport = _link()
    for frame in given:
        link.send(*frame)
    return transport.written


@given(given_frames=_FRAMES, cuts=st.lists(st.integers(1, 50), max_size=200))
def test_frames_come_out_as_they_went_in(given_frames: list[tuple[FrameType, int, bytes]], cuts: list[int]) -> None:
    data = _sent(*given_frames)
    link, end, _ = _link()
    for cut in cuts:
        link.data_received(data[:cut])
        data = data[cut:]
    link.data_received(data)
    assert end.taken == given_frames


@given(sizes=st.lists(st.integers(0, 300_000), min_size=1, max_size=4), piece=st.integers(1_000, 200_000))
def test_large_frames_come_out_whole(sizes: list[int], piece: int) -> None:
    given_frames = [(FrameType.MESSAGE, number, bytes([number]) * size) for number, size in enumerate(sizes)]
    data = _sent(*given_frames)
    link, end, _ = _link()
    for at in range(0, len(data), piece):
        link.data_received(data[at : at + piece])
    assert end.taken == given_frames


def test_a_frame_is_nine_bytes_and_what_it_carries() -> None:
    assert len(_sent((FrameType.ANSWER, 7, b"abc"))) == FRAME_HEADER.size + 3 == 12


@given(
    method=_TEXT,
    peer=_TEXT,
    metadata=_METADATA,
    remaining_s=st.none() | st.floats(0, 1e9),
    message=st.none() | st.binary(max_size=50),
)
def test_calls_come_out_as_they_went_in(
    method: str, peer: str, metadata: list[tuple[str, str | bytes]], remaining_s: float | None, message: bytes | None
) -> None:
    payload = frames.call(method, peer, metadata, remaining_s, message)
    openings = frames.CallOpenings()
    for _ in range(2):  # the second time it is known
        opening, time_left_s, first = openings.read(payload)
        assert (opening.method, opening.peer, list(opening.metadata)) == (method, peer, metadata)
        assert time_left_s == remaining_s
        assert first == message


@given(code=st.sampled_from(grpc.StatusCode), details=st.text())
def test_statuses_come_out_as_they_went_in(code: grpc.StatusCode, details: str) -> None:
    assert frames.status_of(frames.status(code.value[0], details, "deadline_unreachable")) == (
        code.value[0],
        details,
        "deadline_unreachable",
    )


def test_openings_that_are_all_different_are_not_kept_for_ever() -> None:
    openings = frames.CallOpenings()
    for number in range(5_000):
        openings.read(frames.call("m", f"peer{number}", (), None, b""))
    assert len(openings) < 2_000
