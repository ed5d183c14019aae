"""Contenders that serve a dynamic model: Triton with several settings of its batcher, and Tidegate before Triton."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

from google.protobuf import text_format
from rich.console import Console
from tritonclient.grpc import model_config_pb2

from bench.dynamic_models.case import Case
from tidegate.workload import Scenario
from tidegate_loadtest.comparison.runs import Comparison, compare
from tidegate_loadtest.comparison.table import print_comparison
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.processes import serving_command
from tidegate_loadtest.progress_bar import progress_bar
from tidegate_proxy.tritons.embedded import EmbeddedTriton

DELAYS = (0.02, 0.1)
"""Maximum queue delays of Triton's batcher, as shares of the SLO."""
PATIENCE = 7 / 8
"""Queue timeout of Triton, if set, as a share of the SLO."""


@dataclass(frozen=True)
class Batcher:
    """Settings of Triton's `dynamic_batching`."""

    rows: int
    """Maximum batch size in rows."""
    delay_ms: float = 0.0
    timeout_ms: float | None = None
    """Queue timeout in ms after which a request is rejected; None: no timeout."""


@dataclass(frozen=True)
class Contender:
    """A configuration that serves the model."""

    name: str
    batcher: Batcher | None = None
    """Triton's batcher; None: Tidegate forms the batches."""
    config: Path | None = None
    """Configuration file of Tidegate, if it has one."""


def contenders(case: Case, configurations: Mapping[str, Path]) -> list[Contender]:
    """Return the contenders: Triton's settings, the default first, then Tidegate's, the default first.

    `configurations`: configuration files of further Tidegates, by name.
    """
    timeout_ms = PATIENCE * case.slo_ms
    tritons = {"Triton": Batcher(case.max_batch)}
    for share in DELAYS:
        tritons[f"Triton, delay {share * case.slo_ms:g} ms"] = Batcher(case.max_batch, share * case.slo_ms)
    tritons["Triton, timeout"] = Batcher(case.max_batch, timeout_ms=timeout_ms)
    tritons["Triton, batch 1"] = Batcher(case.rows)
    tritons["Triton, batch 1, timeout"] = Batcher(case.rows, timeout_ms=timeout_ms)
    return [
        *(Contender(name, batcher) for name, batcher in tritons.items()),
        Contender("Tidegate"),
        *(Contender(f"Tidegate {name}", config=path) for name, path in configurations.items()),
    ]


def copy_with_batcher(generated: Path, repository: Path, model: str, batcher: Batcher) -> None:
    """Copy a generated repository and enable Triton's batcher in it."""
    copytree(generated, repository)
    file = repository / model / "config.pbtxt"
    config = text_format.Parse(file.read_text(), model_config_pb2.ModelConfig())
    config.max_batch_size = batcher.rows
    config.dynamic_batching.max_queue_delay_microseconds = round(batcher.delay_ms * 1000)
    if batcher.timeout_ms is not None:
        queue = config.dynamic_batching.default_queue_policy
        queue.default_timeout_microseconds = round(batcher.timeout_ms * 1000)
    file.write_text(text_format.MessageToString(config))


@contextmanager
def running(
    work: Path, generated: Path, model: str, chosen: Sequence[Contender], starting: Callable[[str], object]
) -> Iterator[list[Target]]:
    """Start every contender with a Triton of its own until the block ends; yield their addresses.

    `work`: folder for their files; `generated`: model repository as `tidegate generate` writes it; `case`: the model;
    `chosen`: the contenders; `starting`: called with each contender's name before it starts.
    """
    with ExitStack() as stack:
        targets = []
        for number, contender in enumerate(chosen):
            starting(contender.name)
            own = work / str(number)
            own.mkdir()
            repository = generated
            if contender.batcher is not None:
                repository = own / "models"
                copy_with_batcher(generated, repository, model, contender.batcher)
            triton = stack.enter_context(EmbeddedTriton([repository], log=own / "triton.log"))
            address = triton.grpc_address
            if contender.batcher is None:
                config = ["--config", str(contender.config)] if contender.config else []
                command = ["serve", "--triton", address, "--listen", "127.0.0.1:0", *config]
                address = stack.enter_context(serving_command(*command, log=own / "tidegate.log"))
            targets.append(Target(contender.name, address))
        yield targets


def compared(
    console: Console, scenario: Scenario, targets: Sequence[Target], sending: SendingOptions, rounds: int, title: str
) -> Comparison:
    """Send a scenario to the contenders in interleaved rounds, with a progress bar; print and return the comparison."""
    each_s = scenario.warmup_s + scenario.duration_s
    with progress_bar(console, each_s * rounds * len(targets)) as show:
        found = compare(
            scenario,
            targets,
            sending,
            rounds=rounds,
            seed=1,
            shown=lambda done, name, progress: show(done * each_s + progress.elapsed_ns / 1e9, f"{name}: {progress}"),
        )
    print_comparison(console, found, title)
    return found
