"""Shapes of requests: classes of them, what a new one starts from, and that each is learned apart."""

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import few
from tidegate.api import (
    NEVER_NS,
    NS_PER_MS,
    Commands,
    Drop,
    Model,
    PolicyOptions,
    Profile,
    ProfileUpdated,
    Request,
    RequestArrived,
    RequestCancelled,
    Setup,
    Worker,
    WorkerJoined,
    WorkerLost,
    ms_to_ns,
)
from tidegate.engine import Engine, StartStage
from tidegate.engine.estimates.expectations import Expectations
from tidegate.engine.estimates.shapes import MAX_SHAPES, ShapeClasses, elements_of, profile_of_new
from tidegate.host import Plugins
from tidegate.sim import ExactWorkers, Simulation
from tidegate.sim.workers import taking
from tidegate.toolkit import FirstComeFirstServed

PLUGINS = Plugins.installed()
MAX_ROWS = 8
GUESS = Profile.linear("m", alpha_ms=0.05, beta_ms=0.5, max_rows=MAX_ROWS)
"""What is expected of any model of which nothing is known."""
MODEL = Model("m", MAX_ROWS)


def measured(width: int, *, per_row_ms: float, fixed_ms: float = 4) -> Profile:
    shape = f"x:3,48,{width}"
    return Profile.linear("m", alpha_ms=per_row_ms, beta_ms=fixed_ms, max_rows=MAX_ROWS, shape=shape)


@pytest.mark.parametrize(
    ("shape", "elements"),
    [
        ("x:3,48,320;y:7", 46087),
        ("~46341", 46341),
        ("~", 0),
        ("x:3,48,320", 46080),
        ("x:0", 0),
        ("short", 0),
        ("x:-1", 0),
        ("x:", 0),
        ("x:³", 0),
        ("x:" + ",".join(["999999"] * 60), 0),
    ],
)
def test_how_many_elements_a_shape_has(shape: str, elements: int) -> None:
    assert elements_of(shape) == elements


@given(st.text())
def test_whatever_a_shape_says_it_is_read(shape: str) -> None:
    assert elements_of(shape) >= 0


@given(st.lists(st.sampled_from([f"x:{width}" for width in range(1, 200)] + ["short", "long", "x:9" + "0" * 17])))
def test_the_classes_of_a_model_are_few_and_a_shape_keeps_its_own(shapes: list[str]) -> None:
    classes, of_shape = ShapeClasses(), dict[str, str]()
    for shape in shapes * 2:
        found, is_new = classes.class_of("m", shape)
        assert of_shape.setdefault(shape, found) == found
        assert not is_new or found not in list(of_shape.values())[:-1]
    exact = [shape for shape, found in of_shape.items() if shape == found]
    assert len(exact) <= MAX_SHAPES
    assert len(set(of_shape.values())) <= MAX_SHAPES + 4 * 64 + 1
    for shape, found in of_shape.items():
        if found.startswith("~"):
            assert 0.999 < int(found[1:]) / elements_of(shape) < 1.26, "the next class above"


def test_a_shape_that_was_measured_is_a_class_of_its_own_whenever_it_is_met() -> None:
    expectations = Expectations([measured(1, per_row_ms=1).of_shape(""), measured(9999, per_row_ms=7)], learn=True)

    def met(width: int) -> tuple[str, list[str]]:
        request, new = expectations.meet(Request(width, "m", 1, 0, 10**12, shape=f"x:3,48,{width}"), MODEL)
        return request.shape, [profile.shape for profile in new]

    for width in range(1, MAX_SHAPES + 9):
        met(width)
    assert met(9998)[0].startswith("~14"), "others of its size share a class"
    assert met(9999) == ("x:3,48,9999", [])


def test_a_class_of_further_shapes_starts_from_the_line_over_elements_too() -> None:
    told = [measured(width, per_row_ms=width / 100) for width in (320, 640)]
    expectations = Expectations([measured(1, per_row_ms=1).of_shape(""), *told], learn=True)
    for width in range(1, MAX_SHAPES + 1):
        expectations.meet(Request(width, "m", 1, 0, 10**12, shape=f"x:3,48,{width}"), MODEL)
    request, (new,) = expectations.meet(Request(99, "m", 1, 0, 10**12, shape="x:3,48,3200"), MODEL)
    assert request.shape.startswith("~")
    assert new.expected_ns(1) == pytest.approx(ms_to_ns(4 + elements_of(request.shape) / (3 * 48) / 100), rel=1e-6)


def test_a_shape_that_shares_a_class_keeps_it_though_it_is_measured_later() -> None:
    classes = ShapeClasses()
    for number in range(MAX_SHAPES):
        classes.class_of("m", f"x:{number + 1}")
    shared, _ = classes.class_of("m", "x:9999")
    classes.tell_apart("m", "x:9999")
    assert classes.class_of("m", "x:9999") == (shared, False)


def test_a_new_shape_starts_from_a_line_through_those_that_are_known() -> None:
    known = [measured(320, per_row_ms=2), measured(640, per_row_ms=4)]
    between = profile_of_new("x:3,48,480", GUESS, known)
    assert between.expected_ns(1) == pytest.approx(ms_to_ns(7), rel=1e-6)
    assert between.expected_ns(8) == pytest.approx(ms_to_ns(28), rel=1e-6)
    assert profile_of_new("x:3,48,960", GUESS, known).expected_ns(8) == pytest.approx(ms_to_ns(52), rel=1e-6)
    assert profile_of_new("x:3,48,64", GUESS, known).expected_ns(1) == pytest.approx(ms_to_ns(4.4), rel=1e-6)


def test_or_from_the_only_one_or_from_the_base() -> None:
    known = measured(320, per_row_ms=2)
    assert profile_of_new("x:3,48,640", GUESS, [known]) == known.of_shape("x:3,48,640")
    assert profile_of_new("tiny", GUESS, [known]) == known.of_shape("tiny")
    assert profile_of_new("x:3,48,640", GUESS, []) == GUESS.of_shape("x:3,48,640")


sizes = st.integers(1, 10**6)
tables = st.lists(st.integers(1, 10**9), min_size=3, max_size=3).map(sorted)


@given(sizes, st.lists(st.tuples(sizes, tables, st.floats(1, 5)), max_size=6))
def test_whatever_is_known_a_new_shape_has_a_profile(size: int, others: list[tuple[int, list[int], float]]) -> None:
    known = [
        Profile("m", "default", tuple(table), tuple(round(ns * margin) for ns in table), f"x:{width}")
        for width, table, margin in others
    ]
    new = profile_of_new(f"x:{size}", Profile("m", "default", (1, 2, 3)), known)
    assert (new.shape, new.max_rows) == (f"x:{size}", 3)


shapes_of_any_size = st.lists(st.sampled_from((0, 1, 7, 320, 640, 10**17)), min_size=1, max_size=9).map(
    lambda sizes: "x:" + ",".join(map(str, sizes))
)


@given(st.lists(st.tuples(shapes_of_any_size, st.integers(1, MAX_ROWS), st.integers(1, 10**10)), max_size=40))
@example([("x:320", 4, 5_000_000), ("x:640", 2, 5_000_000)] * 8).via("as many elements to a batch of either shape")
@example([("x:99999999", 1, 5_000_000), ("x:99999998", 1, 5_000_000)] * 8 + [("x:7", 1, 1)])
def test_whatever_shapes_and_batches_there_are_each_is_learned(stages: list[tuple[str, int, int]]) -> None:
    expectations, worker = Expectations([GUESS], learn=True), Worker(0, "w0", ("m",))
    for number, (shape, rows, duration_ns) in enumerate(stages):
        request, _ = expectations.meet(Request(number, "m", rows, 0, shape=shape), MODEL)
        expectations.observe("m", worker, request.shape, rows, duration_ns)


class Watching(FirstComeFirstServed):
    """First come, first served, and what it is told of profiles."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, PolicyOptions())
        self.received: list[Profile] = []

    def on_profile_updated(self, event: ProfileUpdated) -> Commands:
        self.received.append(event.profile)
        return super().on_profile_updated(event)


def test_a_policy_knows_a_shape_before_its_first_request() -> None:
    workers = (Worker(0, "w0", ("m",)), Worker(1, "w1", ("m",), "slow"))
    slow = Profile.linear("m", alpha_ms=1, beta_ms=9, max_rows=MAX_ROWS, device_class="slow")
    policy = Watching(Setup((MODEL,), workers, (GUESS, slow)))
    engine = Engine(policy, name="watching", strict=True)
    engine.handle(RequestArrived(0, Request(0, "m", 1, 0, shape="x:9")))
    assert policy.received == [GUESS.of_shape("x:9"), slow.of_shape("x:9")]
    engine.handle(RequestArrived(0, Request(1, "m", 1, 0, shape="x:9")))
    assert len(policy.received) == 2


@pytest.mark.parametrize("policy", PLUGINS.policies)
def test_a_worker_of_a_kind_that_is_new_knows_the_shapes_that_are_not(policy: str) -> None:
    setup = Setup((MODEL,), (Worker(0, "w0", ("m",)),), (GUESS,))
    engine = Engine(PLUGINS.make_policy(policy, setup, {}), name=policy, strict=True)
    engine.handle(RequestArrived(0, Request(0, "m", 1, 0, NS_PER_MS * 10, shape="x:9")))
    swift = GUESS.scaled(0.5)
    engine.handle(ProfileUpdated(1, Profile("m", "swift", swift.expected)))
    engine.handle(WorkerJoined(2, Worker(1, "w1", ("m",), "swift")))
    engine.handle(RequestArrived(3, Request(1, "m", 1, 3, NS_PER_MS * 10, shape="x:9")))
    engine.validate()
    assert ("m", "swift", "x:9") in engine.expectations.profiles


WIDTHS = (320, 480, 640, 800, 960)
TRUTH = {profile.shape: profile for profile in (measured(width, per_row_ms=width / 160) for width in WIDTHS)}


class FiveShapes:
    """Requests of five shapes whose times differ by three, on two workers, of which nothing is known."""

    def __init__(self, seed: int, count: int, factor: Callable[[random.Random], float], stalls: float) -> None:
        """`factor`: draws by how much a stage takes longer; `stalls`: the share that take ten times as long."""
        self.rng, self._factor, self._stalls = random.Random(seed), factor, stalls
        self.ran: list[tuple[StartStage, int]] = []
        """The stages that ran, and how long."""
        workers = tuple(Worker(number, f"w{number}", ("m",)) for number in range(2))
        policy = FirstComeFirstServed(Setup((MODEL,), workers, (GUESS,)), PolicyOptions())
        self.engine = Engine(policy, name="fifs", strict=True)
        self.simulation = Simulation(self.engine, ExactWorkers(taking(self._service_ns)))
        at_ns, requests = 0.0, []
        for number in range(count):
            at_ns += self.rng.expovariate(1 / (5 * NS_PER_MS))
            request = Request(number, "m", 1, round(at_ns), shape=self.rng.choice(list(TRUTH)))
            requests.append(RequestArrived(request.arrival_ns, request))
        self.simulation.feed(requests)
        self.simulation.run(until_ns=requests[200].now_ns)
        self.learned = len(self.ran)
        """Stages that the first two hundred requests took."""

    def rest(self) -> list[bool]:
        """Whether each of the stages after these took no longer than planned."""
        self.simulation.run()
        return [took_ns <= effect.batch.stages[0].duration_ns for effect, took_ns in self.ran[self.learned :]]

    def _service_ns(self, effect: StartStage) -> int:
        took_ns = TRUTH[effect.shape].expected_ns(effect.rows) * self._factor(self.rng)
        took_ns *= 10 if self.rng.random() < self._stalls else 1
        self.ran.append((effect, round(took_ns)))
        return round(took_ns)


JITTER: dict[str, Callable[[random.Random], float]] = {
    "a tenth": lambda rng: max(0.5, rng.gauss(1, 0.1)),
    "an exponential delay": lambda rng: 0.8 + rng.expovariate(5),
}


@pytest.mark.parametrize("stalls", few([0.01, 0.0]))
@pytest.mark.parametrize("seed", few(range(3)))
def test_five_shapes_are_learned_within_two_hundred_requests(stalls: float, seed: int) -> None:
    shapes = FiveShapes(seed, 8000, JITTER["a tenth"], stalls)
    for shape, rows in sorted({(effect.shape, effect.rows) for effect, _ in shapes.ran}):
        expected_ns = shapes.engine.expectations.profiles["m", "default", shape].expected_ns(rows)
        assert expected_ns / TRUTH[shape].expected_ns(rows) == pytest.approx(1, abs=0.12)
    planned = shapes.rest()
    assert 0.98 <= sum(planned) / len(planned) <= 0.999


@pytest.mark.parametrize(
    ("jitter", "stalls"),
    [
        pytest.param("a tenth", 0.0, marks=pytest.mark.slow),
        ("a tenth", 0.01),
        pytest.param("an exponential delay", 0.0, marks=pytest.mark.slow),
    ],
)
def test_plans_cover_the_stages_of_the_next_few_hundred_requests(jitter: str, stalls: float) -> None:
    """Of a few stages the longest is soon exceeded; and a delay that is often long is no outlier."""
    planned = [each for seed in range(20) for each in FiveShapes(seed, 600, JITTER[jitter], stalls).rest()]
    assert 0.98 <= sum(planned) / len(planned) <= 0.999


@pytest.mark.parametrize("policy", few(["symphony", "nexus", "eager", "timeout", "clockwork", "shepherd"], 2))
@pytest.mark.parametrize(
    ("known_ms", "new", "busy"),
    [
        pytest.param({320: 9, 640: 18}, 10_000, False, id="larger"),
        pytest.param({320: 9, 640: 18}, 10_000, True, id="larger, and its worker is never idle"),
        pytest.param({960: 54, 1280: 60}, 32, False, id="smaller"),
    ],
)
def test_a_new_shape_does_not_starve_on_a_guess(policy: str, known_ms: dict[int, int], new: int, busy: bool) -> None:
    """The line through two shapes that are known is too slow for a third one, whose stages take 9 ms, to be on time."""
    taken_ns = {f"x:{size}": ms_to_ns(taken_ms) for size, taken_ms in {**known_ms, new: 9}.items()}
    known = [f"x:{size}" for size in known_ms]
    profiles = [Profile("m", "default", (taken_ns[shape],), shape=shape) for shape in known]
    base = Profile.linear("m", alpha_ms=1, beta_ms=8, max_rows=1)
    setup = Setup((Model("m", 1),), (Worker(0, "w0", ("m",)),), (base, *profiles))
    started: list[str] = []

    def service_ns(effect: StartStage) -> int:
        started.append(effect.shape)
        return taken_ns[effect.shape]

    engine = Engine(PLUGINS.make_policy(policy, setup, {}), name=policy, strict=True)
    simulation = Simulation(engine, ExactWorkers(taking(service_ns)))
    for number in range(500):
        now_ns = number * ms_to_ns(7 if busy else 100)
        shape, due_ns = known[number % 2], now_ns + ms_to_ns(200)
        if number % 5 == 4:
            shape, due_ns = f"x:{new}", now_ns + ms_to_ns(50)
        client = f"client {number % 3}"
        request = Request(number, "m", 1, now_ns, due_ns, shape=shape, client=client)
        simulation.schedule([RequestArrived(now_ns, request)])
    simulation.run()
    tried = started.count(f"x:{new}")  # of 100; few are as patient as the others, which a busy worker runs first
    assert tried > (0 if busy else 50)


class Hasty(FirstComeFirstServed):
    """Gives up all that waits where a worker comes or goes."""

    best_effort = False

    def on_worker_lost(self, event: WorkerLost) -> Commands:
        return [*super().on_worker_lost(event), *self._give_up()]

    def on_worker_joined(self, event: WorkerJoined) -> Commands:
        return [*super().on_worker_joined(event), *self._give_up()]

    def _give_up(self) -> Commands:
        waiting = [request for queue in list(self.queues.values()) for request in self.take(queue, len(queue))]
        return [Drop(request.id, "in haste") for request in waiting]


@pytest.mark.parametrize("lost", [[0], [0, 1]])
def test_what_is_given_up_for_a_guess_when_workers_come_and_go_waits_on(lost: list[int]) -> None:
    known = [Profile("m", "default", (taken_ns,), shape=f"x:{taken_ns}") for taken_ns in (320, 640)]
    workers = tuple(Worker(number, f"w{number}", ("m",)) for number in range(2))
    base = Profile.linear("m", alpha_ms=1, beta_ms=8, max_rows=1)
    engine = Engine(Hasty(Setup((Model("m", 1),), workers, (base, *known)), PolicyOptions()), name="hasty", strict=True)
    for number, due_ns in enumerate((NEVER_NS, NEVER_NS, 15_000, 15_000)):
        request = Request(
            number, "m", 1, 0, due_ns, shape=f"x:{320 if due_ns == NEVER_NS else 10_000}", client=f"{number}"
        )
        engine.handle(RequestArrived(0, request))
    for number in lost:
        engine.handle(WorkerLost(10, number))
        engine.validate()
    for number in lost:
        engine.handle(WorkerJoined(20, workers[number]))
        engine.validate()
    for number in range(4):
        engine.handle(RequestCancelled(30, number))
        engine.validate()
    assert engine.tally.ended == 4
