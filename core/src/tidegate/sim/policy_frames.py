"""Place in the file of a policy where an exception came from."""

import inspect
import traceback
from collections.abc import Collection, Iterable
from pathlib import Path

from tidegate.api import Policy
from tidegate.api.policy import HANDLER_NAMES


def policy_frame(error: BaseException, policy: type[Policy]) -> str:
    """Return ` (policy.py:12, in queue_changed: return [...])`, the last frame of the policy's own file; "": none.

    Of a method that returned None in place of commands, which fails where they are used, its first line counts.
    """
    methods = {
        name: member.__code__
        for parent in reversed(policy.__mro__)
        if parent.__module__.partition(".")[0] != "tidegate"  # the toolkit is not at fault for what it is given
        for name, member in vars(parent).items()
        if inspect.isfunction(member)
    }
    files = {code.co_filename for code in methods.values()}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if frames:
        last = frames[-1]
        return f" ({Path(last.filename).name}:{last.lineno}, in {last.name}: {last.line})"
    if not isinstance(error, TypeError) or "NoneType" not in str(error):
        return ""
    called = [methods[name] for name in _called_where_it_failed(error, policy, methods) if name in methods]
    places = " or ".join(f"{Path(code.co_filename).name}:{code.co_firstlineno}, {code.co_name}" for code in called)
    return f" ({places}: returns None, not a list of commands)" if places else ""


def _called_where_it_failed(error: BaseException, policy: type[Policy], own: Collection[str]) -> Iterable[str]:
    """Return the names that the failing function uses; where it is the caller of a handler, the handler or its names.

    `own`: names of the methods in the policy's own files.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    code = frame.f_code
    if (event := frame.f_locals.get("event")) is None or "handle" not in code.co_names:
        return code.co_names
    name = HANDLER_NAMES[type(event)]
    return [name] if name in own else getattr(policy, name).__code__.co_names
