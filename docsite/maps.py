"""Maps of packages keep their columns: `name   what it is`, line for line, in a docstring of a package."""

import re
from typing import Any

import griffe

LINE = re.compile(r"^\w+ {2,}\S")


class Maps(griffe.Extension):
    """Sets the paragraphs of a package's docstring that are maps as preformatted text."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:  # noqa: ANN401 - whatever griffe tells more
        """Called for each module once it is read."""
        if mod.docstring:
            mod.docstring.value = with_maps(mod.docstring.value)


def with_maps(text: str) -> str:
    """The text, maps in it fenced."""
    return "\n\n".join(
        f"```text\n{paragraph}\n```" if LINE.match(paragraph) else paragraph for paragraph in text.split("\n\n")
    )
