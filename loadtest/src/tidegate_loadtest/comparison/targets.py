"""The servers of a comparison: those that run, by name, or clusters emulated for it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidegate.workload import PolicyChoice, Scenario, layout_of
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.live import SendingOptions

_PLAIN: Final = "grpc://"
"""What an address begins with that is asked without TLS, though the others are asked with it."""


@dataclass(frozen=True)
class Target:
    """One server."""

    name: str
    """What the results call it."""
    address: str
    """HOST:PORT of its gRPC."""
    started_with: str = ""
    """The policy and its options, where it was started for the comparison."""
    is_plain: bool = False
    """Whether it speaks no TLS, though the others do."""

    def sending(self, sending: SendingOptions) -> SendingOptions:
        """How requests are sent to it, where they are sent so to the others."""
        return replace(sending, tls=None) if self.is_plain else sending


def parse_targets(texts: Iterable[str]) -> list[Target]:
    """`NAME=HOST:PORT`, or `NAME=grpc://HOST:PORT`, each a text of its own or several with commas.

    Raises LoadTestError for anything else.
    """
    targets = [_parse_target(part) for text in texts for part in text.split(",") if part.strip()]
    names = [target.name for target in targets]
    if doubles := sorted({name for name in names if names.count(name) > 1}):
        raise LoadTestError(f"--targets: {doubles[0]!r} is named twice: give each its own name")
    if len(targets) < 2:
        raise LoadTestError(
            f"--targets: a comparison needs two servers at least, {len(targets)} given: "
            "--targets direct=localhost:8001 tidegate=localhost:8101"
        )
    return targets


def _parse_target(text: str) -> Target:
    name, equals, written = text.strip().partition("=")
    address = written.removeprefix(_PLAIN)
    host, colon, port = address.rpartition(":")
    if not (name and equals and host and colon and port.isdecimal()):
        raise LoadTestError(f"--targets {text.strip()!r}: write NAME=HOST:PORT, such as direct=localhost:8001")
    return Target(name, address, is_plain=address != written)


@contextmanager
def emulated_targets(
    scenario: Scenario,
    choices: Sequence[PolicyChoice],
    *,
    seed: int,
    work: Path,
    starting: Callable[[str], None] | None = None,
) -> Iterator[list[Target]]:
    """A cluster of the scenario's for every policy, all at once, until the block is left; only one at a time has load.

    The choices are those of `plan_runs`, which has checked them. Their files go into the folder `work`; `starting` is
    told of each. Raises LoadTestError where they are more than a machine can hold, and where one does not start.
    """
    from tidegate_loadtest.emulated import (  # noqa: PLC0415 - of the extra `emulated`
        MAX_INSTANCES,
        emulated_cluster,
    )

    processes = len(choices) * sum(len(worker.hosts) for worker in layout_of(scenario).workers)
    if processes > MAX_INSTANCES:
        raise LoadTestError(
            f"workers: {processes} models on the workers of {len(choices)} policies, each a process: emulate at most "
            f"{MAX_INSTANCES}, with fewer policies, workers or models"
        )
    with ExitStack() as running:
        targets = []
        for number, choice in enumerate(choices):
            if starting:
                starting(choice.title)
            own = work / str(number)
            own.mkdir()
            cluster = running.enter_context(emulated_cluster(scenario, choice, seed, own))
            options = ", ".join(f"{name}={value}" for name, value in choice.options.items())
            targets.append(Target(choice.title, cluster.address, f"policy {choice.name} ({options or 'its defaults'})"))
        yield targets
