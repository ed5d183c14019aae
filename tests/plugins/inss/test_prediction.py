"""What plans are foretold to do is what the interference model and Equation 3 say."""

from itertools import product
from math import exp, inf
from random import Random

import pytest

from tests.plugins.inss.problems import INTERFERENCE, problem, tenant
from tidegate.documents import Tenant
from tidegate_inss.assignment import Share
from tidegate_inss.prediction import Predictor, waiting_for_full_batches

ALL = problem(tenant("quick", 100, 20), tenant("slow", 10, 200, max_batch=8), tenant("calm", 50, 60))


def test_tables_say_what_the_interference_model_says() -> None:
    tables = Predictor(ALL).tables
    for number, model in enumerate(ALL.models):
        for units, batch in product((1, 3, 4, 17, 40), (1, 2, 5, 8)):
            alone = INTERFERENCE.alone(Tenant(model.name, batch, 100 * units / 40))
            assert tables.alone_ms[number, units, batch] == pytest.approx(alone.taken_ms)
            assert tables.cache_percent[number, units, batch] == pytest.approx(alone.cache_percent)
            assert tables.dram_percent[number, units, batch] == pytest.approx(alone.dram_percent)


def test_a_smaller_largest_batch_is_repeated() -> None:
    tables = Predictor(ALL).tables
    assert tables.alone_ms[1, 20, 8] == tables.alone_ms[1, 20, 32]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_batches_beside_neighbours_take_what_the_interference_model_says(number: int) -> None:
    shares = [Share(0, 0, 10, 4), Share(1, 0, 20, 8), Share(2, 0, 7, 3)][:number]
    tenants = [Tenant(ALL.models[model].name, batch, 100 * units / 40) for model, _, units, batch, _ in shares]
    for at, taken_ms in enumerate(Predictor(ALL).batch_ms(shares)):
        neighbours = tenants[:at] + tenants[at + 1 :]
        assert taken_ms == pytest.approx(INTERFERENCE.expected_ms(tenants[at], neighbours))


def test_requests_are_divided_by_what_shares_bear() -> None:
    predictor = Predictor(problem(tenant("calm", 90, 60), gpus=2))
    small, large = predictor.forecast([Share(0, 0, 10, 8), Share(0, 1, 20, 8)])
    assert large.most_rps == pytest.approx(2 * small.most_rps)
    assert [small.rate_rps, large.rate_rps] == pytest.approx([30, 60])


def test_one_row_waits_for_nobody() -> None:
    """Batches of one on a share that is half busy: the wait is that of a queue with constant service, half of it."""
    waiting = waiting_for_full_batches(50, 1, 10, slo_ms=100)
    assert waiting.latency_ms == pytest.approx(10 + 0.5 * 10 / (2 * 0.5))
    assert waiting.late == 0
    assert waiting_for_full_batches(50, 1, 10, slo_ms=9).late == 1


def test_who_comes_first_waits_for_the_others() -> None:
    """Of a batch of two the first is late if the second does not come within what the SLO leaves, the second never."""
    waiting = waiting_for_full_batches(10, 2, 10, slo_ms=110)
    queued_ms = 0.05 * 10 / (2 * 0.95 * 2)
    assert waiting.late == pytest.approx(exp(-0.01 * (100 - queued_ms)) / 2)
    assert waiting.latency_ms == pytest.approx(50 + queued_ms + 10)


def test_more_than_it_bears_is_late() -> None:
    assert waiting_for_full_batches(1000, 2, 10, slo_ms=50) == (waiting := waiting_for_full_batches(200, 2, 10, 50))
    assert (waiting.latency_ms, waiting.late) == (inf, 1)


def test_few_are_late_in_a_queue_drawn_by_chance_where_few_are_foretold() -> None:
    """Arrivals one by one, in order, in full batches of eight."""
    rate, batch, taken_ms, slo_ms = 400, 8, 12.0, 36.0
    rng, now, free, waiting, late, total = Random(0), 0.0, 0.0, [], 0, 0
    for _ in range(80_000):
        now += rng.expovariate(rate / 1000)
        waiting.append(now)
        if len(waiting) == batch:
            free = max(free, now) + taken_ms
            late += sum(free - came > slo_ms for came in waiting)
            total += batch
            waiting.clear()
    foretold = waiting_for_full_batches(rate, batch, taken_ms, slo_ms).late
    assert late / total == pytest.approx(foretold, rel=0.25)
    assert 0.01 < foretold < 0.2


def test_who_takes_turns_is_no_neighbour() -> None:
    """The process of two counts once, as the one of them that is felt most."""
    quick, slow, calm = Share(0, 0, 10, 4), Share(1, 0, 10, 8), Share(2, 0, 20, 3)
    predictor = Predictor(ALL)
    alone_quick, _ = predictor.batch_ms([quick, calm])
    beside = predictor.batch_ms([quick._replace(process=1), slow._replace(process=1), calm])
    assert beside[0] == pytest.approx(alone_quick)
    assert beside[1] == pytest.approx(predictor.batch_ms([slow, calm])[0])
