"""Pages of the text format: taken apart, put together, and still what they were."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tidegate_proxy.observability.exposition import MetricFamily, MetricSample, escaped, families_of, merged, sample

PAGE = """\
# HELP nv_inference_count Number of inferences
# TYPE nv_inference_count counter
nv_inference_count{model="a",version="1"} 3
nv_inference_count{model="b, \\"c\\" } 7",version="1"} 1e+03 1700000000000
# TYPE first_response_ms histogram
first_response_ms_bucket{le="100"} 1
first_response_ms_bucket{le="+Inf"} 2
first_response_ms_sum 250
first_response_ms_count 2
lonely NaN
"""


def _series(page: str) -> list[tuple[str, str, dict[str, str], str]]:
    return [
        (family.name, each.name, each.labels, str(each.value))
        for family in text_string_to_metric_families(page)
        for each in family.samples
    ]


def _text(families: list[MetricFamily]) -> str:
    return "".join(map(str, families))


def test_a_page_survives() -> None:
    families = families_of(PAGE)
    assert [(family.name, family.type, len(family.samples)) for family in families] == [
        ("nv_inference_count", "counter", 2),
        ("first_response_ms", "histogram", 4),
        ("lonely", "untyped", 1),
    ]
    assert _series(_text(families)) == _series(PAGE)


def test_what_is_no_sample_is_left_out() -> None:
    page = 'a 1\nb{x="1} 2\nc{x=1} 3\nd four\n<html>\n# a remark\n# TYPE empty gauge\ne{} 5\n'
    assert [str(each) for family in families_of(page) for each in family.samples] == ["a 1", "e 5"]


def test_a_label_that_is_there_already_gives_way() -> None:
    labeled = MetricSample("a", (("triton", "x"),), "1").labeled("triton", "h:1")
    assert str(labeled) == 'a{exported_triton="x",triton="h:1"} 1'


def test_one_family_per_name_and_no_series_twice() -> None:
    first = MetricFamily("a", "gauge", "First", [sample("a", {"x": "1", "y": "2"}, 1)])
    other = MetricFamily("a", "gauge", "Other", [sample("a", {"y": "2", "x": "1"}, 9), sample("a", {"x": "2"}, 3)])
    [whole] = merged([first, other])
    assert str(whole) == '# HELP a First\n# TYPE a gauge\na{x="1",y="2"} 1\na{x="2"} 3\n'


_NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
_LABELS = st.dictionaries(st.sampled_from(["model", "version", "x"]), st.text(max_size=8))


@given(
    st.dictionaries(_NAMES, st.lists(_LABELS, min_size=1, max_size=4), max_size=4),
    st.lists(st.text(alphabet='ab:1\\"\n', max_size=5), unique=True, min_size=1, max_size=3),
)
def test_pages_of_several_servers_become_one(contents: dict[str, list[dict[str, str]]], servers: list[str]) -> None:
    page = _text(
        [MetricFamily(name, "gauge", "H", [sample(name, each, 1) for each in many]) for name, many in contents.items()]
    )
    taken_apart = families_of(page)
    whole = merged(
        MetricFamily(family.name, family.type, family.help, [each.labeled("triton", server) for each in family.samples])
        for server in servers
        for family in taken_apart
    )
    found = [(name, frozenset(labels.items())) for _, name, labels, _ in _series(_text(whole))]
    wanted = {
        (name, frozenset({**labels, "triton": server}.items()))
        for name, many in contents.items()
        for labels in many
        for server in servers
    }
    assert len(found) == len(wanted)
    assert set(found) == wanted
    assert len({family.name for family in whole}) == len(whole)


@given(st.text())
def test_whatever_a_server_says_what_is_kept_is_a_page(text: str) -> None:
    list(text_string_to_metric_families(_text(families_of(text))))


def test_escapes() -> None:
    assert escaped('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
