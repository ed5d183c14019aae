"""Flame graphs of the hop: what is drawn, and whose the time is."""

from xml.etree import ElementTree

import pytest

from bench.flame_graphs import PARTS, part_of, readable, shares_of
from bench.flame_svg import flame_svg

LOOP = ("main (tidegate/cli.py:54)", "uv_run (core.c:464)")
SEND = (*LOOP, "Py_DECREF (object.h:537)", "Connection.flush (tidegate_proxy/transport/http2/connection.py:9)")
SAMPLES = [
    ((*SEND, "write (libc.so.6)"), 40),
    ((*SEND, "nghttp2_session_send (ngh2/_core.so)", "0x7ff0 (libc.so.6)"), 10),
    ((*SEND, "dict_get (libpython3.11.so)"), 5),
    (
        (
            *LOOP,
            "Engine.handle (tidegate/engine/kernel/engine.py:1)",
            "Engine.handle (tidegate/engine/kernel/engine.py:7)",
        ),
        25,
    ),
    ((*LOOP, "A.on_event (tidegate_baselines/fifs.py:2)", "gc_collect_main (libpython3.11.so)"), 19),
    (("_beat (threading.py:3)",), 1),
]


def test_time_is_the_part_s_whose_frame_is_innermost() -> None:
    shares = shares_of(readable(SAMPLES))
    assert set(shares) == {*PARTS, "other"}
    assert {part: share for part, share in shares.items() if share} == pytest.approx(
        {
            "kernel": 0.4,
            "libnghttp2": 0.1,
            "transport/http2": 0.05,  # what the interpreter does is done for its caller
            "engine": 0.25,
            "garbage collector": 0.19,
            "other": 0.01,
        }
    )


def test_stacks_begin_with_the_event_loop_and_say_each_frame_once() -> None:
    assert readable(SAMPLES)[("uv_run (core.c)", "Engine.handle (tidegate/engine/kernel/engine.py)")] == 25


def test_each_frame_is_as_wide_as_its_share_and_stands_on_its_caller() -> None:
    drawn = ElementTree.fromstring(flame_svg(readable(SAMPLES), "<what>", part_of, PARTS))
    boxes = {}
    for group in drawn.iter("{http://www.w3.org/2000/svg}g"):
        title, box = group[0], group[1]
        boxes[title.text] = {name: float(box.attrib[name]) for name in ("x", "y", "width")}
    loop = boxes["uv_run (core.c): 99.0%"]
    flush = boxes["Connection.flush (tidegate_proxy/transport/http2/connection.py): 55.0%"]
    engine = boxes["Engine.handle (tidegate/engine/kernel/engine.py): 25.0%"]
    assert flush["y"] == engine["y"] < loop["y"]
    assert flush["width"] / loop["width"] == pytest.approx(55 / 99, rel=0.01)
    callees = sorted((box["x"], box["width"]) for box in boxes.values() if box["y"] == flush["y"])
    assert [x for x, _ in callees[1:]] == pytest.approx([x + width for x, width in callees[:-1]], abs=0.2)


def test_a_frame_that_nobody_could_see_is_left_out() -> None:
    graph = flame_svg({("large",): 9999, ("tiny",): 1}, "what", part_of, PARTS)
    assert "large: 100.0%" in graph
    assert "tiny" not in graph
