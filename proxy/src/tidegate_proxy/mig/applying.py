"""Carrying changes out: all of them, or none."""

from collections.abc import Callable, Sequence

from tidegate.documents import Mig
from tidegate_proxy.mig.changes import Change
from tidegate_proxy.mig.interface import MigError, MigGpu, MigNode


def apply_changes(node: MigNode, changes: Sequence[Change], tell: Callable[[str], None] = lambda what: None) -> None:
    """Remove and make instances, GPU by GPU; `tell` is called with each step that was done.

    Where the driver refuses a step, those before it are taken back in reverse. Raises MigError, which says whether all
    is as it was; instances that were taken back may have other UUIDs than before, and those cut again are whole.
    """
    done: list[tuple[MigGpu, Mig, bool]] = []
    try:
        for change in changes:
            for gone in change.go:
                node.destroy(change.gpu, gone)
                assert gone.start is not None, "changes() knows all places"
                done.append((change.gpu, Mig(gone.profile, gone.start), False))
                tell(f"{change.gpu}: {gone} is gone")
            for wanted in change.come:
                node.create(change.gpu, wanted)
                done.append((change.gpu, wanted, True))
                tell(f"{change.gpu}: {wanted.profile} at {wanted.start} is there")
    except MigError as error:
        try:
            _take_back(node, done)
        except MigError as worse:
            raise MigError(
                f"{error}\nand it could not be taken back: {worse}\n`tidegate mig show` says what there is"
            ) from error
        raise MigError(
            f"{error}\nwhat was changed before is taken back" if done else f"{error}\nnothing is changed"
        ) from error


def _take_back(node: MigNode, done: Sequence[tuple[MigGpu, Mig, bool]]) -> None:
    for gpu, mig, was_made in reversed(done):
        if not was_made:
            node.create(gpu, mig)
            continue
        (now,) = (each for each in node.gpus() if each.device.id == gpu.device.id)
        (made,) = (instance for instance in now.instances if instance.mig == mig)
        node.destroy(gpu, made)
