"""Targets of a comparison: running servers, by name, or clusters emulated for it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidegate.workload import PolicyChoice, Scenario, layout_of
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.live import SendingOptions

_PLAIN: Final = "grpc://"
"""Prefix of an address that is queried without TLS though the others use it."""


@dataclass(frozen=True)
class Target:
    """Server that is compared with others."""

    name: str
    """Name in the results."""
    address: str
    """HOST:PORT of its gRPC service."""
    started_with: str = ""
    """Policy and its options if the server was started for the comparison, else ""."""
    is_plain: bool = False
    """Whether the target uses no TLS, though the other targets do."""

    def sending(self, sending: SendingOptions) -> SendingOptions:
        """Return the sending options for this target, given those of all."""
        return replace(sending, tls=None) if self.is_plain else sending


def parse_targets(texts: Iterable[str]) -> list[Target]:
    """Parse `NAME=HOST:PORT` or `NAME=grpc://HOST:PORT`, one per text or several separated by commas.

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
    """Run an emulated cluster of the scenario for every policy at once, until the block is left.

    Only one at a time gets load. `choices` come from `plan_runs`, which has checked them. `work`: folder for their
    files; `starting`: called with the name of each. Raises LoadTestError if there are too many for one machine, or one
    fails to start.
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
