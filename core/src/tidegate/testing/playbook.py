"""Transcript tests: events, and the commands that the policy is expected to return.

assert (
    Playbook(policy)
    >> RequestArrived(now_ns=0, request=request)
    << SetTimer(key=("resnet", "", ""), at_ns=2_000)
    >> TimerFired(now_ns=2_000, key=("resnet", "", ""))
    << Dispatch(batch)
)
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

from tidegate.api import (
    NEVER_NS,
    AnyCommand,
    AnyEvent,
    Model,
    Policy,
    PolicySpec,
    Profile,
    Request,
    RequestArrived,
    Setup,
    Worker,
)
from tidegate.host import make_policy


class TranscriptMismatch(AssertionError):
    """Error: the policy deviated from the transcript; the message shows both side by side."""


class Playbook:
    """Transcript of a policy: `>>` sends an event, `<<` expects the next command.

    Its truth value is True once every command was expected.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._transcript: list[str] = []
        self._pending: list[AnyCommand] = []

    @classmethod
    def of(
        cls,
        policy: type[Policy],
        models: Sequence[Model],
        workers: Sequence[Worker],
        profiles: Sequence[Profile],
        **options: Any,  # noqa: ANN401 - the policy's own
    ) -> Self:
        """Return a Playbook of a new policy.

        `options`: the policy's options as keywords. Raises PluginError for invalid ones.
        """
        spec = PolicySpec(policy.__name__, "", policy)
        return cls(make_policy(spec, Setup(tuple(models), tuple(workers), tuple(profiles)), options))

    def __rshift__(self, event: AnyEvent) -> Self:
        """Something happens."""
        self._expect_nothing_more()
        self._transcript.append(f">> {event}")
        self._pending = list(self.policy.handle(event))
        return self

    def __lshift__(self, expected: AnyCommand) -> Self:
        """The policy's next command is this one."""
        if not self._pending:
            self._fail(f"<< {expected}", "<< nothing")
        command = self._pending.pop(0)
        if command != expected:
            self._fail(f"<< {expected}", f"<< {command}")
        self._transcript.append(f"<< {command}")
        return self

    def __bool__(self) -> bool:
        """Everything that was done was expected."""
        self._expect_nothing_more()
        return True

    def commands(self) -> Sequence[AnyCommand]:
        """Return the commands for the last event, to inspect rather than compare."""
        taken, self._pending = self._pending, []
        self._transcript.extend(f"<< {command}" for command in taken)
        return taken

    def _expect_nothing_more(self) -> None:
        if self._pending:
            self._fail("<< nothing more", "\n         ".join(f"<< {command}" for command in self._pending))

    def _fail(self, expected: str, actual: str) -> None:
        timeline = "\n".join(f"         {line}" for line in self._transcript)
        raise TranscriptMismatch(f"\n{timeline}\nexpected {expected}\nactual   {actual}")


def arrived(
    request_id: int,
    now_ns: int = 0,
    *,
    model: str,
    rows: int = 1,
    due_ns: int = NEVER_NS,
    merge_key: str = "",
    app: str = "",
    shape: str = "",
) -> RequestArrived:
    """Return the arrival of a request of `rows` rows for a model, with the deadline `due_ns`. Times are in ns.

    `merge_key`, `app`, `shape`: fields of `Request`.
    """
    return RequestArrived(now_ns, Request(request_id, model, rows, now_ns, due_ns, merge_key, app, shape))


PlaybookOf = Callable[..., Playbook]
"""Type of the fixture `playbook_of` (`pytest_plugin`)."""
