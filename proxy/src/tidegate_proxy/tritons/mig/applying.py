"""Carrying changes out: all of them, or none."""

from collections.abc import Callable, Sequence

from tidegate.documents import Mig
from tidegate_proxy.tritons.mig.changes import Change
from tidegate_proxy.tritons.mig.interface import MigError, MigInstance, MigNode


def apply_changes(node: MigNode, changes: Sequence[Change], tell: Callable[[str], None] = lambda what: None) -> None:
    """Remove and make instances, GPU by GPU; `tell` is called with each step that was done.

    Where the driver refuses a step, or Ctrl-C stops it, those before it are taken back. Raises MigError, which says
    whether all is as it was; instances that come back may have other UUIDs than before, and those cut again are whole.
    """
    steps = 0
    try:
        for change in changes:
            for gone in change.go:
                node.destroy(change.gpu, gone)
                steps += 1
                tell(f"{change.gpu}: {gone} is gone")
            for wanted in change.come:
                node.create(change.gpu, wanted)
                steps += 1
                tell(f"{change.gpu}: {wanted.profile} at {wanted.start} is there")
    except (MigError, KeyboardInterrupt) as error:
        why = str(error) or "interrupted"
        try:
            _take_back(node, changes)
        except MigError as worse:
            raise MigError(
                f"{why}\nand it could not be taken back: {worse}\n`tidegate mig show` says what there is"
            ) from error
        raise MigError(
            f"{why}\n{'what was changed before is taken back' if steps else 'nothing is changed'}"
        ) from error


def _take_back(node: MigNode, changes: Sequence[Change]) -> None:
    """Bring about what there was before, from whatever there is: a step may have been half done."""
    before = {change.gpu.device.id: (*change.stay, *change.later, *change.go) for change in changes}
    for gpu in node.gpus():
        if gpu.device.id not in before:
            continue
        was = {_place(instance): instance for instance in before[gpu.device.id]}
        kept = set()
        for instance in gpu.instances:
            then = was.get(_place(instance))
            if then and (instance.uuid or not then.uuid):
                kept.add(_place(instance))
            else:
                node.destroy(gpu, instance)
        for profile, start in was.keys() - kept:
            node.create(gpu, Mig(profile, start))


def _place(instance: MigInstance) -> tuple[str, int]:
    assert instance.start is not None, "changes() knows all places"
    return instance.profile, instance.start
