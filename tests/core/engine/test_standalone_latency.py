"""What requests of each application take alone: learned from batches of one, and told to the policy."""

import random
from bisect import bisect_right
from collections import Counter
from math import sqrt
from statistics import fmean, pstdev

import pytest

from tidegate.api import (
    Commands,
    LatencyDistribution,
    LatencyDistributionUpdated,
    Model,
    PolicyOptions,
    Profile,
    Request,
    RequestArrived,
    Setup,
    Worker,
    ms_to_ns,
)
from tidegate.engine import Engine
from tidegate.engine.estimates import standalone_latency
from tidegate.engine.estimates.batch_law import MIN_BATCHES
from tidegate.engine.estimates.standalone_latency import (
    BATCH_SAMPLING_INTERVAL,
    DISTRIBUTION_POINTS,
    FIRST_REPORT_STAGES,
    MAX_APPS,
    PRIOR_VALID_STAGES,
    WINDOW_STAGES,
    StandaloneLatency,
)
from tidegate.observation import StartStage, TopologyChanged
from tidegate.sim import ExactWorkers, Simulation
from tidegate.sim.workers import taking
from tidegate.toolkit import FirstComeFirstServed

PROFILE = Profile.linear("m", alpha_ms=4, beta_ms=1, max_rows=4)
SETUP = Setup((Model("m", 4),), (Worker(0, "w0", ("m",)),), (PROFILE,))


class Listening(FirstComeFirstServed):
    """First come, first served, and what it is told of applications."""

    def __init__(self, setup: Setup, options: PolicyOptions | None = None) -> None:
        super().__init__(setup, options or PolicyOptions())
        self.received: list[LatencyDistribution] = []

    def on_latency_distribution_updated(self, event: LatencyDistributionUpdated) -> Commands:
        self.received.append(event.times)
        return ()


def of_app(app: str, number: int = 0) -> Request:
    return Request(number, "m", 1, 0, app=app)


def test_a_policy_is_told_what_each_application_takes_alone() -> None:
    """Chat takes 5 to 15 ms, search 2; what is not tagged, and what shares batches, teaches nothing."""
    rng = random.Random(1)
    took_ns: dict[int, int] = {}
    app_of: dict[int, str] = {}

    def service_ns(effect: StartStage) -> int:
        (request_id,) = effect.batch.request_ids[:1]
        took_ns[request_id] = ms_to_ns({"chat": rng.uniform(5, 15), "search": 2, "": 40}[app_of[request_id]])
        return took_ns[request_id]

    policy = Listening(SETUP)
    engine = Engine(policy, name="listening", strict=True)
    simulation = Simulation(engine, ExactWorkers(taking(service_ns)))
    for number in range(600):
        app_of[number] = rng.choice(("chat", "search", ""))
        at_ns = number * ms_to_ns(50)
        simulation.schedule([RequestArrived(at_ns, Request(number, "m", 1, at_ns, app=app_of[number]))])
    simulation.run()
    assert {times.app for times in policy.received} == {"chat", "search"}
    chat = next(times for times in reversed(policy.received) if times.app == "chat")
    seen_ns = [took for number, took in took_ns.items() if app_of[number] == "chat"]
    assert chat.mean_ns == pytest.approx(fmean(seen_ns), rel=0.05)
    assert fmean(each_ns <= ms_to_ns(10) for each_ns in chat.times_ns) == pytest.approx(0.5, abs=0.1)
    assert len(chat.times_ns) == DISTRIBUTION_POINTS


def test_what_was_learned_survives_a_changed_plan() -> None:
    policy = Listening(SETUP)
    engine = Engine(policy, name="listening", strict=True)
    simulation = Simulation(engine, ExactWorkers(taking(lambda effect: ms_to_ns(3))))
    for number in range(FIRST_REPORT_STAGES + 1):
        at_ns = number * ms_to_ns(50)
        simulation.schedule([RequestArrived(at_ns, Request(number, "m", 1, at_ns, app="chat"))])
    simulation.run()
    engine.handle(TopologyChanged(engine.now_ns, SETUP.models, SETUP.workers, ()))
    (times,) = engine.policy.setup.latency_distributions
    assert (times.model, times.app, set(times.times_ns)) == ("m", "chat", {ms_to_ns(3)})


def test_it_is_told_anew_only_where_it_has_moved_and_forgets_by_window() -> None:
    alone = StandaloneLatency(())
    told = [alone.observe(of_app("chat"), "gpu", 1000, PROFILE) for _ in range(WINDOW_STAGES)]
    assert [number for number, times in enumerate(told, 1) if times] == [FIRST_REPORT_STAGES]
    (*_, (times,)) = [alone.observe(of_app("chat"), "gpu", 3000, PROFILE) for _ in range(WINDOW_STAGES)]
    assert set(times.times_ns) == {3000}


def test_clients_cannot_make_it_grow() -> None:
    alone = StandaloneLatency(())
    for number in range(10 * MAX_APPS):
        for _ in range(FIRST_REPORT_STAGES):
            alone.observe(of_app(f"app{number}"), "gpu", 1000, PROFILE)
    assert len(alone.known) == MAX_APPS


def learned_alone(rng: random.Random, quick_ns: int = 10_000, slow_ns: int = 50_000) -> StandaloneLatency:
    """What is known once some requests of two applications ran alone: half to one and a half times of that."""
    alone = StandaloneLatency(())
    for _ in range(WINDOW_STAGES):
        alone.observe(of_app("quick"), "gpu", round(quick_ns * rng.uniform(0.5, 1.5)), PROFILE)
        alone.observe(of_app("slow"), "gpu", round(slow_ns * rng.uniform(0.5, 1.5)), PROFILE)
    return alone


@pytest.mark.parametrize("fixed_ns", [0, 2_000, 4_000])
def test_batches_of_several_tell_what_their_requests_share(fixed_ns: int) -> None:
    """Whatever the profile says, the law that is told is the one by which batches were padded."""
    rng = random.Random(2)
    alone = learned_alone(rng)
    for _ in range(BATCH_SAMPLING_INTERVAL * 1000):
        apps = [rng.choice(("quick", "quick", "slow")) for _ in range(rng.randint(2, 6))]
        times_ns = [{"quick": 10_000, "slow": 50_000}[app] * rng.uniform(0.5, 1.5) for app in apps]
        took_ns = round(fixed_ns + len(apps) * (max(times_ns) - fixed_ns))
        alone.observe_batch([of_app(app, number) for number, app in enumerate(apps)], "gpu", took_ns)
    for _ in range(WINDOW_STAGES):
        alone.observe(of_app("quick"), "gpu", round(10_500 * rng.uniform(0.5, 1.5)), PROFILE)
    quick = next(times for times in alone.known if times.app == "quick")
    assert quick.fixed_ns == pytest.approx(fixed_ns, abs=1000)
    assert quick.mean_ns == pytest.approx(10_500, rel=0.05)
    longest_ns = 10_500 * (0.5 + 4 / 5)
    assert quick.expected_batch_ns(4) == pytest.approx(fixed_ns + 4 * (longest_ns - fixed_ns), rel=0.07)


def test_until_enough_batches_were_seen_the_profile_tells_the_law() -> None:
    alone = StandaloneLatency(())
    for _ in range(FIRST_REPORT_STAGES):
        alone.observe(of_app("chat"), "gpu", ms_to_ns(5), PROFILE)
    for _ in range(MIN_BATCHES - 1):
        alone.observe_batch([of_app("chat", 0), of_app("chat", 1)], "gpu", ms_to_ns(7))
    for _ in range(WINDOW_STAGES):
        alone.observe(of_app("chat"), "gpu", ms_to_ns(10), PROFILE)
    (times,) = alone.known
    assert times.fixed_ns == PROFILE.fixed_cost_ns


def test_batches_tell_at_once_what_requests_share_for_none_may_ever_run_alone_again() -> None:
    """The profile says that nearly all is shared, and so do the first few stages: batches tell otherwise."""
    alone, alone_ns, shared_ns = StandaloneLatency(()), ms_to_ns(2), ms_to_ns(0.4)
    for _ in range(FIRST_REPORT_STAGES):
        alone.observe(of_app("chat"), "gpu", alone_ns, Profile.linear("m", alpha_ms=0.2, beta_ms=1.8, max_rows=4))
    (first,) = alone.known
    took_ns = shared_ns + 4 * (alone_ns - shared_ns)
    assert first.expected_batch_ns(4) < 0.5 * took_ns
    batch = [of_app("chat", number) for number in range(4)]
    told = [
        times
        for _ in range(BATCH_SAMPLING_INTERVAL * MIN_BATCHES)
        for times in alone.observe_batch(batch, "gpu", took_ns)
    ]
    assert told[-1].expected_batch_ns(4) == pytest.approx(took_ns, rel=0.02)
    assert alone.known == (told[-1],)


@pytest.mark.parametrize(
    "batch",
    [
        [of_app("chat", 0), of_app("nobody knows it", 1)],
        [of_app("chat", 0), of_app("", 1)],
    ],
    ids=["an unknown application", "untagged"],
)
def test_batches_of_which_not_all_is_known_tell_nothing(batch: list[Request]) -> None:
    alone = StandaloneLatency(())
    for _ in range(FIRST_REPORT_STAGES):
        alone.observe(of_app("chat"), "gpu", ms_to_ns(5), PROFILE)
    for _ in range(BATCH_SAMPLING_INTERVAL * MIN_BATCHES):
        alone.observe_batch(batch, "gpu", ms_to_ns(7))
    for _ in range(WINDOW_STAGES):
        alone.observe(of_app("chat"), "gpu", ms_to_ns(10), PROFILE)
    (times,) = alone.known
    assert times.fixed_ns == PROFILE.fixed_cost_ns


def test_what_was_given_counts_until_more_is_known_than_a_few_stages_say() -> None:
    alone = StandaloneLatency([LatencyDistribution("m", "chat", "gpu", (1000,))])
    told = [alone.observe(of_app("chat"), "gpu", 3000, PROFILE) for _ in range(PRIOR_VALID_STAGES)]
    assert [number for number, times in enumerate(told, 1) if times] == [PRIOR_VALID_STAGES]


def test_batches_of_what_was_given_tell_what_is_shared_before_all_of_it_has_run_alone() -> None:
    """Quick ones hardly ever run alone behind a policy that lets them run together."""
    law = {"fixed_ns": 8_000.0, "scale": 0.2}
    alone = StandaloneLatency(
        [
            LatencyDistribution("m", "quick", "gpu", (5_000,), **law),
            LatencyDistribution("m", "slow", "gpu", (18_000,), **law),
        ]
    )
    for _ in range(MIN_BATCHES):  # c0 + k * c1 * the longest: slow ones take 20,000
        alone.observe_batch([of_app("quick", 0), of_app("quick", 1)], "gpu", 10_000)
        alone.observe_batch([of_app("quick", 0), of_app("slow", 1)], "gpu", 16_000)
    for _ in range(WINDOW_STAGES):
        alone.observe(of_app("slow"), "gpu", 12_000, PROFILE)
    slow = next(times for times in alone.known if times.app == "slow")
    assert slow.fixed_ns == pytest.approx(8_000, rel=0.01), "not the profile's, which mixes applications"
    assert slow.expected_batch_ns(2) == pytest.approx(8_000 + 2 * 4_000, rel=0.01)


def test_batches_of_many_applications_are_soon_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    apps = [tuple(sorted(rng.randrange(1, 10**9) for _ in range(DISTRIBUTION_POINTS))) for _ in range(64)]
    looked_at = 0

    def counting(points_ns: tuple[int, ...], time_ns: int) -> int:
        nonlocal looked_at
        looked_at += 1
        return bisect_right(points_ns, time_ns)

    monkeypatch.setattr(standalone_latency, "bisect_right", counting)
    longest_ns, variance_ns2 = standalone_latency._longest_ns(Counter(apps))
    assert looked_at <= 2 * DISTRIBUTION_POINTS * len(apps)
    drawn_ns = [max(rng.choice(points_ns) for points_ns in apps) for _ in range(2000)]
    assert longest_ns == pytest.approx(fmean(drawn_ns), rel=0.01)
    assert sqrt(variance_ns2) == pytest.approx(pstdev(drawn_ns), rel=0.3)


@pytest.mark.parametrize("rows", [2, 4])
def test_requests_of_several_rows_tell_what_a_row_of_them_takes(rows: int) -> None:
    """Whether alone or in batches: r rows take c0 + r * (what one takes - c0)."""
    alone, own_ns, fixed_ns = StandaloneLatency(()), ms_to_ns(5), ms_to_ns(4)
    several = [Request(number, "m", rows, 0, app="chat") for number in range(3)]

    def took_ns(count: int) -> int:
        return fixed_ns + count * rows * (own_ns - fixed_ns)

    for _ in range(40):
        for _ in range(PRIOR_VALID_STAGES):
            alone.observe(several[0], "gpu", took_ns(1), PROFILE)
        for count in (2, 3):
            for _ in range(BATCH_SAMPLING_INTERVAL):
                alone.observe_batch(several[:count], "gpu", took_ns(count))
    (chat,) = alone.known
    for count in (1, 2, 3):
        assert chat.expected_batch_ns(count * rows) == pytest.approx(took_ns(count), rel=0.05)
