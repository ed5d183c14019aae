"""What is noise of a batch and what is its requests' own: the law that batches followed is found again."""

import random
from math import log, sqrt

import pytest

from tidegate.api import LatencyDistribution, Profile, Request
from tidegate.engine.estimates.batch_law import NOISE_FRACTIONS, BatchLaw, StandaloneTimes
from tidegate.engine.estimates.standalone_latency import BATCH_SAMPLING_INTERVAL, WINDOW_STAGES, StandaloneLatency

PROFILE = Profile.linear("m", alpha_ms=0.02, beta_ms=0.03, max_rows=8)


class World:
    """Batches of a model, as `(c0 + rows * (longest - c0)) * noise`."""

    def __init__(self, means_ns: dict[str, float], *, fixed_ns: float, own_cv: float, noise_cv: float) -> None:
        self.means_ns, self.fixed_ns, self.own_cv, self.noise_cv = means_ns, fixed_ns, own_cv, noise_cv
        self.rng = random.Random(3)
        self.alone = StandaloneLatency(())

    def run_alone(self, app: str, count: int) -> None:
        for _ in range(count):
            self.alone.observe(_of(app), "gpu", round(self._own_ns(app) * self._noise()), PROFILE)

    def run_batches(self, count: int, *, most: int = 8) -> None:
        for _ in range(count):
            apps = self.rng.choices(list(self.means_ns), k=self.rng.randint(2, most))
            longest_ns = max(map(self._own_ns, apps))
            took_ns = (self.fixed_ns + len(apps) * (longest_ns - self.fixed_ns)) * self._noise()
            self.alone.observe_batch([_of(app) for app in apps], "gpu", round(took_ns))

    def known(self, app: str) -> LatencyDistribution:
        return next(times for times in self.alone.known if times.app == app)

    def _own_ns(self, app: str) -> float:
        return max(self.fixed_ns, self.means_ns[app] * self.rng.gauss(1, self.own_cv))

    def _noise(self) -> float:
        sigma = sqrt(log(1 + self.noise_cv**2))
        return self.rng.lognormvariate(-(sigma**2) / 2, sigma)


def _of(app: str) -> Request:
    return Request(0, "m", 1, 0, app=app)


@pytest.mark.parametrize("fixed_ns", [5_000, 25_000, 40_000])
@pytest.mark.parametrize("noise_cv", [0.1, 0.2, 0.3, 0.4])
def test_scatter_that_all_requests_of_a_batch_share_is_noise(fixed_ns: int, noise_cv: float) -> None:
    world = World({"chat": 50_000}, fixed_ns=fixed_ns, own_cv=0.01, noise_cv=noise_cv)
    world.run_alone("chat", WINDOW_STAGES)
    world.run_batches(BATCH_SAMPLING_INTERVAL * 300)
    world.run_alone("chat", WINDOW_STAGES)
    chat = world.known("chat")
    assert chat.noise_cv == pytest.approx(noise_cv, rel=0.2)
    assert chat.expected_batch_ns(6) == pytest.approx(fixed_ns + 6 * (50_000 - fixed_ns), rel=0.12)


@pytest.mark.parametrize("own_cv", [0.1, 0.2])
@pytest.mark.parametrize("fixed_ns", [5_000, 20_000])
def test_scatter_of_requests_stays_their_own(own_cv: float, fixed_ns: int) -> None:
    world = World({"chat": 50_000, "search": 90_000}, fixed_ns=fixed_ns, own_cv=own_cv, noise_cv=0.0)
    for app in world.means_ns:
        world.run_alone(app, WINDOW_STAGES)
    world.run_batches(BATCH_SAMPLING_INTERVAL * 300)
    for app in world.means_ns:
        world.run_alone(app, WINDOW_STAGES)
    assert world.known("chat").noise_cv ** 2 < own_cv**2 / 3
    times_ns = world.known("chat").times_ns
    assert times_ns[-1] > times_ns[0] * (1 + 2 * own_cv)


def test_both_are_told_apart_where_there_are_both() -> None:
    world = World({"chat": 50_000}, fixed_ns=20_000, own_cv=0.2, noise_cv=0.2)
    world.run_alone("chat", WINDOW_STAGES)
    world.run_batches(BATCH_SAMPLING_INTERVAL * 400)
    world.run_alone("chat", WINDOW_STAGES)
    assert world.known("chat").noise_cv == pytest.approx(0.2, abs=0.06)


def test_noise_that_is_gone_is_forgotten() -> None:
    """What runs alone hardly ever says so: of 512 stages that are kept nearly all are those of before."""
    world = World({"chat": 50_000}, fixed_ns=20_000, own_cv=0.2, noise_cv=0.0)
    world.noise_cv, world.own_cv = 0.25, 0.01
    world.run_alone("chat", 64)
    world.run_batches(BATCH_SAMPLING_INTERVAL * 200)
    assert world.known("chat").noise_cv > 0.2
    world.noise_cv, world.own_cv = 0.0, 0.25
    world.run_batches(BATCH_SAMPLING_INTERVAL * 400)
    assert world.known("chat").noise_cv < 0.17


def test_batches_say_what_requests_take_where_few_noisy_ones_ran_alone() -> None:
    world = World({"chat": 50_000}, fixed_ns=20_000, own_cv=0.0, noise_cv=0.3)
    for took_ns in (30_000, 35_000, 38_000, 40_000, 42_000, 44_000, 46_000, 61_000):  # by chance a fifth too short
        world.alone.observe(_of("chat"), "gpu", took_ns, PROFILE)
    world.run_batches(BATCH_SAMPLING_INTERVAL * 300)
    chat = world.known("chat")
    assert chat.expected_batch_ns(2) == pytest.approx(80_000, rel=0.1)
    assert chat.expected_batch_ns(8) == pytest.approx(260_000, rel=0.1)


def test_it_follows_an_application_that_takes_longer_than_it_did_though_none_of_it_runs_alone() -> None:
    world = World({"chat": 50_000, "search": 80_000}, fixed_ns=20_000, own_cv=0.05, noise_cv=0.2)
    for app in world.means_ns:
        world.run_alone(app, 64)
    world.run_batches(BATCH_SAMPLING_INTERVAL * 100)
    world.means_ns["search"] = 160_000
    world.run_batches(BATCH_SAMPLING_INTERVAL * 300)
    assert world.known("search").expected_batch_ns(4) == pytest.approx(20_000 + 4 * 140_000, rel=0.15)
    assert world.known("chat").expected_batch_ns(4) == pytest.approx(20_000 + 4 * 30_000, rel=0.25)


def test_an_outlier_does_not_decide() -> None:
    law = BatchLaw()
    law.know("chat", StandaloneTimes(64, 50_000, 0.04))
    law.max_noise_cv = 0.2
    rng = random.Random(5)
    for _ in range(100):
        law.observe("chat", 4, 60_000, 16e6, round(200_000 * rng.uniform(0.99, 1.01)))
    before = law.noise_cv
    law.observe("chat", 4, 60_000, 16e6, 2_000_000)
    assert law.noise_cv == pytest.approx(before, abs=0.05)


def test_the_work_of_a_batch_does_not_depend_on_how_many_applications_there_are_by_more_than_a_sum() -> None:
    """At most 128 applications are known: one pass over them for each hypothesis."""
    law = BatchLaw()
    looked_at = 0

    class Counted(StandaloneTimes):
        def own_fraction(self, noise_cv: float) -> float:
            nonlocal looked_at
            looked_at += 1
            return super().own_fraction(noise_cv)

    for number in range(128):
        law.know(f"app {number}", Counted(8, 1000.0 + number, 0.04))
    law.observe("app 3", 4, 1100.0, 100.0, 3000)
    assert looked_at == len(NOISE_FRACTIONS)
