"""Mermaid becomes pictures when the site is built, so that a reader's browser needs no script for it."""

import hashlib
import re
from collections.abc import Callable
from typing import Final

import mermaidx

FENCE: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
THEMES: Final = {"light": "neutral", "dark": "dark"}


def as_pictures(text: str, up: str, add: Callable[[str, str], None]) -> str:
    """The text with pictures for diagrams; `add(name, svg)` takes each. `up`: from the page to the site's root."""

    def picture(match: re.Match[str]) -> str:
        name = hashlib.sha256(match[1].encode()).hexdigest()[:12]
        lines = []
        for kind, theme in THEMES.items():
            file = f"assets/diagrams/{name}-{kind}.svg"
            add(file, mermaidx.render(match[1], theme=theme).svg())
            lines.append(f"![diagram]({up}{file}#only-{kind})")
        return "\n".join(lines)

    return FENCE.sub(picture, text)
