"""The frame: complete, offline, safe with what people call things."""

from tests.pages import check_alone, document, downloads, headings, text_of, verdicts
from tidegate.report import (
    Chart,
    Colors,
    Download,
    LegendEntry,
    LineMark,
    Page,
    PageOrigin,
    PageSection,
    Plot,
    PlotAxis,
    PointMarks,
    RuleMark,
    chart_of,
    picture,
    table,
)

ODD = '<b>odd</b> & "so"'
ORIGIN = PageOrigin("1.2.3", "2026-01-31 12:00 UTC", f"tidegate simulate '{ODD}'")


def page(*parts: Chart | PageSection) -> str:
    data = Download("a.json", "application/json", '{"ü": 1}')
    return Page(
        ODD, [f"{ODD} wins.", "Then others."], ORIGIN, {"Seeds": "1, 2"}, {"name": ODD}, parts, [ODD], [data]
    ).html()


def test_all_that_a_reader_must_know_is_there_and_escaped() -> None:
    shown = page(PageSection(ODD, table(["policy", "seed"], [[ODD, 1]])))
    check_alone(shown, most=20_000)
    assert "<b>odd" not in shown
    assert verdicts(shown) == [f"{ODD} wins.", "Then others."]
    assert headings(shown) == [ODD]
    foot = text_of(shown[shown.index("<footer>") :])
    for fact in (ORIGIN.version, ORIGIN.date, ORIGIN.command, "1, 2", '"name": "<b>odd</b>'):
        assert fact in foot
    assert document(shown, "a.json") == {"ü": 1}
    assert list(downloads(shown)) == ["a.json"]


def test_only_a_page_that_can_be_zoomed_has_a_script() -> None:
    assert "<script>" not in page()
    assert "<script>" in page(Chart("t", '<div class="gantt"></div>'))


def test_models_and_contenders_have_colors_of_their_own_and_the_rest_share_one() -> None:
    names = [str(number) for number in range(30)]
    colors = Colors(names, names)
    models, contenders = ({of(name) for name in names} for of in (colors.of_model, colors.of_contender))
    assert models & contenders == {"other"}
    assert (len(models), len(contenders)) == (11, 9)


def test_a_picture_stands_alone() -> None:
    x, y = PlotAxis.over([0, 10], "requests/s"), PlotAxis.shares([0.5], "on time")
    plot = Plot(
        [RuleMark(0.99, ODD), LineMark([(0, 1), (10, 0.5)], "contender-0", ODD), PointMarks([(5, 0.9)], "contender-0")],
        x,
        y,
    )
    drawn = picture(ODD, [plot, plot], [LegendEntry(ODD, "contender-0", shape="line")])
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "<b>odd" not in drawn
    assert "prefers-color-scheme: dark" in drawn
    assert drawn.count("<circle") == 2
    assert chart_of("q", plot).html().count("<circle") == 1
