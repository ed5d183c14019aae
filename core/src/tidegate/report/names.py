"""Names that keep their end where they are shortened: names of models and workers differ there."""

from html import escape

NAME_END = 12
"""Characters at the end of a long name that are always shown."""


def named(name: str) -> str:
    """Return a name as HTML; `style.css` shortens it before its end where there is no room."""
    end = NAME_END if len(name) > 2 * NAME_END else 0
    head, tail = name[: len(name) - end], name[len(name) - end :]
    ending = f"<span>{escape(tail)}</span>" if tail else ""
    return f'<span class="name" title="{escape(name)}"><span>{escape(head)}</span>{ending}</span>'


def shortened(name: str, most: int) -> str:
    """Return a name of at most `most` characters, cut in its middle."""
    if len(name) <= most:
        return name
    end = max(1, 2 * most // 3)
    return f"{name[: most - end - 1]}…{name[-end:]}"
