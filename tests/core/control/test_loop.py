"""The loop, whatever the controller says and however workers fare: a state machine that hypothesis drives."""

from collections.abc import Sequence, Set
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.control.driving import ControlledLoop, advance, followed
from tests.core.control.layouts import layout, workers_of
from tests.examples import examples
from tidegate.api import NEVER_NS, Request
from tidegate.control import (
    Action,
    Controller,
    ControllerChoice,
    ControllerOptions,
    LayoutRevision,
    LayoutSteps,
    Observation,
    QueryController,
    StartWorker,
    StopWorker,
    Switch,
    controller_answer,
)
from tidegate.control.capacity import capacities
from tidegate.observation import ChangeProgressed
from tidegate.schemas import Device, Layout, Mig, Mps

S = 1_000_000_000


class Says(Controller):
    """A controller that says what it is told to say, once each."""

    def __init__(self, *answers: object) -> None:
        super().__init__(layout(workers_of(1)), ControllerOptions())
        self.answers = list(answers)
        self.asked = 0

    def step(self, observation: Observation) -> Layout | LayoutSteps | None:
        self.asked += 1
        answer: Any = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


def loop_of(controller: Controller, first: Layout, unanswered: Sequence[Request] = (), **limits: Any) -> ControlledLoop:
    choice = ControllerChoice.model_validate({"name": "says", "cooldown_s": 30, "min_improvement": 0, **limits})
    return ControlledLoop(controller, choice, first, lambda: unanswered)


def states(orders: Sequence[Action]) -> list[str]:
    return [order.state for order in orders if isinstance(order, ChangeProgressed)]


def reason(orders: Sequence[Action]) -> str:
    (told,) = (order for order in orders if isinstance(order, ChangeProgressed))
    return told.reason


def test_it_is_asked_every_so_often_and_not_while_a_change_is_under_way() -> None:
    says = Says(None, layout(workers_of(2)))
    loop = loop_of(says, layout(workers_of(1)))
    assert loop.next_wake_ns == 10 * S
    assert advance(loop, 9 * S) == []
    assert (advance(loop, 10 * S), says.asked, loop.next_wake_ns) == ([], 1, 20 * S)
    assert states(advance(loop, 25 * S)) == ["starting"]
    assert loop.next_wake_ns == 145 * S  # when it is undone
    assert advance(loop, 40 * S) == []
    assert states(followed(loop, 50 * S, loop.on_worker_warm(50 * S, 1))) == ["switched", "done"]
    assert says.asked == 2
    assert loop.next_wake_ns == 60 * S
    assert len(loop.revision.layout.workers) == 2


def test_a_controller_that_raises_changes_nothing_and_is_asked_again() -> None:
    says = Says(ValueError("broken"), 7, None)
    loop = loop_of(says, layout(workers_of(1)))
    assert reason(advance(loop, 10 * S)) == "ValueError: broken"
    assert reason(advance(loop, 20 * S)) == (
        "TypeError: a controller answers with a Layout, LayoutSteps or None, not with 7"
    )
    assert (advance(loop, 30 * S), says.asked) == ([], 3)


def test_a_layout_that_does_not_add_up_is_refused() -> None:
    homeless = layout({"w0": ["m"], "w1": ["n"]})
    loop = loop_of(Says(homeless.model_copy(update={"workers": homeless.workers[:1]})), homeless)
    assert "its layout does not add up: " in reason(advance(loop, 10 * S))


FULL = {f"old {start}": ["m"] for start in (0, 4)}
"""A GPU with two slices, both of which have to go before larger ones come."""
HALF_SLICES = {"old 0": Mig("3g.20gb", 0), "old 4": Mig("3g.20gb", 4), "new 0": Mig("4g.20gb", 0)}


def cut(*workers: str, models: Sequence[str] = ("m",)) -> Layout:
    """The workers on one GPU, each on a slice of its own."""
    whole = layout(dict.fromkeys(workers, models), slices=HALF_SLICES, on=dict.fromkeys(workers, 0))
    devices = [worker.model_copy(update={"device": Device("node", 0, "A100-40GB")}) for worker in whole.workers]
    return whole.model_copy(update={"workers": tuple(devices)})


def test_slices_change_in_steps_without_a_rest_between_them() -> None:
    """The old slice stops before the new one starts in its place."""
    steps = LayoutSteps((cut("old 4"), cut("old 4", "new 0")), keep=0.5, gain=0.2)
    loop = loop_of(Says(steps, None), cut(*FULL))
    orders = advance(loop, 10 * S)
    assert states(orders) == ["starting", "switched"], "there is nothing to start first"
    orders = followed(loop, 11 * S, loop.on_worker_drained(11 * S, 0))
    assert [type(order).__name__ for order in orders if not isinstance(order, ChangeProgressed)] == [
        "StopWorker",
        "StartWorker",
    ]
    assert states(orders) == ["done", "starting"]
    orders = followed(loop, 40 * S, loop.on_worker_warm(40 * S, 2))
    assert states(orders) == ["switched", "done"]
    assert [worker.name for worker in loop.revision.layout.workers] == ["old 4", "new 0"]
    assert loop.change is None
    assert loop.next_wake_ns == 50 * S


def test_the_same_change_in_one_step_has_no_room() -> None:
    loop = loop_of(Says(cut("old 4", "new 0")), cut(*FULL))
    assert "its new workers cannot start beside those that serve" in reason(advance(loop, 10 * S))


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (LayoutSteps((cut("old 4"), cut("old 4", "new 0")), 0.6, 0.2), "would have 50% of its capacity meanwhile: 60%"),
        (LayoutSteps((cut("old 4"), cut("old 4", "new 0")), 0.5, 0.01), "it sustains +1% load"),
        (LayoutSteps((cut("old 4", "new 0"),), 0.5, 0.2), "its new workers cannot start beside"),
        (LayoutSteps((), 0.5, 0.2), "ValueError: its change has no steps"),
    ],
)
def test_steps_that_take_too_much_or_gain_too_little_are_refused(steps: LayoutSteps, why: str) -> None:
    loop = loop_of(Says(steps), cut(*FULL), min_improvement=0.05)
    assert why in reason(advance(loop, 10 * S))
    assert loop.change is None


def test_a_step_that_fails_ends_the_change_where_it_is() -> None:
    steps = LayoutSteps((cut("old 4"), cut("old 4", "new 0")), keep=0.5, gain=0.2)
    loop = loop_of(Says(steps, None), cut(*FULL))
    advance(loop, 10 * S)
    followed(loop, 11 * S, loop.on_worker_drained(11 * S, 0))
    assert states(followed(loop, 12 * S, loop.on_worker_failed(12 * S, 2, "no memory"))) == ["undone"]
    assert [worker.name for worker in loop.revision.layout.workers] == ["old 4"]
    assert loop.change is None


def test_halt_ends_a_change_after_its_step() -> None:
    steps = LayoutSteps((cut("old 4"), cut("old 4", "new 0")), keep=0.5, gain=0.2)
    loop = loop_of(Says(steps), cut(*FULL))
    advance(loop, 10 * S)
    assert loop.halt(11 * S) == [], "the step has switched"
    assert states(followed(loop, 12 * S, loop.on_worker_drained(12 * S, 0))) == ["done"]
    assert loop.change is None


def test_a_refusal_is_told_once() -> None:
    narrow = layout({"w0": ["m"]})
    loop = loop_of(Says(*[narrow] * 3), layout({"w0": ["m", "n"]}))
    assert states(advance(loop, 10 * S)) == ["refused"]
    assert advance(loop, 20 * S) == []
    assert advance(loop, 30 * S) == []


def test_the_present_layout_under_other_names_changes_nothing() -> None:
    loop = loop_of(Says(layout({"other": ["m"]})), layout(workers_of(1)))
    assert advance(loop, 10 * S) == []


def test_a_dry_run_says_what_it_would_do_and_does_nothing() -> None:
    loop = loop_of(Says(*[layout(workers_of(3))] * 5), layout(workers_of(1)), dry_run=True)
    (told,) = advance(loop, 10 * S)
    assert isinstance(told, ChangeProgressed)
    assert (told.state, told.starts, told.stops, told.gpus) == ("proposed", ("w1", "w2"), (), 1.0)
    assert [advance(loop, at * S) for at in (20, 30)] == [[], []]  # it pauses as if it had done it
    assert states(advance(loop, 40 * S)) == ["proposed"]
    assert loop.revision == LayoutRevision.of(layout(workers_of(1)))


def test_a_request_that_comes_while_workers_start_may_be_too_large_for_what_follows() -> None:
    waiting: list[Request] = []
    loop = loop_of(Says(layout(workers_of(3), batch=2)), layout(workers_of(1)), waiting)
    assert states(advance(loop, 10 * S)) == ["starting"]
    waiting.append(Request(0, "m", 3, 11 * S))
    orders = loop.on_worker_warm(12 * S, 1)
    assert states(orders) == ["undone"]
    assert not any(isinstance(order, Switch) for order in orders)


def test_a_worker_that_is_lost_while_others_start_may_be_the_last_of_what_follows() -> None:
    says = Says(layout({"w0": ["m"], "w2": ["n"]}, on={"w2": 7}))
    loop = loop_of(says, layout({"w0": ["m"], "w1": ["m", "n"]}))
    assert states(advance(loop, 10 * S)) == ["starting"]
    assert loop.on_worker_failed(11 * S, 0, "killed") == []
    orders = loop.on_worker_warm(12 * S, 2)
    assert states(orders) == ["undone"]
    assert reason(orders) == "the workers that it has for model 'm' are away"
    loop.on_worker_returned(0)
    assert loop.away == set()


def test_halt_undoes_what_has_not_switched_and_asks_nobody() -> None:
    says = Says(layout(workers_of(2)), layout(workers_of(2)))
    loop = loop_of(says, layout(workers_of(1)))
    advance(loop, 10 * S)
    assert states(loop.halt(11 * S)) == ["undone"]
    assert loop.next_wake_ns == NEVER_NS
    assert (advance(loop, 100 * S), says.asked) == ([], 1)
    loop.resume(200 * S)
    assert loop.next_wake_ns == 210 * S
    assert states(advance(loop, 210 * S)) == ["starting"]


def test_one_that_is_not_enabled_is_not_asked() -> None:
    loop = loop_of(Says(layout(workers_of(2))), layout(workers_of(1)), enabled=False)
    assert loop.next_wake_ns == NEVER_NS
    assert advance(loop, 100 * S) == []


LAYOUTS = st.builds(
    lambda hosts, gpus, shares, batch: layout(
        {f"w{number}": sorted(names) for number, names in enumerate(hosts)},
        on={f"w{number}": gpu for number, gpu in enumerate(gpus)},
        slices={f"w{number}": Mps(percent=share) for number, share in enumerate(shares)},
        batch=batch,
    ),
    st.lists(st.sets(st.sampled_from("mno"), min_size=1), min_size=1, max_size=5),
    st.lists(st.integers(0, 3), min_size=5, max_size=5),
    st.lists(st.sampled_from([25, 50, 100]), min_size=5, max_size=5),
    st.sampled_from([2, 4]),
)
PAUSE_S = 30


def served(revision: LayoutRevision, away: Set[int]) -> set[str]:
    """The models that have a worker that is there."""
    return {name for number, worker in revision.workers.items() if number not in away for name in worker.hosts}


class Control(RuleBasedStateMachine):
    """Any controller, any luck: workers that come up, fail, drain, in any order, and time that passes in any steps."""

    @initialize(first=LAYOUTS)
    def begin(self, first: Layout) -> None:
        self.says = Says()
        self.waiting: list[Request] = []
        self.loop = loop_of(
            self.says, first, self.waiting, cooldown_s=PAUSE_S, startup_timeout_s=20, drain_timeout_s=15
        )
        self.now_ns = 0
        self.starting: set[int] = set()
        """The processes that were ordered and have not been told to be warm."""
        self.running = set(range(len(first.workers)))
        """The processes that are there."""
        self.serving = LayoutRevision.of(first)
        """The workers that the engine gives work."""
        self.draining: set[int] = set()
        self.away: set[int] = set()
        """The workers that serve and are gone for a while."""
        self.used: set[int] = set(self.running)
        self.ended_ns: int | None = None
        """When the last change was over."""
        self.before, self.after = self.serving, self.serving
        self.is_halted = False
        self.number = 0
        self.asked: Observation | None = None
        """What the controller thinks about."""
        self.refuses = False
        """Whether the engine refuses the next layout."""

    def carry_out(self, orders: Sequence[Action]) -> None:
        for order in orders:
            match order:
                case QueryController():
                    assert self.asked is None, "it was asked twice at a time"
                    assert not self.is_halted, "it was asked though control was stopped"
                    self.asked = order.observation
                case StartWorker():
                    assert order.worker_id not in self.used, "an id was used again"
                    assert not self.is_halted, "a worker was started though control was stopped"
                    self.used.add(order.worker_id)
                    self.running.add(order.worker_id)
                    self.starting.add(order.worker_id)
                case Switch():
                    assert not self.starting, "it switched though a worker is not warm"
                    assert set(order.revision.ids) <= self.running, "it switched to a worker that is not there"
                    if self.refuses:
                        self.refuses = False
                        self.carry_out(self.loop.on_switch_failed(self.now_ns, "too many"))
                        continue
                    gone = self.away
                    for name in served(self.serving, gone):
                        assert name in served(order.revision, gone), "it switched to workers that are away"
                    self.draining = set(self.serving.ids) - set(order.revision.ids)
                    for number in set(self.serving.ids) & set(order.revision.ids):
                        assert self.serving.workers[number] == order.revision.workers[number]
                    self.serving = order.revision
                    self.carry_out(self.loop.on_switched(self.now_ns))
                case StopWorker():
                    assert order.worker_id not in self.serving.ids, "a worker was stopped that serves"
                    self.running.discard(order.worker_id)
                    self.starting.discard(order.worker_id)
                    self.draining.discard(order.worker_id)
                case ChangeProgressed():
                    self.follow(order)

    def follow(self, told: ChangeProgressed) -> None:
        assert told.now_ns == self.now_ns
        if told.state == "starting":
            self.number += 1
            assert told.change == self.number
            assert self.ended_ns is None or self.now_ns >= self.ended_ns + PAUSE_S * S, "the changes are too many"
            assert self.loop.change is not None
            self.before, self.after = self.loop.change.before, self.loop.change.after
        elif told.state in {"done", "undone"}:
            self.ended_ns = self.now_ns
            assert set(self.serving.ids) == self.running, "a process was left over, or one is missing"
            assert self.serving == (self.before if told.state == "undone" else self.after)

    @rule(seconds=st.sampled_from([0.5, 3, 10, 40]))
    def time_passes(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)
        self.carry_out(self.loop.advance(self.now_ns))

    @precondition(lambda self: self.asked)
    @rule(wanted=st.none() | LAYOUTS, raises=st.integers(0, 9))
    def the_controller_answers(self, wanted: Layout | None, raises: int) -> None:
        self.says.answers = [ValueError("broken") if raises == 0 else wanted]
        asked, self.asked = self.asked, None
        assert asked is not None
        self.carry_out(self.loop.on_answer(self.now_ns, controller_answer(self.says, asked)))

    @rule()
    def the_engine_will_refuse(self) -> None:
        self.refuses = True

    @precondition(lambda self: self.starting)
    @rule(data=st.data())
    def one_is_warm(self, data: st.DataObject) -> None:
        worker_id = data.draw(st.sampled_from(sorted(self.starting)))
        self.starting.discard(worker_id)
        self.carry_out(self.loop.on_worker_warm(self.now_ns, worker_id))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def one_fails(self, data: st.DataObject) -> None:
        worker_id = data.draw(st.sampled_from(sorted(self.running - set(self.serving.ids)) or sorted(self.running)))
        if worker_id in self.serving.ids:
            self.away.add(worker_id)
        self.carry_out(self.loop.on_worker_failed(self.now_ns, worker_id, "killed"))

    @precondition(lambda self: self.away & set(self.serving.ids))
    @rule(data=st.data())
    def one_returns(self, data: st.DataObject) -> None:
        worker_id = data.draw(st.sampled_from(sorted(self.away & set(self.serving.ids))))
        self.away.discard(worker_id)
        self.loop.on_worker_returned(worker_id)

    @precondition(lambda self: self.draining)
    @rule(data=st.data())
    def one_has_drained(self, data: st.DataObject) -> None:
        worker_id = data.draw(st.sampled_from(sorted(self.draining)))
        self.carry_out(self.loop.on_worker_drained(self.now_ns, worker_id))

    @rule(rows=st.integers(1, 4), model=st.sampled_from("mno"))
    def a_request_comes(self, rows: int, model: str) -> None:
        takes = {its.name: its.pipelines[0].batch for its in self.serving.layout.models}
        if rows <= takes.get(model, 0):
            self.waiting.append(Request(len(self.waiting), model, rows, self.now_ns))

    @rule()
    def it_is_halted(self) -> None:
        self.is_halted = True
        self.carry_out(self.loop.halt(self.now_ns))

    @precondition(lambda self: self.is_halted)
    @rule()
    def it_is_resumed(self) -> None:
        self.is_halted = False
        self.loop.resume(self.now_ns)

    @invariant()
    def what_serves_is_there_and_known_to_the_loop(self) -> None:
        if hasattr(self, "loop"):
            assert set(self.serving.ids) <= self.running
            assert self.loop.revision == self.serving
            assert self.loop.away == self.away & set(self.serving.ids)

    @invariant()
    def no_model_has_less_than_with_the_smaller_of_the_two_layouts(self) -> None:
        if hasattr(self, "loop"):
            old, new = capacities(self.before.layout), capacities(self.after.layout)
            now = capacities(self.serving.layout)
            assert all(now[name] >= min(old[name], new.get(name, 0.0)) for name in old)

    @invariant()
    def no_request_that_has_come_is_without_a_home(self) -> None:
        if hasattr(self, "loop"):
            takes = {model.name: model.pipelines[0].batch for model in self.serving.layout.models}
            assert all(request.rows <= takes[request.model] for request in self.waiting)

    @invariant()
    def a_change_that_takes_too_long_ends(self) -> None:
        if hasattr(self, "loop") and self.loop.change is not None:
            assert self.loop.next_wake_ns < NEVER_NS


TestControl = Control.TestCase
TestControl.settings = settings(max_examples=examples(2), stateful_step_count=60)
