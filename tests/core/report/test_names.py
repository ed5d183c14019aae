"""Names where there is little room: what distinguishes them is at their end."""

from tests.pages import text_of
from tidegate.report.heat_map import HeatCell, heat_map
from tidegate.report.number_format import NAME_END, named, shortened

LONG = "team-vision-production-resnet50-fp16-v2"


def test_the_end_of_a_long_name_is_never_shortened() -> None:
    markup = named(LONG)
    assert markup.endswith(f"<span>{LONG[-NAME_END:]}</span></span>"), "style.css shortens the first part alone"
    assert text_of(markup) == LONG
    assert f'title="{LONG}"' in markup
    assert named("embed").count("<span>") == 1
    assert "<i>" not in named("<i>" * 20)


def test_a_name_in_a_picture_is_cut_in_its_middle() -> None:
    assert shortened("gpu-1", 18) == "gpu-1"
    cut, other = shortened(LONG, 18), shortened(LONG.replace("v2", "v1"), 18)
    assert len(cut) == len(other) == 18
    assert cut != other
    assert cut[0] == "t"


def test_a_heat_map_escapes_what_it_is_given() -> None:
    drawn = heat_map("<i>a", ["<i>1"], "<i>b", ["<i>2"], [[HeatCell("<i>x", 2.0, "<i>y", is_kept=True)]], "<i>c")
    assert "<i>" not in drawn
    assert "100%" in drawn, "what lies beyond the scale has the color of its end"
    assert text_of(heat_map("a", ["1"], "b", ["2"], [[None]], "c")).endswith("-")
