"""What batches are foretold to take is what the interference model says."""

from itertools import product

import pytest

from tests.plugins.inss.problems import INTERFERENCE, problem, tenant
from tidegate.schemas import Tenant
from tidegate_inss.prediction import AssignedShare, Predictor

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
def test_batches_beside_neighbors_take_what_the_interference_model_says(number: int) -> None:
    shares = [AssignedShare(0, 0, 10, 4), AssignedShare(1, 0, 20, 8), AssignedShare(2, 0, 7, 3)][:number]
    tenants = [Tenant(ALL.models[model].name, batch, 100 * units / 40) for model, _, units, batch, _ in shares]
    for at, taken_ms in enumerate(Predictor(ALL).batch_ms(shares)):
        neighbors = tenants[:at] + tenants[at + 1 :]
        assert taken_ms == pytest.approx(INTERFERENCE.expected_ms(tenants[at], neighbors))


def test_who_takes_turns_is_no_neighbor() -> None:
    """The process of two counts once, as the one of them that is felt most."""
    quick, slow, calm = AssignedShare(0, 0, 10, 4), AssignedShare(1, 0, 10, 8), AssignedShare(2, 0, 20, 3)
    predictor = Predictor(ALL)
    alone_quick, _ = predictor.batch_ms([quick, calm])
    beside = predictor.batch_ms([quick._replace(process=1), slow._replace(process=1), calm])
    assert beside[0] == pytest.approx(alone_quick)
    assert beside[1] == pytest.approx(predictor.batch_ms([slow, calm])[0])
