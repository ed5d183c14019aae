"""Symphony where it is known how long the requests of applications take: who runs with whom."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean

import msgspec
import pytest

from bench.papers.orloj_workloads import Workload
from tidegate.api import (
    NEVER_NS,
    Dispatch,
    LatencyDistribution,
    LatencyDistributionUpdated,
    Model,
    Profile,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    Worker,
    WorkerReady,
    ms_to_ns,
)
from tidegate.sim.run import RunSpec, simulate
from tidegate.testing import Playbook
from tidegate.workload import PolicyChoice
from tidegate_symphony.applications import LOOK_EVERY, MAX_GROUPS, MAX_POINTS, POINTS_PER_EVENT, Applications
from tidegate_symphony.policy import Symphony, SymphonyOptions

QUANTILE = 0.99
SYMPHONY = PolicyChoice(name="symphony")
PROFILE = Profile.linear("m", alpha_ms=5, beta_ms=5, max_rows=4)
QUICK = LatencyDistribution("m", "quick", "default", tuple(map(ms_to_ns, (9, 10, 11))), ms_to_ns(5), 0.5)
SLOW = LatencyDistribution("m", "slow", "default", tuple(map(ms_to_ns, (90, 100, 110))), ms_to_ns(5), 0.5)


def known(*times: LatencyDistribution) -> Applications:
    applications = Applications()
    for each in times:
        applications.tell(each)
    return applications


# What batches take ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_batches_of_the_quickest_and_of_all_take_what_their_longest_request_does(rows: int) -> None:
    quick, every = known(SLOW, QUICK).alike(PROFILE, 4, QUANTILE)
    assert quick.apps == frozenset({"quick"})
    assert every.apps is None
    assert quick.promises.profile.expected_ns(rows) == pytest.approx(QUICK.expected_batch_ns(rows), rel=1e-6)
    # Equation 8, by hand: each of the requests is one of six that are equally probable.
    longest_ns = fmean(max(drawn) for drawn in product((*QUICK.times_ns, *SLOW.times_ns), repeat=rows))
    assert every.promises.profile.expected_ns(rows) == pytest.approx(ms_to_ns(5) + 0.5 * rows * longest_ns, rel=1e-6)
    assert every.promises.profile.upper_ns(rows) == pytest.approx(ms_to_ns(5 + 0.5 * rows * 110))


def test_nobody_promises_less_than_the_profile_says_that_a_batch_takes_at_least() -> None:
    slow = Profile.linear("m", alpha_ms=50, beta_ms=100, max_rows=4)
    quick, every = known(SLOW, QUICK).alike(slow, 4, QUANTILE)
    for rows in (1, 4):
        assert quick.promises.profile.expected_ns(rows) == slow.lower_bound_ns(rows)
        assert every.promises.profile.expected_ns(rows) >= slow.lower_bound_ns(rows)


def test_applications_that_take_about_the_same_are_not_told_apart() -> None:
    twin = msgspec.structs.replace(QUICK, app="twin", times_ns=tuple(map(ms_to_ns, (9, 10, 11.5))))
    assert known(QUICK, twin).alike(PROFILE, 4, QUANTILE) == ()
    assert known(QUICK).alike(PROFILE, 4, QUANTILE) == ()
    elsewhere = msgspec.structs.replace(SLOW, device_class="other")
    assert known(QUICK, elsewhere).alike(PROFILE, 4, QUANTILE) == ()


def test_how_often_each_comes_counts() -> None:
    applications = known(QUICK, SLOW)
    even_ns = applications.alike(PROFILE, 4, QUANTILE)[-1].promises.profile.expected_ns(2)
    assert not applications.count("a name that nothing is known of")
    moved = [applications.count("quick") for _ in range(4 * LOOK_EVERY)]
    assert moved[LOOK_EVERY - 1], "the share has moved from a half to nearly one"
    assert not any(moved[-LOOK_EVERY:]), "and stays there"
    assert applications.refresh(MAX_POINTS) == (MAX_POINTS - 6 - 3, True), "the quicker one, and both"
    seldom_ns = applications.alike(PROFILE, 4, QUANTILE)[-1].promises.profile.expected_ns(2)
    assert seldom_ns < 0.5 * even_ns, "a slow one is hardly ever in a batch"


def test_of_many_applications_few_groups_are_made_and_the_last_one_holds_all() -> None:
    every = [
        LatencyDistribution("m", f"app {number}", "default", (ms_to_ns(10 + number),) * 64, ms_to_ns(5), 0.5)
        for number in range(128)
    ]
    groups = known(*every).alike(PROFILE, 4, QUANTILE)
    assert len(groups) == MAX_GROUPS
    sizes = [len(group.apps or every) for group in groups]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 128
    longest_ns = groups[-1].promises.profile.upper_ns(4)
    assert longest_ns == pytest.approx(ms_to_ns(5 + 0.5 * 4 * 137), rel=0.02), "the longest is among the points"


# Who runs with whom ---------------------------------------------------------------------------------------------------


def playbook(*times: LatencyDistribution, kinds: tuple[str, ...] = ("default",)) -> Playbook:
    setup = Setup(
        models=(Model("m", 4, slo_ns=ms_to_ns(400)),),
        workers=tuple(Worker(number, f"w{number}", ("m",), device_class=kind) for number, kind in enumerate(kinds)),
        profiles=tuple(
            Profile.linear("m", alpha_ms=20, beta_ms=5, max_rows=4, device_class=kind, shape=shape)
            for kind in dict.fromkeys(kinds)
            for shape in ("", "other")
        ),
        latency_distributions=times,
    )
    return Playbook(Symphony(setup, SymphonyOptions()))


def arrived(number: int, at_ms: float, app: str, *, shape: str = "", due_ms: float = 400) -> RequestArrived:
    now_ns = ms_to_ns(at_ms)
    return RequestArrived(now_ns, Request(number, "m", 1, now_ns, now_ns + ms_to_ns(due_ms), app=app, shape=shape))


def batches(
    play: Playbook, *events: RequestArrived | RequestCancelled | WorkerReady | LatencyDistributionUpdated
) -> list:  # type: ignore[type-arg]
    """The requests of the batches that are dispatched."""
    commands = [command for event in events for command in (play >> event).commands()]
    return [command.batch.request_ids for command in commands if isinstance(command, Dispatch)]


def freed(at_ms: float, worker: int = 0) -> WorkerReady:
    return WorkerReady(ms_to_ns(at_ms), worker, ms_to_ns(at_ms))


WAITING = (arrived(0, 0, "slow"), *(arrived(1 + at, 1 + at, ("quick", "slow")[at % 2]) for at in range(4)))


def test_a_slow_one_does_not_run_with_quick_ones_however_long_it_has_waited() -> None:
    play = playbook(QUICK, SLOW)
    assert batches(play, *WAITING) == [(0,)], "the worker is idle"
    assert batches(play, freed(60)) == [(1, 3)]
    assert batches(play, freed(80)) == [(2, 4)]


def test_without_times_of_applications_all_run_together() -> None:
    play = playbook()
    assert batches(play, *WAITING, freed(60)) == [(0,), (1, 2, 3, 4)]


def test_what_is_learned_counts_from_then_on() -> None:
    play = playbook()
    assert batches(play, *WAITING, LatencyDistributionUpdated(ms_to_ns(5), QUICK)) == [(0,)]
    assert batches(play, LatencyDistributionUpdated(ms_to_ns(6), SLOW), freed(60)) == [(1, 3)]


def test_who_is_cancelled_is_in_no_batch() -> None:
    play = playbook(QUICK, SLOW)
    assert batches(play, *WAITING, RequestCancelled(ms_to_ns(30), 3), freed(60)) == [(0,), (1,)]


def test_requests_of_which_nothing_is_known_run_with_all() -> None:
    play = playbook(QUICK, SLOW)
    assert batches(play, arrived(0, 0, "slow"), arrived(1, 1, "news"), arrived(2, 2, "slow"), freed(60)) == [
        (0,),
        (1, 2),
    ]


def test_where_shapes_or_kinds_of_workers_differ_profiles_tell() -> None:
    several = (arrived(9, 0, "quick", shape="other"), *WAITING)
    assert batches(playbook(QUICK, SLOW), *several, freed(60)) == [(9,), (0, 1, 2, 3)], "not of this shape alone"
    unequal = playbook(QUICK, SLOW, kinds=("default", "other"))
    assert batches(unequal, *WAITING, freed(60)) == [(0,), (1,), (2, 3, 4)]


def test_what_need_not_be_answered_on_time_is_not_chosen_by_the_chance_to_be() -> None:
    play = playbook(QUICK, SLOW)
    waiting = [arrived(number, number, "quick", due_ms=NEVER_NS // 10**6) for number in range(3)]
    assert batches(play, *waiting, freed(60)) == [(0,), (1, 2)]


@pytest.mark.parametrize("names", [2, 8, 20, 100])
def test_the_work_after_distributions_moved_does_not_grow_with_the_names_that_clients_use(
    names: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def counted(
        among: Sequence[LatencyDistribution],
        shares: Mapping[str, float],
        like: Profile,
        quantile: float,
        *,
        most_points: int,
    ) -> Profile:
        looked.append(min(most_points, sum(len(times.times_ns) for times in among)))
        return made(among, shares, like, quantile, most_points=most_points)

    made = LatencyDistribution.profile_of_batches
    monkeypatch.setattr(LatencyDistribution, "profile_of_batches", staticmethod(counted))
    many = [
        LatencyDistribution(
            "m", f"a{number}", "default", tuple(range(10**6 * (1 + number), 10**6 * (2 + number), 15_625))
        )
        for number in range(names)
    ]
    play = playbook(*many) >> arrived(0, 0, "a0")
    play.commands()
    assert len(looked) <= MAX_GROUPS
    assert sum(looked) <= MAX_POINTS
    looked.clear()
    for times in many:
        play >>= LatencyDistributionUpdated(0, msgspec.structs.replace(times, fixed_ns=1000.0))
        play.commands()
    assert not looked, "no event of a request or worker has come"
    for number in range(1, 4):
        before = sum(looked)
        play >>= arrived(number, number, "a1")
        play.commands()
        assert sum(looked) - before < POINTS_PER_EVENT + MAX_POINTS // 2, "the last one may go beyond"
    assert 0 < len(looked) <= MAX_GROUPS


# Whole workloads ------------------------------------------------------------------------------------------------------


def on_time(workload: Workload, *, named: bool = True) -> float:
    scenario = workload.scenario(SYMPHONY)
    requests = workload.requests_of(scenario, seed=1)
    if not named:
        requests = replace(requests, apps=None)
    return simulate(RunSpec(scenario, SYMPHONY, 1), requests=requests).total.attainment


def test_more_are_on_time_if_clients_say_which_application_they_are() -> None:
    workload = Workload("rdinet-cifar", 4.0, requests=1200)
    assert on_time(workload) > 0.96
    assert on_time(workload, named=False) < 0.93


def test_who_cannot_all_be_on_time_are_served_in_larger_batches_of_those_who_can() -> None:
    """Of 2 requests per mean time one worker bears 0.7 within twice of it; from the head on it was 0.62."""
    assert on_time(Workload("resnet-imagenet", 2.0, requests=1500)) > 0.66
