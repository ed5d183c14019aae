"""What is said of requests that passed untouched, and when nothing is promised."""

from random import Random

import pytest
from msgspec.structs import replace

from tidegate.api import Model, Profile, Setup, Worker
from tidegate.host import Plugins
from tidegate.sim.shadow import MAX_REQUESTS, PASSING, POLICY, ShadowWindow, _interval
from tidegate.sim.shadow_messages import (
    BypassedRequest,
    BypassedResponse,
    BypassedTraffic,
    ShadowEstimate,
    ShadowSetup,
    TritonStatistics,
)

S = 1_000_000_000
MS = 1_000_000
NOW = 24 * S
SETUP = Setup(
    models=(Model("m", 32, slo_ns=50 * MS),),
    workers=(Worker(0, "w", ("m",)),),
    profiles=(Profile.linear("m", alpha_ms=1.0, beta_ms=10.0, max_rows=32),),
)


def _begin(*, guessed: tuple[str, ...] = (), slo_ms: int = 50) -> ShadowSetup:
    models = (replace(SETUP.models[0], slo_ns=slo_ms * MS),)
    return ShadowSetup(replace(SETUP, models=models), "symphony", {}, {}, guessed)


def _passed(rate_rps: float, until_ns: int = NOW) -> list[BypassedRequest]:
    rng, at_s, seen = Random(1), 0.0, []
    while (at_s := at_s + rng.expovariate(rate_rps)) < until_ns / S:
        seen.append(BypassedRequest(round(at_s * S), "m", 1, "", ""))
    return seen


def _estimate(begin: ShadowSetup, seen: list[BypassedRequest], on_time: float) -> ShadowEstimate:
    """What is said where so large a share was on time, as measured."""
    shadow, rng = ShadowWindow(begin, Plugins.installed()), Random(2)
    took_ns = [20 * MS if rng.random() < on_time else 90 * MS for _ in seen]
    ended = [BypassedResponse(request.at_ns, "m", each, ok=True) for request, each in zip(seen, took_ns, strict=True)]
    shadow.take(BypassedTraffic(NOW, seen, ended, report=True))
    return shadow.report(NOW).estimates[0]


@pytest.fixture(scope="module")
def simulated() -> float:
    """The attainment of the simulated batcher at the rate of these tests."""
    return _estimate(_begin(), _passed(200), 1.0).batcher


def test_where_the_simulator_agrees_a_gain_is_told_with_its_doubt(simulated: float) -> None:
    said = _estimate(_begin(), _passed(200), simulated)
    assert said.why == ""
    assert said.gain is not None
    low, high = said.gain
    assert low <= said.policy - said.passing <= high
    assert said.over_tuned is not None
    assert said.over_tuned[0] <= said.policy - said.tuned <= said.over_tuned[1]
    assert said.tuned >= said.passing
    assert high - low >= 2 * abs(said.error)


def test_no_more_is_promised_than_there_is_to_gain() -> None:
    said = _estimate(_begin(slo_ms=1000), _passed(40), 0.995)
    assert said.gain is not None
    assert said.gain[1] == pytest.approx(1 - said.measured, abs=1e-4)
    blocks = [[100, 98, 97, 97, 97, 97]] * 4
    assert _interval(blocks, PASSING, 0.025, 0.98, POLICY) == (-0.025, 0.02)


@pytest.mark.slow
def test_triton_tuned_by_its_experts_is_beside_the_policy() -> None:
    """At an overload a queue timeout carries Triton: after all settings were tried it is the better baseline."""
    few = replace(SETUP.models[0], max_rows=2)  # so that few requests are an overload
    profiles = (Profile.linear("m", alpha_ms=1.0, beta_ms=10.0, max_rows=2),)
    begin = ShadowSetup(replace(SETUP, models=(few,), profiles=profiles), "symphony", {}, {}, ())
    now_ns = 8 * S
    shadow, seen = ShadowWindow(begin, Plugins.installed()), _passed(220, now_ns)
    ended = [BypassedResponse(request.at_ns, "m", 90 * MS, ok=True) for request in seen]
    shadow.take(BypassedTraffic(now_ns, seen, ended, report=True))
    reports = [shadow.report(now_ns) for _ in range(17)]
    attainments = [report.estimates[0].tuned for report in reports]
    assert attainments == sorted(attainments), "a report never forgets the best setting"
    assert attainments[-1] > reports[-1].estimates[0].passing + 0.2
    assert "timeout" in reports[-1].tuned
    assert "none" not in reports[-1].tuned


def test_where_it_disagrees_nothing_is_promised(simulated: float) -> None:
    said = _estimate(_begin(), _passed(200), simulated - 0.2)
    assert said.gain is None
    assert "points from what was measured" in said.why


def test_nothing_is_promised_of_a_guess_or_of_a_few(simulated: float) -> None:
    assert "tidegate profile" in _estimate(_begin(guessed=("m",)), _passed(200), simulated).why
    assert "too few" in _estimate(_begin(), _passed(2), 1.0).why


GUESSES = (Profile.linear("m", alpha_ms=0.05, beta_ms=0.5, max_rows=32),)
"""The profile that the proxy assumes without a measurement."""


def _unprofiled(*sizes: int, assumed: tuple[str, ...] = ()) -> ShadowEstimate:
    """Report without a profile for a Triton that ran batches of these sizes, which take 10 ms and 1 ms a row."""
    begin = ShadowSetup(replace(SETUP, profiles=GUESSES), "symphony", {}, {}, ("m",), assumed)
    shadow, seen = ShadowWindow(begin, Plugins.installed()), _passed(60)
    ended = [BypassedResponse(request.at_ns, "m", 20 * MS, ok=True) for request in seen]
    for now_ns, count in ((S, 0), (NOW, 100)):
        batches = [(rows, count, count * (10 + rows) * MS) for rows in sizes]
        told = TritonStatistics("m", "a:1 1", 1000 * count, 1000 * count * 20 * MS, batches)
        shadow.take(BypassedTraffic(now_ns, [], [], report=False, executed=[told]))
    shadow.take(BypassedTraffic(NOW, seen, ended, report=True))
    return shadow.report(NOW).estimates[0]


def test_without_a_profile_the_statistics_of_triton_count_with_their_doubt() -> None:
    said = _unprofiled(1, 2, 4)
    assert said.gain is not None, said.why
    assert "which end at 4 rows: one of 32 takes between 42 and 112 ms" in said.doubt
    assert _unprofiled(1, 32).doubt.endswith("what its Triton's statistics say.")
    assert "As if scheduling: batched were set for m" in _unprofiled(1, assumed=("m",)).doubt
    assert _estimate(_begin(), _passed(100), 1.0).doubt == ""


def test_models_without_traffic_or_slo_keep_nothing_from_being_said() -> None:
    """Neither has a profile."""
    others = (Model("idle", 8, slo_ns=50 * MS), Model("any", 8))
    setup = replace(SETUP, models=(*SETUP.models, *others), workers=(Worker(0, "w", ("m", "idle", "any")),))
    guesses = tuple(Profile.linear(each.name, alpha_ms=0.05, beta_ms=0.5, max_rows=8) for each in others)
    begin = ShadowSetup(replace(setup, profiles=(*SETUP.profiles, *guesses)), "symphony", {}, {}, ("idle", "any"))
    said = _estimate(begin, _passed(60), 1.0)
    assert said.gain is not None, said.why


@pytest.mark.parametrize(("others", "judged"), [(5, True), (400, False)])
def test_what_cannot_be_scheduled_is_counted_and_widens_the_interval(others: int, judged: bool) -> None:
    shadow, seen = ShadowWindow(_begin(slo_ms=500), Plugins.installed()), _passed(60)
    ended = [BypassedResponse(request.at_ns, "m", 20 * MS, ok=True) for request in seen]
    ended += [BypassedResponse(request.at_ns, "m", 600 * MS, ok=True) for request in seen[:others]]
    shadow.take(BypassedTraffic(NOW, seen, ended, report=True))
    said = shadow.report(NOW).estimates[0]
    assert (said.gain is not None) == judged
    assert f"{others} requests" in (said.doubt if judged else said.why)
    if judged:
        assert said.gain is not None
        assert said.gain[0] <= -others / len(seen) * 0.9


def test_a_policy_has_no_more_time_than_it_is_given_live() -> None:
    alone_ms = 11
    said = _estimate(_begin(slo_ms=alone_ms + 1), _passed(5), 1.0)
    assert said.batcher > 0.9
    assert said.policy == 0.0
    assert _estimate(_begin(slo_ms=2 * alone_ms), _passed(5), 1.0).policy > 0.9


def test_who_left_without_an_answer_was_not_on_time() -> None:
    seen = _passed(20)
    shadow = ShadowWindow(_begin(), Plugins.installed())
    ended = [BypassedResponse(request.at_ns, "m", 20 * MS, ok=True) for request in seen[::2]]
    shadow.take(BypassedTraffic(NOW, seen, ended, report=True))
    assert shadow.report(NOW).estimates[0].measured == pytest.approx(0.5, abs=0.01)


def test_the_window_is_bounded_and_slides() -> None:
    shadow = ShadowWindow(_begin(), Plugins.installed())
    shadow.take(
        BypassedTraffic(
            S, [BypassedRequest(at_ns, "m", 1, "", "") for at_ns in range(2 * MAX_REQUESTS)], [], report=False
        )
    )
    assert len(shadow._seen) == MAX_REQUESTS
    shadow.take(BypassedTraffic(200 * S, [], [], report=True))
    assert shadow.report(200 * S).estimates == []


def _told(begin: ShadowSetup, *executed: TritonStatistics, shapes: tuple[str, ...] = ("",)) -> ShadowEstimate:
    """What is said where the Tritons have said this at the window's beginning and at its end."""
    shadow = ShadowWindow(begin, Plugins.installed())
    seen = [
        BypassedRequest(each.at_ns, "m", 1, "", shapes[number % len(shapes)]) for number, each in enumerate(_passed(3))
    ]
    ended = [BypassedResponse(request.at_ns, "m", 20 * MS, ok=True) for request in seen]
    for now_ns, said in zip((S, NOW), executed, strict=False):
        shadow.take(BypassedTraffic(now_ns, [], [], report=False, executed=[said]))
    shadow.take(BypassedTraffic(NOW, seen, ended, report=True))
    return shadow.report(NOW).estimates[0]


def test_batches_take_what_the_tritons_say_and_requests_the_ways_besides() -> None:
    """The profile has 11 ms for a batch of one row: 6 in Triton, and then 14 of the 20 that were measured are ways."""
    quick = (
        TritonStatistics("m", "triton 1", 0, 0, [(1, 0, 0)]),
        TritonStatistics("m", "triton 1", 400, 400 * 6 * MS, [(1, 400, 400 * 6 * MS)]),
    )
    for slo_ms, by_profile, by_triton in ((15, True, False), (25, True, True)):
        assert (_told(_begin(slo_ms=slo_ms)).batcher > 0.9) == by_profile
        assert (_told(_begin(slo_ms=slo_ms), *quick).batcher > 0.9) == by_triton
    said = _told(_begin(slo_ms=21), *quick)
    assert (said.batcher > 0.9, said.passing > 0.1) == (True, False)


def test_what_tritons_say_counts_not_where_they_began_anew_or_shapes_differ() -> None:
    before = TritonStatistics("m", "triton 1", 900, 900 * MS, [(1, 900, 900 * MS)])
    after = TritonStatistics("m", "triton 1", 400, 400 * MS, [(1, 400, 400 * MS)])
    assert _told(_begin(slo_ms=15), before, after).batcher > 0.9
    quick = (
        TritonStatistics("m", "triton 1", 0, 0, [(1, 0, 0)]),
        TritonStatistics("m", "triton 1", 400, 400 * 6 * MS, [(1, 400, 400 * 6 * MS)]),
    )
    assert _told(_begin(slo_ms=15), *quick).batcher == 0
    assert _told(_begin(slo_ms=15), *quick, shapes=("x:1", "x:2")).batcher > 0.9


def test_of_models_that_share_a_worker_that_of_the_fewest_turns_is_next() -> None:
    """Each batch takes 11 ms. Of `m` 900 had been executed, of `n`, which comes as often, none."""
    other = replace(SETUP.models[0], name="n")
    profiles = (*SETUP.profiles, replace(SETUP.profiles[0], partition="n"))
    setup = Setup(models=(SETUP.models[0], other), workers=(Worker(0, "w", ("m", "n")),), profiles=profiles)
    attainment = {}
    for turns in ("oldest", "fewest"):
        begin = ShadowSetup(setup, "symphony", {}, {"queue_order": turns}, ())
        seen = sorted(
            (BypassedRequest(each.at_ns + of * MS, "mn"[of], 1, "", "") for each in _passed(70) for of in (0, 1)),
            key=lambda request: request.at_ns,
        )
        shadow = ShadowWindow(begin, Plugins.installed())
        ended = [BypassedResponse(request.at_ns, request.model, 20 * MS, ok=True) for request in seen]
        for now_ns, count in ((S, 0), (NOW, 400)):
            took = [(name, had + count, 11 * MS * (had + count)) for name, had in (("m", 900), ("n", 0))]
            said = [
                TritonStatistics(name, "triton 1", had, total_ns, [(1, had, total_ns)]) for name, had, total_ns in took
            ]
            shadow.take(BypassedTraffic(now_ns, [], [], report=False, executed=said))
        shadow.take(BypassedTraffic(NOW, seen, ended, report=True))
        attainment[turns] = {each.model: each.batcher for each in shadow.report(NOW).estimates}
    assert attainment["fewest"]["n"] > attainment["oldest"]["n"]
    assert attainment["fewest"]["m"] < attainment["oldest"]["m"]
