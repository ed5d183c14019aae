"""The law of latency over a feature: levels where the feature explains the latency, nothing where it does not."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import exp, log

import pytest

from tidegate.api import LatencyDistribution, Profile, Request
from tidegate.engine.estimates.feature_law import (
    FIT_INTERVAL_NS,
    FIT_INTERVAL_SAMPLES,
    LEVEL_RATIO,
    MAX_LEVELS,
    MIN_SAMPLES,
    WINDOW_BATCHES,
    WINDOW_SAMPLES,
    FeatureLaw,
    FeatureSample,
    is_level,
    monotone_curve,
)
from tidegate.engine.estimates.standalone_latency import (
    FIRST_REPORT_STAGES,
    LEVELS_PER_REQUEST,
    MAX_APPS,
    MODEL_PROBE_INTERVAL,
    ProbeCounts,
    StandaloneLatency,
)
from tidegate.sim.run import RunSpec, simulate
from tidegate.workload import PolicyChoice, Scenario, draw_requests


def fed(
    time_ms: Callable[[random.Random, float], float],
    samples: int = WINDOW_SAMPLES,
    *,
    name: Callable[[float, float], str] = lambda feature, took_ms: "",
    speeds: Mapping[str, float] | None = None,
    seed: int = 1,
    interval_ns: int = FIT_INTERVAL_NS,
) -> FeatureLaw:
    """A law that has seen requests of 10 to 1000 tokens. `name`: application by feature and latency."""
    rng, law = random.Random(seed), FeatureLaw()
    law.has_levels = True  # as if batches had shown their fixed cost
    classes = list((speeds or {"gpu": 1.0}).items())
    for number in range(samples):
        tokens = 10 * 100 ** rng.random()
        took_ms = time_ms(rng, tokens)
        device_class, factor = classes[number % len(classes)]
        law.add(
            FeatureSample(tokens, name(tokens, took_ms), device_class, log(1e6 * took_ms * factor)),
            number * interval_ns,
        )
    return law


def scattered(rng: random.Random, mean_ms: float, deviation: float) -> float:
    return mean_ms * exp(rng.gauss(0, deviation))


def ms_of(level: str) -> float:
    return float(level.removeprefix("~").removesuffix(" ms"))


@pytest.mark.parametrize("deviation", [0.0, 0.1, 0.5])
def test_levels_follow_what_the_feature_explains(deviation: float) -> None:
    law = fed(lambda rng, tokens: scattered(rng, 20 + tokens, deviation))
    assert law.is_used
    for tokens in (20, 100, 400):
        assert ms_of(law.level_of(tokens, "")) == pytest.approx(20 + tokens, rel=0.3)
    assert ms_of(law.level_of(1e9, "")) <= 1020 * LEVEL_RATIO * exp(deviation), "nothing is known of larger ones"


def test_a_feature_that_falls_with_latency_explains_it_as_well() -> None:
    law = fed(lambda rng, tokens: scattered(rng, 10_000 / tokens, 0.1))
    assert ms_of(law.level_of(20, "")) > 5 * ms_of(law.level_of(500, ""))


def test_noise_makes_no_levels() -> None:
    laws = [fed(lambda rng, _: scattered(rng, 50, 0.6), seed=seed) for seed in range(20)]
    assert not any(law.is_used for law in laws)
    assert {law.level_of(100, "") for law in laws} == {""}


def test_a_feature_that_never_varies_makes_no_levels() -> None:
    law = FeatureLaw()
    rng = random.Random(1)
    for number in range(WINDOW_SAMPLES):
        law.add(FeatureSample(7.0, "", "gpu", log(scattered(rng, 1e7, 0.5))), number * FIT_INTERVAL_NS)
    assert not law.is_used


def test_names_that_explain_more_stay() -> None:
    def name(tokens: float, took_ms: float) -> str:
        return f"about {round(log(took_ms))}"

    law = fed(lambda rng, tokens: scattered(rng, 50 * tokens**0.1, 0.8), name=name)
    assert not law.is_used


def test_a_feature_beside_names_that_say_nothing_makes_levels() -> None:
    rng = random.Random(2)
    law = fed(lambda rng, tokens: 20 + tokens, name=lambda tokens, took_ms: rng.choice("ab"))
    assert law.is_used
    assert law.level_of(500, "a") != law.level_of(20, "a")


def test_names_and_feature_explain_together() -> None:
    """One application takes four times as long for as many tokens."""
    rng = random.Random(3)
    names: list[str] = []

    def took_ms(own: random.Random, tokens: float) -> float:
        names.append(rng.choice(("plain", "rich")))
        return scattered(own, (20 + tokens) * (4 if names[-1] == "rich" else 1), 0.1)

    law = fed(took_ms, name=lambda tokens, took_ms: names[-1])
    ratio = ms_of(law.level_of(100, "rich")) / ms_of(law.level_of(100, "plain"))
    assert ratio == pytest.approx(4, rel=0.35)


def test_the_law_goes_when_the_feature_stops_explaining() -> None:
    law = fed(lambda rng, tokens: 20 + tokens)
    rng = random.Random(4)
    for number in range(WINDOW_SAMPLES, 3 * WINDOW_SAMPLES):
        sample = FeatureSample(10 * 100 ** rng.random(), "", "gpu", log(scattered(rng, 1e8, 0.5)))
        law.add(sample, number * FIT_INTERVAL_NS)
    assert not law.is_used


def test_device_classes_differ_by_a_factor() -> None:
    law = fed(lambda rng, tokens: scattered(rng, 20 + tokens, 0.05), speeds={"fast": 1.0, "slow": 3.0})
    fast, slow = (dict(law.levels(each)) for each in ("fast", "slow"))
    assert fast.keys() == slow.keys()
    level = law.level_of(200, "")
    assert sum(slow[level]) / sum(fast[level]) == pytest.approx(3, rel=0.1)
    assert sum(fast[level]) / len(fast[level]) == pytest.approx(220e6, rel=0.2)


def test_levels_keep_their_meaning_when_the_first_device_class_is_gone() -> None:
    law = fed(lambda rng, tokens: 20 + tokens, speeds={"fast": 1.0, "slow": 3.0})
    level = law.level_of(200, "")
    rng = random.Random(5)
    for number in range(WINDOW_SAMPLES, 2 * WINDOW_SAMPLES):
        tokens = 10 * 100 ** rng.random()
        law.add(FeatureSample(tokens, "", "slow", log(3e6 * (20 + tokens))), number * FIT_INTERVAL_NS)
    assert law.level_of(200, "") == level


def test_one_stall_moves_nothing() -> None:
    pairs = [(float(each), log(100.0 + each)) for each in range(100)]
    pairs[50] = (50.0, log(1e9))
    curve = monotone_curve(*zip(*pairs, strict=True))
    assert exp(curve(50.0)) == pytest.approx(150, rel=0.2)
    assert exp(curve(20.0)) == pytest.approx(120, rel=0.05)


def test_shapes_explain_latency_where_there_are_several() -> None:
    law = fed(lambda rng, tokens: 20 + tokens)
    assert law.applies_to("x:3")
    assert law.applies_to("x:3")
    assert not law.applies_to("x:5")
    assert not law.applies_to("x:3"), "for good"
    assert law.level_of(200, "") == ""


def test_levels_are_few_however_latencies_spread() -> None:
    law = fed(lambda rng, tokens: tokens**6)
    assert law.is_used
    assert len(dict(law.levels("gpu"))) <= MAX_LEVELS
    assert all(map(is_level, dict(law.levels("gpu"))))


def test_nothing_is_fitted_before_there_are_enough_samples() -> None:
    assert not fed(lambda rng, tokens: tokens, MIN_SAMPLES - 1).is_used
    assert fed(lambda rng, tokens: tokens, FIT_INTERVAL_SAMPLES).is_used


@pytest.mark.parametrize(("rate_rps", "most"), [(1000, 10), (1, 20 * 1000 // FIT_INTERVAL_SAMPLES)])
def test_fits_are_rare_however_many_requests_run_alone(
    rate_rps: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[int] = []
    fit = FeatureLaw._fit

    def counted(law: FeatureLaw) -> None:
        fits.append(law.samples)
        fit(law)

    monkeypatch.setattr(FeatureLaw, "_fit", counted)
    law = fed(lambda rng, tokens: 20 + tokens, 20_000, interval_ns=1_000_000_000 // rate_rps)
    assert law.is_used
    assert most <= len(fits) <= most + 2


# With policies --------------------------------------------------------------------------------------------------------

SCALE, MEAN_MS = 0.18, 100.0
"""The share of a request's time that is its own, and not its batch's, and what a request takes on average."""


def scenario(correlation: float) -> Scenario:
    """A heavy tail, twice the load that single requests could have, and a feature that goes with the latency."""
    fixed_ms = (1 - SCALE) * MEAN_MS
    model = {
        "name": "m",
        "slo_ms": 12 * MEAN_MS,
        "profile": {"alpha_ms": SCALE * MEAN_MS, "beta_ms": fixed_ms, "max_batch": 16},
        "time_ms": {"distribution": "lognormal", "mean": SCALE * MEAN_MS, "cv": 1.5},
        "feature": {"values": {"distribution": "lognormal", "mean": 100, "cv": 1}, "correlation": correlation},
    }
    truth = {"profile": {"alpha_ms": 0, "beta_ms": fixed_ms}, "combine": "padded"}
    return Scenario.model_validate(
        {
            "warmup_s": 40,
            "duration_s": 60,
            "workers": [{"count": 1}],
            "models": [model],
            "arrivals": {"process": "poisson", "rate_rps": 2000 / MEAN_MS},
            "simulation": {"service": {"m": truth}},
        }
    )


def attainments(correlation: float, policy: str, seed: int = 1) -> tuple[float, float]:
    """The fraction of requests on time without the feature, and with it."""
    given = scenario(correlation)
    requests = draw_requests(given, seed)
    spec = RunSpec(given, PolicyChoice(name=policy), seed)
    without, with_it = (
        simulate(spec, requests=each).total.attainment for each in (replace(requests, features=None), requests)
    )
    return without, with_it


@pytest.mark.parametrize("policy", ["orloj", "symphony"])
def test_a_feature_that_decides_answers_more_requests_on_time(policy: str) -> None:
    without, with_it = attainments(1.0, policy)
    assert with_it > without + 0.1


@pytest.mark.parametrize("policy", ["orloj", "symphony"])
def test_a_feature_that_is_noise_costs_nothing(policy: str) -> None:
    without, with_it = attainments(0.0, policy)
    assert with_it == without


@pytest.mark.parametrize(("correlates", "wanted"), [(True, MIN_SAMPLES), (False, 0)])
def test_requests_run_alone_only_where_batches_show_that_latency_goes_with_the_feature(
    correlates: bool, wanted: int
) -> None:
    law, rng = FeatureLaw(), random.Random(8)
    for _ in range(WINDOW_BATCHES):
        features = [rng.uniform(1, 100) for _ in range(rng.randint(2, 8))]
        took = max(features) if correlates else rng.uniform(1, 100)
        law.add_batch(features, len(features), "gpu", log(scattered(rng, 100 + len(features) * took, 0.1)))
    assert law.samples_wanted == wanted


def test_levels_wait_for_batches_to_show_their_fixed_cost() -> None:
    """0.57 where they do not: the policy then runs every request alone, and no batch corrects it."""
    without, with_it = attainments(1.0, "symphony", seed=2)
    assert with_it > without


PROFILE = Profile.linear("m", alpha_ms=4, beta_ms=1, max_rows=4)


def of_tokens(tokens: float, app: str = "", number: int = 0) -> Request:
    return Request(number, "m", 1, number * FIT_INTERVAL_NS, app=app, feature=tokens)


def test_requests_get_levels_once_the_law_is_used_and_keep_what_the_client_said() -> None:
    alone, rng = StandaloneLatency(()), random.Random(6)
    told: list[LatencyDistribution] = []
    request = of_tokens(100, "chat")
    for number in range(2 * WINDOW_SAMPLES):
        tokens = 10 * 100 ** rng.random()
        request = alone.with_level(of_tokens(tokens, "chat", number))
        told += alone.observe(request, "gpu", round(1e6 * (20 + tokens)), PROFILE)
        alone.observe_batch([request, request], "gpu", round(1e6 * (20 + 2 * tokens)))
    assert is_level(request.app)
    assert (request.client_app, request.feature > 0) == ("chat", True)
    assert {times.app for times in told} >= {"chat", request.app}
    level = next(times for times in reversed(told) if times.app == request.app)
    assert (level.fixed_ns + level.scale * level.mean_ns) / 1e6 == pytest.approx(ms_of(request.app), rel=0.15)
    assert {times.app for times in alone.known} >= {"chat", request.app}


def test_levels_have_room_beside_names_and_are_published_a_few_at_a_time() -> None:
    alone, rng = StandaloneLatency(()), random.Random(9)
    for number in range(MAX_APPS):
        for _ in range(FIRST_REPORT_STAGES):
            alone.observe(of_tokens(0.0, f"app{number}"), "gpu", 1000, PROFILE)
    most = 0
    for number in range(3 * WINDOW_SAMPLES):
        request = alone.with_level(of_tokens(10 * 100 ** rng.random(), f"app{rng.randrange(MAX_APPS)}", number))
        duration_ns = round(1e3 * request.feature**1.5)
        most = max(most, len(alone.observe(request, "gpu", duration_ns, PROFILE)))
        lone = of_tokens(0.0, "app0")
        alone.observe_batch([lone, lone], "gpu", 1800)
    assert is_level(request.app)
    assert most <= LEVELS_PER_REQUEST + 1, "the levels, and the request's application"
    known = {times.app for times in alone.known}
    placed = {alone.with_level(of_tokens(10 * 100 ** (step / 99), "app0")).app for step in range(100)}
    assert len(placed) > 20
    assert placed <= known


def test_no_distribution_is_published_of_requests_without_name_and_level() -> None:
    alone, rng = StandaloneLatency(()), random.Random(7)
    for number in range(WINDOW_SAMPLES):
        request = alone.with_level(of_tokens(rng.random(), number=number))
        assert not alone.observe(request, "gpu", round(1e7 * rng.random()), PROFILE)
    assert alone.known == ()


def test_a_law_asks_for_some_requests_alone_and_for_more_while_it_is_open() -> None:
    probes = ProbeCounts()
    wanted = sum(probes.wants(of_tokens(1.0), MIN_SAMPLES) for _ in range(10 * MODEL_PROBE_INTERVAL))
    assert wanted == 10, "one in sixteen"
    for _ in range(MIN_SAMPLES):
        probes.ran_alone(of_tokens(1.0))
    assert not any(probes.wants(of_tokens(1.0), MIN_SAMPLES) for _ in range(10 * MODEL_PROBE_INTERVAL))
    assert any(probes.wants(of_tokens(1.0), 2 * MIN_SAMPLES) for _ in range(MODEL_PROBE_INTERVAL))
    assert StandaloneLatency(()).samples_wanted(of_tokens(0.0)) == 0
