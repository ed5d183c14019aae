"""When a Triton's models pass as they are, and when they are scheduled again: in worlds of which the truth is known."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

from tidegate_proxy.pass_or_schedule import (
    FINE,
    HOLD_NS,
    JUDGED,
    LONGEST_BLOCK_NS,
    LONGEST_NS,
    REST_NS,
    SHORTEST_BLOCK_NS,
    PassOrSchedule,
    Way,
)

SECOND_NS, SLO_NS = 1_000_000_000, 15_000_000
RATE = 100
Shares = Callable[[int], tuple[float, float]]


def steady(scheduled: float, passed: float) -> Shares:
    """Such shares are in time of what is scheduled, and of what passes."""
    return lambda _: (scheduled, passed)


class World:
    """One Triton's requests, and what becomes of them."""

    def __init__(self, seed: int = 1) -> None:
        self.decided = PassOrSchedule(seed)
        self.random = Random(seed)
        self.now_ns = 0
        self.rate = RATE
        self.became: list[tuple[float, Way]] = []
        self.sent = {True: 0, False: 0}

    def go_on(self, seconds: int, shares: Shares, until: Way | None = None) -> Way:
        """Send requests, and have it decided each second; `until` it is that way."""
        for _ in range(seconds):
            scheduled, passed = shares(self.now_ns // SECOND_NS)
            for number in range(self.rate):
                at_ns = self.now_ns + number * SECOND_NS // self.rate
                which = self.decided.schedules(at_ns)
                self.sent[which] += 1
                in_time = self.random.random() < (scheduled if which else passed)
                self.decided.drew(at_ns, scheduled=which)
                took_ns = SLO_NS // 2 if in_time else 2 * SLO_NS
                self.decided.answered(at_ns, took_ns, SLO_NS, scheduled=which)
            self.now_ns += SECOND_NS
            if self.decided.decide(self.now_ns, SLO_NS):
                self.became.append((self.now_ns / SECOND_NS, self.decided.way))
            if until is not None and self.decided.way is until:
                break
        return self.decided.way


def test_they_pass_once_that_is_shown_to_be_better_and_a_few_blocks_go_on_with_comparing() -> None:
    world = World()
    world.go_on(120, steady(0.80, 0.90), until=Way.PASSED)
    assert [way for _, way in world.became] == [Way.COMPARED, Way.PASSED]
    assert "to schedule them gained -" in world.decided.why
    world.sent = {True: 0, False: 0}
    assert world.go_on(160, steady(0.80, 0.90)) is Way.PASSED
    assert world.sent[True] == 160 * RATE // 16


def test_where_all_is_well_nothing_is_tried() -> None:
    world = World()
    world.go_on(300, steady(FINE + 0.005, 1.0))
    assert not world.became
    assert not world.sent[False]


def test_scheduling_stays_where_it_is_better_and_is_asked_again_more_and_more_rarely() -> None:
    world = World()
    world.go_on(20, steady(0.90, 0.80), until=Way.COMPARED)
    world.go_on(600, steady(0.90, 0.80))
    begins = [at for at, way in world.became if way is Way.COMPARED]
    ends = [at for at, way in world.became if way is Way.SCHEDULED]
    assert Way.PASSED not in {way for _, way in world.became}
    rests = [begin - end for begin, end in zip(begins[1:], ends, strict=False)]
    assert rests[0] >= REST_NS / SECOND_NS
    assert all(later >= 2 * earlier - 5 for earlier, later in pairwise(rests))


def test_at_overload_it_is_seen_within_seconds_that_passing_is_hopeless() -> None:
    world = World()
    assert world.go_on(20, steady(0.70, 0.02), until=Way.COMPARED) is Way.COMPARED
    began_ns = world.now_ns
    assert world.go_on(60, steady(0.70, 0.02), until=Way.SCHEDULED) is Way.SCHEDULED
    assert world.now_ns - began_ns <= 12 * SECOND_NS
    assert "far less" in world.decided.why


def test_far_above_what_a_triton_can_do_nothing_is_tried() -> None:
    world = World()
    world.go_on(300, steady(0.30, 0.02))
    assert not world.sent[False]


def test_they_are_scheduled_again_when_what_passes_is_not_in_time_any_more() -> None:
    world = World()
    world.go_on(120, steady(0.80, 0.90), until=Way.PASSED)
    since_ns = world.now_ns
    assert world.go_on(60, steady(0.55, 0.02), until=Way.SCHEDULED) is Way.SCHEDULED
    assert world.now_ns - since_ns <= 9 * SECOND_NS
    assert "only" in world.decided.why
    assert world.go_on(60, steady(0.55, 0.02)) is Way.SCHEDULED
    assert (
        world.go_on(120, steady(0.80, 0.90), until=Way.PASSED) is Way.PASSED
    )  # what was better once is tried again soon


def test_they_are_scheduled_again_when_what_is_scheduled_is_in_time() -> None:
    world = World()
    world.go_on(120, steady(0.80, 0.90), until=Way.PASSED)
    assert world.go_on(120, steady(1.0, 1.0), until=Way.SCHEDULED) is Way.SCHEDULED
    assert world.decided.why == "what is scheduled is in time"


def test_they_are_scheduled_again_when_that_is_shown_to_be_better_while_they_pass() -> None:
    world = World()
    world.go_on(120, steady(0.80, 0.90), until=Way.PASSED)
    assert world.go_on(1200, steady(0.95, 0.85), until=Way.SCHEDULED) is Way.SCHEDULED


def test_what_was_better_is_gone_on_with_though_nobody_can_be_sure() -> None:
    chosen = []
    for seed in range(20):
        world = World(seed)
        world.go_on(30, steady(0.90, 0.90), until=Way.COMPARED)
        began_ns = world.now_ns
        world.go_on(60, steady(0.90, 0.90))
        assert world.became[1][0] * SECOND_NS - began_ns <= 2 * (JUDGED + 3) * SECOND_NS
        chosen.append(world.became[1][1])
    assert 4 <= chosen.count(Way.PASSED) <= 16


def test_where_too_little_comes_to_say_anything_they_are_scheduled() -> None:
    world = World()
    world.go_on(20, steady(0.80, 0.80), until=Way.COMPARED)
    world.rate = 2
    began_ns = world.now_ns
    assert world.go_on(200, steady(0.80, 0.80), until=Way.SCHEDULED) is Way.SCHEDULED
    assert world.now_ns - began_ns <= LONGEST_NS + 2 * SECOND_NS
    assert "too few" in world.decided.why


def test_after_a_while_both_are_compared_again() -> None:
    world = World()
    world.go_on(120, steady(0.80, 0.90), until=Way.PASSED)
    since_ns = world.now_ns
    world.go_on(700, steady(0.80, 0.90), until=Way.COMPARED)
    assert HOLD_NS <= world.now_ns - since_ns <= HOLD_NS + 2 * SECOND_NS


def test_who_is_not_in_anybodys_way_is_scheduled_at_once() -> None:
    world = World()
    world.go_on(120, steady(0.80, 0.90), until=Way.PASSED)
    assert world.decided.leave_off(world.now_ns, "gone")
    assert (world.decided.way, world.decided.why, world.decided.is_watched) == (Way.SCHEDULED, "gone", False)
    assert not world.decided.leave_off(world.now_ns, "gone")
    world.decided.drew(world.now_ns, scheduled=True)
    world.decided.answered(world.now_ns, 1, SLO_NS, scheduled=True)


def test_one_of_two_blocks_is_scheduled_while_both_are_compared_and_which_is_drawn() -> None:
    world = World()
    world.go_on(20, steady(0.80, 0.90), until=Way.COMPARED)
    blocks = [world.decided.schedules(number * SHORTEST_BLOCK_NS) for number in range(1000, 1200)]
    pairs = {(one, other) for one, other in zip(blocks[::2], blocks[1::2], strict=True)}
    assert pairs == {(True, False), (False, True)}


def test_long_slos_have_long_blocks() -> None:
    for slo_ns, block_ns in ((SLO_NS, SHORTEST_BLOCK_NS), (SECOND_NS, 4 * SECOND_NS), (10**12, LONGEST_BLOCK_NS)):
        decided = PassOrSchedule(1)
        decided.decide(0, slo_ns)
        assert decided._block_ns == block_ns
