"""Control loop: has the controller asked, lets the governor judge the answer, and carries out a change.

Pure, like the engine: a driver calls `advance` when `next_wake_ns` has come, reports the state of workers, and carries
out the actions that each call returns.
"""

from collections.abc import Callable, Collection, Iterable

from tidegate.api import NEVER_NS, Request
from tidegate.control.controller import ControllerAnswer, LayoutSteps, Observation
from tidegate.control.governor import Governor, changes_nothing
from tidegate.control.layout_change import Action, LayoutChange, QueryController, progress
from tidegate.control.layout_revision import LayoutRevision
from tidegate.control.monitor import Monitor
from tidegate.control.settings import ControllerChoice
from tidegate.schemas import Layout

Unanswered = Callable[[], Collection[Request]]
"""Function that returns the requests that arrived and have not ended; called only when they matter."""


class ControlLoop:
    """Control loop of one controller: has it asked, lets the governor judge, and carries out changes.

    Add its `monitor` to the engine's reducer (`Reducer.add_listener`). Every notification returns actions for the
    driver, which owns the controller: to `QueryController` it replies with `on_answer`.
    """

    def __init__(
        self,
        choice: ControllerChoice,
        layout: Layout,
        unanswered: Unanswered,
        *,
        now_ns: int = 0,
    ) -> None:
        self.revision = LayoutRevision.of(layout)
        """The current revision of the layout."""
        self.change: LayoutChange | None = None
        """Change in progress."""
        self._steps: list[Layout] = []
        """Layouts that follow the change in progress, without a rest."""
        self.away: set[int] = set()
        """The workers of the revision that are not there."""
        self.monitor = Monitor(now_ns)
        self._choice = choice
        self._governor = Governor(choice)
        self._unanswered = unanswered
        self._every_ns = round(choice.interval_s * 1e9)
        self._due_ns = now_ns + self._every_ns
        self._enabled = choice.enabled
        self._next_id = len(layout.workers)
        self._number = 0
        self._asked: Observation | None = None
        """The last observation that the controller was asked about, until it answers."""
        self._refused: tuple[Layout | None, str] | None = None
        """Last rejected layout, and why: logged once."""

    @property
    def is_enabled(self) -> bool:
        """Whether the controller is asked."""
        return self._enabled

    @property
    def next_wake_ns(self) -> int:
        """Latest time, in ns, for the next call of `advance`."""
        if self.change is not None:
            return self.change.limit_ns
        return self._due_ns if self._enabled and self._asked is None else NEVER_NS

    def advance(self, now_ns: int) -> list[Action]:
        """Handle the passage of time: ask the controller if due, end a change that takes too long."""
        if self.change is not None:
            return self._follow(now_ns, self.change.pass_time(now_ns))
        if now_ns < self.next_wake_ns:
            return []
        self._due_ns += self._every_ns * ((now_ns - self._due_ns) // self._every_ns + 1)
        self._asked = self.monitor.observe(now_ns, self.revision, self._unanswered(), self.away)
        return [QueryController(self._asked)]

    def on_answer(self, now_ns: int, answer: ControllerAnswer) -> list[Action]:
        """Handle the controller's answer to `QueryController`; an answer that comes after `halt` is ignored."""
        observed, self._asked = self._asked, None
        if observed is None or not self._enabled:
            return []
        return self._judge(now_ns, observed, answer)

    def on_worker_warm(self, now_ns: int, worker_id: int) -> list[Action]:
        """Handle a starting worker that has loaded and run its partitions."""
        change = self.change
        if change is None:
            return []
        largest_rows = self.monitor.largest_rows(self._unanswered())
        if objection := self._governor.unserved_requests_reason(self.revision, change.after, largest_rows, self.away):
            return self._follow(now_ns, change.undo(now_ns, objection))
        return self._follow(now_ns, change.on_worker_warm(now_ns, worker_id))

    def on_worker_failed(self, now_ns: int, worker_id: int, why: str) -> list[Action]:
        """Handle a worker's process that failed to start or ended; a serving worker may come back.

        `why`: error text, for logs.
        """
        if worker_id in self.revision.ids:
            self.away.add(worker_id)
        return [] if self.change is None else self._follow(now_ns, self.change.on_worker_failed(now_ns, worker_id, why))

    def on_worker_returned(self, worker_id: int) -> None:
        """Handle the return of a serving worker that was gone."""
        self.away.discard(worker_id)

    def on_switched(self, now_ns: int) -> list[Action]:
        """Handle the engine's switch to the new layout."""
        change = self.change
        if change is None:
            return []
        actions = change.on_switched(now_ns)
        self.revision = change.revision
        self.away.intersection_update(self.revision.ids)
        return self._follow(now_ns, actions)

    def on_switch_failed(self, now_ns: int, why: str) -> list[Action]:
        """Handle the engine's rejection of the new layout (`why`); the engine keeps the old one."""
        return [] if self.change is None else self._follow(now_ns, self.change.on_switch_failed(now_ns, why))

    def on_worker_drained(self, now_ns: int, worker_id: int) -> list[Action]:
        """Handle an old worker that has drained."""
        return [] if self.change is None else self._follow(now_ns, self.change.on_worker_drained(now_ns, worker_id))

    def halt(self, now_ns: int) -> list[Action]:
        """Stop all control at once: undo a change before its switch; draining continues."""
        self._enabled = False
        self._steps = []
        return [] if self.change is None else self._follow(now_ns, self.change.undo(now_ns, "control was stopped"))

    def resume(self, now_ns: int) -> None:
        """Resume control after `halt`."""
        if not self._enabled:
            self._enabled, self._due_ns = True, now_ns + self._every_ns
            self.monitor.skip_to(now_ns, self._unanswered())

    def _judge(self, now_ns: int, observed: Observation, answer: ControllerAnswer) -> list[Action]:
        if isinstance(answer, str):
            self._governor.reset_stabilization()
            return self._refuse(now_ns, None, answer)
        keep, gain = (answer.keep, answer.gain) if isinstance(answer, LayoutSteps) else (0.0, None)
        path = self._path(answer.layouts if isinstance(answer, LayoutSteps) else filter(None, [answer]))
        if not path or changes_nothing(self.revision, path[-1]):
            self._governor.reset_stabilization()
            return []
        wanted = path[-1]
        # What came while the controller thought counts, too.
        largest_rows = self.monitor.largest_rows(self._unanswered())
        objection = self._governor.rejection_reason(
            self.revision, wanted, observed, self.away, steps=path[:-1], keep=keep, gain=gain
        )
        if objection := objection or self._governor.unserved_requests_reason(
            self.revision, wanted, largest_rows, self.away
        ):
            return self._refuse(now_ns, wanted, objection)
        if self._governor.in_cooldown(now_ns):
            return []
        self._refused = None
        if self._choice.dry_run:
            self._number += 1
            self._governor.on_change_over(now_ns)
            return [progress(now_ns, self._number, "proposed", self.revision, wanted)]
        self._steps = [each.layout for each in path]
        return self._begin_step(now_ns)

    def _path(self, layouts: Iterable[Layout]) -> list[LayoutRevision]:
        """The revisions that follow each other, the target last."""
        path, revision, next_id = list[LayoutRevision](), self.revision, self._next_id
        for layout in layouts:
            revision = revision.followed_by(layout, next_id)
            next_id = max(next_id, *(number + 1 for number in revision.ids))
            path.append(revision)
        return path

    def _begin_step(self, now_ns: int) -> list[Action]:
        """Begin the change to the next layout."""
        wanted = self.revision.followed_by(self._steps.pop(0), self._next_id)
        self._number += 1
        self._next_id = max(self._next_id, *(number + 1 for number in wanted.ids))
        self.change = LayoutChange(
            self._number,
            self.revision,
            wanted,
            start_limit_ns=round(self._choice.startup_timeout_s * 1e9),
            drain_limit_ns=round(self._choice.drain_timeout_s * 1e9),
        )
        return self._follow(now_ns, self.change.begin(now_ns))

    def _refuse(self, now_ns: int, wanted: LayoutRevision | None, why: str) -> list[Action]:
        """Say why nothing changes; once, as long as the same is wanted."""
        same = (None if wanted is None else wanted.layout, "" if wanted else why)
        if same == self._refused:
            return []
        self._refused = same
        return [progress(now_ns, 0, "refused", self.revision, wanted or self.revision, why)]

    def _follow(self, now_ns: int, actions: list[Action]) -> list[Action]:
        """Continue the change in progress."""
        change = self.change
        if change is None:
            return actions
        if change.is_over:
            self.change = None
            if change.state == "done" and self._steps:
                return [*actions, *self._begin_step(now_ns)]
            self._steps = []
            self._governor.on_change_over(now_ns, undone=change.state == "undone")
            self._due_ns = now_ns + self._every_ns
            self.monitor.skip_to(now_ns, self._unanswered())
        return actions
