"""Place in the file of a policy where an exception came from."""

import inspect
import traceback
from pathlib import Path

from tidegate.api import Policy


def policy_frame(error: BaseException, policy: type[Policy]) -> str:
    """Return ` (policy.py:12, in queue_changed: return [...])`, the last frame of the policy's own file; "": none."""
    files = {
        member.__code__.co_filename
        for parent in policy.__mro__
        if parent.__module__.partition(".")[0] != "tidegate"  # the toolkit is not at fault for what it is given
        for member in vars(parent).values()
        if inspect.isfunction(member)
    }
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if not frames:
        return ""
    last = frames[-1]
    return f" ({Path(last.filename).name}:{last.lineno}, in {last.name}: {last.line})"
