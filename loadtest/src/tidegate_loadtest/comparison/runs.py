"""Runs of a comparison, in the order A B, then B A, and so on, so that drift affects all targets alike."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import uvloop
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb

from tidegate.workload import PolicyChoice, Scenario, draw_requests
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.connection import ANSWER_WITHIN_S, Connection, LoadTestError
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.open_loop import Progress
from tidegate_loadtest.scenario_requests import ScenarioRequests
from tidegate_loadtest.scenario_run import LiveResult, LiveRun, run_live
from tidegate_loadtest.server_stats import count_instances
from tidegate_loadtest.tenant_headers import TenantHeaders


@dataclass(frozen=True)
class BatchingSettings:
    """Batching settings of one server."""

    server: str
    """Name and version of the server."""
    models: dict[str, str]
    """Batching of each model, as text."""


async def read_settings(connection: Connection, models: Iterable[str]) -> BatchingSettings:
    """Query the settings of a server. Raises LoadTestError for an unknown model."""
    found = {name: in_words(await connection.model_config(name)) for name in models}
    request = pb.ServerMetadataRequest()
    try:
        server = await connection.ask(connection.stubs[0].ServerMetadata(request, timeout=ANSWER_WITHIN_S))
    except LoadTestError:  # it may restrict its metadata, and can be measured anyway
        return BatchingSettings("unknown", found)
    return BatchingSettings(f"{server.name} {server.version}".strip(), found)


def in_words(config: model_config_pb2.ModelConfig) -> str:
    """Describe a model's batching: `up to 16 rows, dynamic_batching (delay 10 ms), 2 instances`."""
    size = f"up to {config.max_batch_size} rows" if config.max_batch_size > 0 else "unbatched"
    if config.HasField("ensemble_scheduling"):
        return f"{size}, ensemble of {', '.join(step.model_name for step in config.ensemble_scheduling.step)}"
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        details = [f"delay {batching.max_queue_delay_microseconds / 1000:g} ms"]
        if batching.preferred_batch_size:
            details.append(f"preferred {', '.join(map(str, batching.preferred_batch_size))}")
        policy = batching.default_queue_policy
        if policy.default_timeout_microseconds:
            details.append(f"timeout {policy.default_timeout_microseconds / 1000:g} ms")
        if policy.max_queue_size:
            details.append(f"queue of at most {policy.max_queue_size}")
        how = f"dynamic_batching ({', '.join(details)})"
    else:
        how = "no dynamic_batching"
    instances = count_instances(config.instance_group)
    return f"{size}, {how}, {instances} instance{'s' * (instances > 1)}"


DETAIL_S = 0.001
"""Length of the detail kept of every run, in seconds; single requests are not shown."""
Shown = Callable[[int, str, Progress], None]
"""Progress callback, called with (finished runs, name of the current run, its progress)."""


@dataclass(frozen=True)
class Comparison:
    """Results of a comparison: its runs and batching settings."""

    scenario: Scenario
    targets: Sequence[Target]
    seeds: Sequence[int]
    """Seeds, one for each requested round."""
    lives: Sequence[LiveResult]
    """Runs, in the order in which they ran."""
    stopped: str | None = None
    """Reason why the comparison ended before its last round (a server became unreachable); None if it did not."""
    settings: Mapping[str, BatchingSettings] = field(default_factory=dict)
    """Batching settings of each target, by its name."""

    def of(self, target: Target) -> list[LiveResult]:
        """Return the runs against a target, by round, of the complete rounds."""
        by_seed = {live.run.seed: live for live in self.lives if live.run.policy.title == target.name}
        return [by_seed[seed] for seed in self.complete]

    @property
    def complete(self) -> list[int]:
        """Seeds of the rounds in which every target had its run."""
        ran = [live.run.seed for live in self.lives]
        return [seed for seed in self.seeds if ran.count(seed) == len(self.targets)]


def check_targets(
    scenario: Scenario, targets: Sequence[Target], sending: SendingOptions, *, seed: int
) -> dict[str, BatchingSettings]:
    """Check that every server can take the first round, and read its batching settings; send no inference request.

    Raises LoadTestError, with the target's name, for what would make its runs fail: an unreachable server, a model that
    is missing or takes fewer rows, inputs that cannot be made.
    """
    requests = draw_requests(scenario, seed)
    TenantHeaders(requests, scenario.folder)  # raises for credentials that cannot be read

    async def check(target: Target) -> BatchingSettings:
        async with Connection(target.address, tls=target.sending(sending).tls) as connection:
            await ScenarioRequests.drawn(connection, requests, shapes=sending.shapes, seed=seed, inputs=sending.inputs)
            return await read_settings(connection, requests.models)

    settings = {}
    for target in targets:
        try:
            settings[target.name] = uvloop.run(check(target))
        except LoadTestError as error:
            raise LoadTestError(f"{target.name}: {error}") from error
    return settings


def compare(
    scenario: Scenario,
    targets: Sequence[Target],
    sending: SendingOptions,
    *,
    rounds: int,
    seed: int,
    shown: Shown | None = None,
) -> Comparison:
    """Run the scenario on every target, `rounds` times; round number i has the seed `seed + i`.

    Within a round all targets get the same requests at the same instants; the first target rotates. Raises
    LoadTestError before any load if `check_targets` does. If a server becomes unreachable, its requests fail, and the
    comparison ends where it would have to be queried again.
    """
    settings = check_targets(scenario, targets, sending, seed=seed)
    seeds = [seed + number for number in range(rounds)]
    lives: list[LiveResult] = []
    for number, own_seed in enumerate(seeds):
        for target in _in_turn(targets, number):
            name = f"round {number + 1} of {rounds}, {target.name}"

            def report(progress: Progress, name: str = name) -> None:
                if shown:
                    shown(len(lives), name, progress)

            choice = PolicyChoice(name=target.name)
            run = LiveRun(scenario, choice, own_seed, target.sending(sending), target.address, gantt_s=DETAIL_S)
            try:
                lives.append(run_live(run, progress=report))
            except LoadTestError as error:
                return Comparison(scenario, targets, seeds, lives, f"{name}: {error}", settings)
    return Comparison(scenario, targets, seeds, lives, settings=settings)


def _in_turn(targets: Sequence[Target], number: int) -> list[Target]:
    """The targets of a round: another one is the first in each."""
    first = number % len(targets)
    return [*targets[first:], *targets[:first]]
