"""The ways to serve a model: Triton with its batcher set in several ways, and Tidegate before a Triton without."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from bench.dynamic_models.case import Case
from tidegate_loadtest.comparison.targets import Target
from tidegate_loadtest.processes import serving_command
from tidegate_proxy.tritons.embedded import EmbeddedTriton
from tidegate_repo_generator.generate import generate_model

DELAYS = (0.02, 0.1)
"""What Triton's batcher waits for more at most, as shares of the SLO."""
PATIENCE = 7 / 8
"""What a request waits before Triton gives it up, where it has a timeout; a share of the SLO."""
APPLICATIONS = "app: {parameter: app}\n"
"""A configuration of Tidegate that tells applications apart by what the inputs of this benchmark carry."""


@dataclass(frozen=True)
class Batcher:
    """Triton's own, as its `dynamic_batching` sets it."""

    rows: int
    """The rows of the largest batch."""
    delay_ms: float = 0.0
    timeout_ms: float | None = None
    """So long a request waits before it is rejected; None: to the end."""


@dataclass(frozen=True)
class Contender:
    """One way to serve the model."""

    name: str
    batcher: Batcher | None = None
    """None: Tidegate forms the batches."""
    flags: tuple[str, ...] = ()
    """Tidegate's, beside where it listens and who is behind it."""
    config: str = ""
    """What its configuration file says; empty: there is none."""


def contenders(
    case: Case, delays: Sequence[float], policies: Sequence[str], configurations: dict[str, Path]
) -> list[Contender]:
    """Triton's ways, the plain one first, then Tidegate's, the default first.

    `policies` get a Tidegate each, which tells applications apart; `configurations`, by what they are called, too.
    """
    timeout_ms = PATIENCE * case.slo_ms
    tritons = {
        "Triton": Batcher(case.max_batch),
        **{
            f"Triton, delay {share * case.slo_ms:g} ms": Batcher(case.max_batch, share * case.slo_ms)
            for share in delays
        },
        "Triton, timeout": Batcher(case.max_batch, timeout_ms=timeout_ms),
        "Triton, batch 1": Batcher(case.rows),
        "Triton, batch 1, timeout": Batcher(case.rows, timeout_ms=timeout_ms),
    }
    return [
        *(Contender(name, batcher) for name, batcher in tritons.items()),
        Contender("Tidegate"),
        *(Contender(f"Tidegate {name}", flags=("--policy", name), config=APPLICATIONS) for name in policies),
        *(Contender(f"Tidegate {name}", flags=("--config", str(path))) for name, path in configurations.items()),
    ]


def generate_repository(repository: Path, onnx: Path, case: Case) -> None:
    """Write the model as `tidegate generate` does: Tidegate forms the batches."""
    generate_model(onnx, repository, name=case.model, max_batch=case.max_batch, slo_ms=case.slo_ms)


def copy_with_batcher(generated: Path, repository: Path, case: Case, batcher: Batcher) -> None:
    """Copy a generated repository and have Triton's own batcher form the batches."""
    copytree(generated, repository)
    file = repository / case.model / "config.pbtxt"
    config = text_format.Parse(file.read_text(), model_config_pb2.ModelConfig())
    config.max_batch_size = batcher.rows
    config.dynamic_batching.max_queue_delay_microseconds = round(batcher.delay_ms * 1000)
    if batcher.timeout_ms is not None:
        queue = config.dynamic_batching.default_queue_policy
        queue.default_timeout_microseconds = round(batcher.timeout_ms * 1000)
    file.write_text(text_format.MessageToString(config))


@contextmanager
def running(
    work: Path, generated: Path, case: Case, chosen: Sequence[Contender], starting: Callable[[str], None]
) -> Iterator[list[Target]]:
    """Start every contender with a Triton of its own, until the block is left; `starting` is told each name.

    `generated`: the repository of the model, as `generate_repository` writes it.
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
                copy_with_batcher(generated, repository, case, contender.batcher)
            triton = stack.enter_context(EmbeddedTriton([repository], log=own / "triton.log"))
            address = triton.grpc_address
            if contender.batcher is None:
                command = ["serve", "--triton", address, "--listen", "127.0.0.1:0", *contender.flags]
                if contender.config:
                    (own / "tidegate.yaml").write_text(contender.config)
                    command += ["--config", str(own / "tidegate.yaml")]
                address = stack.enter_context(serving_command(*command, log=own / "tidegate.log"))
            targets.append(Target(contender.name, address))
        yield targets
