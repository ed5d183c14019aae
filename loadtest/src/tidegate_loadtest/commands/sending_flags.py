"""Options of commands that send a scenario's requests: tensors, connections, and when a run counts."""

from typing import Annotated

import typer

ShapesOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Dimensions of an input without rows, [MODEL/]INPUT:3,48,320, where the model leaves them open. "
        "Repeatable."
    ),
]
InputsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Real inputs of a model, MODEL=FOLDER with pictures or .npy/.npz files. Repeatable. [default: "
        "random tensors]"
    ),
]
ChannelsOption = Annotated[int, typer.Option(min=1, help="TCP connections to spread the requests over.")]
TimeoutOption = Annotated[float, typer.Option(min=0.001, help="Seconds until a request is given up.")]
LatenessOption = Annotated[
    float, typer.Option(min=0, help="Highest p99 lateness of the load generator, in ms, at which a run counts.")
]


def positive_numbers(text: str | None, option: str) -> list[int] | None:
    """Parse `1,8,16`, ascending; None for None. Raises typer.BadParameter, with the name of the option."""
    if text is None:
        return None
    try:
        numbers = sorted({int(each) for each in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise typer.BadParameter(f"{text!r} is not a list of positive numbers", param_hint=option)
    return numbers
