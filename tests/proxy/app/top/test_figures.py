"""What `tidegate top` makes of two readings of a metrics page."""

from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.app.top.figures import figures_between, quantile_ms
from tidegate_proxy.app.top.page import NotTidegate, Page, page_of

BUILD = 'tidegate_build_info{version="1.2",policy="symphony"} 1\n'


def _page(at_s: float, in_time: int, late: int = 0, cancelled: int = 0, busy_s: float = 0.0, waiting: int = 0) -> Page:
    counts = {"in_time": in_time, "late": late, "cancelled": cancelled}
    lines = [
        f'tidegate_requests_total{{model="m",outcome="{outcome}",reason=""}} {count}'
        for outcome, count in counts.items()
    ]
    lines += [
        f'tidegate_refused_total{{model="m",reason="requests"}} {late}',
        f'tidegate_queue_length{{model="m"}} {waiting}',
        f'tidegate_worker_busy_seconds_total{{worker="w"}} {busy_s}',
        'tidegate_worker_up{worker="w"} 1',
        'tidegate_connections{protocol="grpc"} 3',
        'tidegate_connections{protocol="metrics"} 1',
        f'tidegate_batch_rows_sum{{model="m"}} {4 * in_time}',
        f'tidegate_batch_rows_count{{model="m"}} {in_time}',
    ]
    return page_of(BUILD + "\n".join(lines) + "\n", at_s)


def test_figures_are_those_of_the_interval() -> None:
    figures = figures_between(_page(10, 100, busy_s=5), _page(12, 190, late=5, cancelled=50, busy_s=6, waiting=7))
    (model,), (worker,) = figures.models, figures.workers
    assert (figures.policy, figures.version, figures.connections) == ("symphony", "1.2", 3)
    assert model.rate_rps == (90 + 5 + 5 + 50) / 2
    assert model.in_time == 0.9, "those cancelled do not count"
    assert (model.late, model.dropped, model.failed) == (0.05, 0.05, 0.0)
    assert (model.waiting, model.mean_rows) == (7, 4.0)
    assert (worker.name, worker.is_up, worker.busy) == ("w", True, 0.5)


def test_nothing_is_made_up_of_a_quiet_model() -> None:
    (model,) = figures_between(_page(10, 100), _page(11, 100)).models
    assert model.rate_rps == 0
    assert (model.in_time, model.p50_ms, model.mean_rows) == (None, None, None)


def test_a_restart_between_two_readings_counts_from_zero() -> None:
    (model,) = figures_between(_page(10, 1000), _page(11, 30)).models
    assert model.rate_rps == 30


@given(st.lists(st.floats(0.001, 9.0), min_size=1, max_size=60), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_value_that_it_stands_for(seconds: list[float], q: float) -> None:
    bounds = [0.01, 0.1, 0.5, 1.0, 10.0, inf]
    within = {bound: float(sum(value <= bound for value in seconds)) for bound in bounds}
    told_ms = quantile_ms(within, q)
    assert told_ms is not None
    counts = Counter(next(bound for bound in bounds if value <= bound) for value in seconds)
    wanted, seen = q * len(seconds), 0
    for low, bound in zip([0.0, *bounds], bounds, strict=False):
        seen += counts[bound]
        if seen >= wanted:
            assert 1000 * low <= told_ms <= 1000 * bound
            return
    raise AssertionError("the last bucket holds all")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("up 1\n", "no metrics page of Tidegate's"),
        ("{]\n", "no metrics page"),
        ("tidegate_live 0\n", "says that it does not live"),
    ],
)
def test_other_pages_are_told_from_tidegates(text: str, words: str) -> None:
    with pytest.raises(NotTidegate, match=words):
        page_of(text, 0.0)
