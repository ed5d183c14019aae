"""`tidegate train-inss`: trains the networks of the planner `inss`."""

from pathlib import Path
from typing import Annotated

import typer


def train_inss(
    folder: Annotated[Path, typer.Argument(help="Write networks, training record and learning curve here.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of learning, of 32 decisions each.")] = 2_000,
    interference: Annotated[
        bool, typer.Option(help="Give the networks the models on the same GPU; without them it is InSS-ni.")
    ] = True,
    every: Annotated[int, typer.Option(min=1, help="Rounds between two checkpoints.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print the training record as JSON.")] = False,
) -> None:
    """Train the two networks of the InSS planner.

    Train InSS's two networks on made-up models; takes about five minutes of one core.

    Goes on where it was stopped: the folder has a checkpoint. Exits with 1 where that is of other options. Examples:

    tidegate train-inss networks --seed 1

    tidegate train-inss networks-ni --no-interference
    """
    from datetime import UTC, datetime

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tidegate.schemas import write_document
    from tidegate.terminal import console_for_errors, errors_in_a_line

    errors = console_for_errors()
    try:
        from tidegate_inss.learned.networks import RECORD_FILE
        from tidegate_inss.training.agents import export
        from tidegate_inss.training.page import page
        from tidegate_inss.training.trainer import Training, TrainingSettings
        from tidegate_inss.training.training_record import record_of
    except ModuleNotFoundError as error:
        errors.print(f'error: training needs {error.name}: pip install "tidegate-inss[train]"', style="red")
        raise typer.Exit(1) from error
    with errors_in_a_line(ValueError, OSError):
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint = folder / "checkpoint.pt"
        training = Training(TrainingSettings(seed=seed, rounds=rounds, interference=interference))
        if checkpoint.exists():
            training.load(checkpoint)
            errors.print(f"going on after round {training.round}: {checkpoint}", style="dim")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
            task = bar.add_task("training", total=rounds, completed=training.round)
            before = training.seconds
            for point in training.run():
                training.seconds = before + (bar.tasks[task].elapsed or 0.0)
                progress_text = f"reward {point['reward']:.2f}, late {point['late']:.1%}" if point else None
                bar.update(task, completed=training.round, description=progress_text)
                if training.round % every == 0:
                    training.save(checkpoint)
        training.save(checkpoint)
        export(training.agents, folder)
        record = record_of(training, folder)
        write_document(folder / RECORD_FILE, record)
        now = datetime.now(UTC)  # noqa: TID251 - a page is dated by the day on which it was made; nothing goes by it
        (folder / "curve.html").write_text(page(record, f"{now:%Y-%m-%d %H:%M} UTC"), encoding="utf-8")
    if as_json:
        typer.echo(record.model_dump_json(indent=2))
        return
    last = record.last
    typer.echo(
        f"{rounds} rounds in {record.seconds:.0f} s; on workloads kept apart: reward {last['reward']:.3f}, normalized "
        f"throughput {last['throughput']:.3f}, late {last['late']:.2%} (rules of thumb: {record.rules['reward']:.3f}, "
        f"{record.rules['throughput']:.3f}, {record.rules['late']:.2%})\nnetworks and record: {folder}"
    )
