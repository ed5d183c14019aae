"""The pages of benchmarks: each shows what was measured, and needs no network."""

from bench import scheduler, soak
from bench.papers import ppipe_simulated
from bench.scheduler import MIDDLE, MODELS, WORKERS, Cell, growth
from tests.pages import check_alone, headings, verdicts
from tidegate.report import PageOrigin

ORIGIN = PageOrigin("1.2.3", "2026-01-31 12:00 UTC", "python -m bench")


def test_the_scheduler_s_page_has_a_line_for_each_deferral_against_models_and_workers() -> None:
    sizes = {*((size, MIDDLE) for size in MODELS), *((MIDDLE, size) for size in WORKERS)}
    cells = [
        Cell(deferral, models, workers, 1e5, 10.0, 5.0, 8.0, 0.8)
        for deferral in scheduler.DEFERRALS
        for models, workers in sorted(sizes)
    ]
    growths = [growth(cells, deferral, of) for deferral in scheduler.DEFERRALS for of in ("models", "workers")]
    shown = scheduler.page_of(cells, growths, ORIGIN)
    check_alone(shown, most=30_000)
    assert (
        verdicts(shown)[0] == "adaptive: +0.00 µs for each doubling of the models (exponent 0.00, where 1 is linear)."
    )
    assert shown.count("<path") == 2 * len(scheduler.DEFERRALS)
    assert "adaptive: 10.0 µs with 1024 models" in shown


def test_ppipe_s_page_has_a_bar_for_each_framework_and_cluster_and_says_what_the_paper_has() -> None:
    lines = [
        {"arrivals": "Poisson", "cluster": "HC1-L", "NP": 0.5, "PPipe": 1.0, "over NP": 100.0},
        {"arrivals": "Poisson", "cluster": "mean", "NP": 0.5, "PPipe": 1.0, "over NP": 100.0},
    ]
    shown = ppipe_simulated.page_of(lines, ORIGIN, {"margin": 0.4})
    check_alone(shown, most=30_000)
    assert verdicts(shown) == ["Poisson arrivals: PPipe bears +100.0 % load over NP (paper: +48.0 %)."]
    assert headings(shown) == ["How much load does each framework bear with 99% in time?"]
    for bar in ("NP, HC1-L: 0.500", "PPipe, HC1-L: 1.000", "NP, mean: 0.500", "PPipe, mean: 1.000"):
        assert f"<title>{bar}</title>" in shown


def test_the_soak_s_page_asks_what_could_be_kept_and_says_what_is_wrong() -> None:
    ledger = soak.Ledger()
    ledger.counts["unary"] = 9
    for number in range(10):
        usage = {"memory_mib": 80.0 + number, "descriptors": 20.0, "threads": 4.0}
        ledger.samples.append({"at_s": 60.0 * number, **usage, "p50_ms": 2.0, "p99_ms": 9.0, "attainment": 1.0})
    shown = soak.page_of(ledger, ORIGIN)
    check_alone(shown, most=30_000)
    assert verdicts(shown) == ["memory grows by 60.0 MiB an hour"]
    assert headings(shown)[:3] == ["Does it keep memory?", "Does it keep descriptors?", "Does it keep threads?"]
    assert shown.count("<path") == 6
