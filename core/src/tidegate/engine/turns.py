"""What the policy is told of the requests that wait: each when its turn has come, and no longer than it is."""

from tidegate.api import Drop, ProfileUpdated, Request, RequestArrived, RequestCancelled
from tidegate.engine.policy_runner import IN_VAIN, PolicyRunner
from tidegate.engine.state import State

OUT_OF_TURN = "share"
"""Why a request is dropped whose time ran out while it was the turn of others: its client had more than they."""


class Turns:
    """Carries out what `state.sharing` says of whose turn it is."""

    def __init__(self, state: State, policy: PolicyRunner) -> None:
        self._state = state
        self._policy = policy

    def wait(self, event: RequestArrived) -> None:
        """Let the policy know of a request at once, or when it is its turn."""
        state = self._state
        if event.request.is_late:
            state.late.add(event.request)
            return
        if state.reprieved:
            self._policy.follow_doubts()  # they wait, too: whose turn it is depends on all that do
        if state.sharing.admits(event.now_ns, event.request):
            state.queued[event.request.id] = event.request
            self._policy.inform(event)

    def settle(self) -> None:
        """At the end of an event: let the policy know of what it is the turn of, and what workers are left over for."""
        if self._state.sharing.is_contended:
            self._take()
        if self._state.late.waits:
            self._take_late()

    def _take(self) -> None:
        """Let the policy forget what is not its turn any more, and know of what was held, as it is the turn of that."""
        state, now_ns = self._state, self._state.now_ns
        sharing = state.sharing
        if excessive := sharing.excess(now_ns):
            called_back = []
            for excess in reversed(excessive):
                if state.queued.pop(excess.id, None):  # unless the policy ran or dropped it when told of another
                    called_back.append(excess)
                    self._policy.inform(RequestCancelled(now_ns, excess.id))
            for excess in reversed(called_back):
                sharing.call_back(excess)
            self._policy.settle()  # what the policy gave up wrongly meanwhile waits, too
        for hopeless in sharing.hopeless(now_ns):
            if self._is_doubted(hopeless):
                sharing.reprieve(hopeless)
            else:
                self._drop(hopeless, OUT_OF_TURN, seen=False)
        self._policy.settle()  # so does what was expected of those who will not come
        while following := sharing.next(now_ns):
            state.enqueue_again(following)
            self._policy.inform(RequestArrived(now_ns, following))
            self._policy.settle()

    def give_up_waiting(self) -> None:
        """Give up what waits in vain."""
        state = self._state
        if state.hurried.earliest_ns <= state.now_ns:
            self._give_up_hurried()
        if state.late.earliest_ns <= state.now_ns:
            self._give_up_expired()

    def _give_up_hurried(self) -> None:
        """Drop what cannot be in time any more where it waits, behind requests that have more time."""
        state = self._state
        for hopeless in state.hurried.pop_hopeless(state.now_ns):
            if hopeless.id not in state.queued:
                continue  # the policy ran or dropped it when told of another
            if hopeless.deadline_ns >= state.now_ns and self._is_doubted(hopeless):
                state.hurried.watch(hopeless)
            else:
                del state.queued[hopeless.id]
                self._drop(hopeless, IN_VAIN)
                self._policy.inform(RequestCancelled(state.now_ns, hopeless.id))

    def _is_doubted(self, hopeless: Request) -> bool:
        """Whether too long an expectation may be why a request is hopeless: the policy is told what is expected now."""
        doubted = self._state.expectations.doubt(self._state.now_ns, hopeless, self._state.fleet.idle)
        for key in doubted:
            profile = self._state.expectations.expect_after_doubt(key)
            self._policy.inform(ProfileUpdated(self._state.now_ns, profile))
        return bool(doubted)

    def _drop(self, request: Request, reason: str, *, seen: bool = True) -> None:
        dropped = Drop(request.id, reason)
        if self._state.give_up(request, dropped, seen=seen):
            self._state.commands.append(dropped)

    # Late requests -----------------------------------------------------------------------------------------------

    def _give_up_expired(self) -> None:
        """Drop what waits to be served late, and whose client waits no longer."""
        state = self._state
        for request_id in state.late.pop_expired(state.now_ns):
            if expired := state.late.remove(request_id):
                self._drop(expired, IN_VAIN)
            elif (shown := state.queued.get(request_id)) and shown.is_late:
                del state.queued[request_id]
                self._drop(shown, IN_VAIN)
                self._policy.inform(RequestCancelled(state.now_ns, request_id))

    def _take_late(self) -> None:
        """Let the policy know of late requests while workers are left over for them, and forget them otherwise."""
        state, late = self._state, self._state.late
        for shown in late.to_call_back():
            if state.queued.pop(shown.id, None):  # unless the policy ran it when told of another
                self._policy.inform(RequestCancelled(state.now_ns, shown.id))
                late.call_back(shown)
                self._policy.settle()
        while request := late.next():
            self._policy.show_late([request])
            self._policy.settle()

    def begin_anew(self) -> None:
        """Workers came or went: let the policy know of all that waits, from which turns are taken anew."""
        state = self._state
        self._policy.follow_doubts()  # what was given up wrongly waits, too
        released = self.release_all()
        state.sharing.workers_changed(state.now_ns)
        for request in released:
            if request.id in state.queued:
                self._policy.inform(RequestArrived(state.now_ns, request))

    def release_all(self) -> list[Request]:
        """What was held and still has workers is queued."""
        state = self._state
        released = []
        for request in state.sharing.release_all():
            if state.fleet.serves(request):
                state.enqueue_again(request)
                released.append(request)
            else:
                state.fail_homeless(request)
        return released
