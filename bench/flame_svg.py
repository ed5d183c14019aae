"""A flame graph as an SVG: sampled call stacks, merged from the root up, each frame as wide as its share of samples."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

Stack = tuple[str, ...]
"""The frames of a call stack, the outermost first."""

WIDTH_PX, ROW_PX, LETTER_PX, MARGIN_PX = 1400, 16, 6.3, 8
LEGEND_PX = 150
"""The width of one entry of the legend."""
LEAST_SHARE = 0.002
"""A frame of less is left out: a call that nobody could see would only make the file large."""


@dataclass
class _Node:
    samples: int = 0
    callees: dict[str, "_Node"] = field(default_factory=dict)


@dataclass(frozen=True)
class _Box:
    frame: str
    depth: int
    start: float
    """Where it begins, as a share of all samples; so is `share`."""
    share: float


def flame_svg(
    stacks: Mapping[Stack, int], title: str, part_of: Callable[[str], str | None], colors: Mapping[str, str]
) -> str:
    """The graph of these stacks, by their numbers of samples, as the text of an SVG.

    Args:
        stacks: the samples of each stack.
        title: the line above the graph.
        part_of: the part of the program that a frame belongs to; None where it belongs to its caller's.
        colors: the color of each part, in the order of the legend.
    """
    root = _Node()
    for stack, samples in stacks.items():
        node = root
        node.samples += samples
        for frame in stack:
            node = node.callees.setdefault(frame, _Node())
            node.samples += samples
    boxes = list(_boxes(root, 0, 0.0, root.samples))
    height = (max((box.depth for box in boxes), default=0) + 4) * ROW_PX
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {height}" width="{WIDTH_PX}" '
        f'height="{height}" font-family="monospace" font-size="10.5">',
        "<style>rect{stroke:#fff;stroke-width:.5} text{pointer-events:none}</style>",
        f'<rect width="{WIDTH_PX}" height="{height}" fill="#fff"/>',
        f'<text x="{MARGIN_PX}" y="{ROW_PX - 4}" font-weight="bold">{escape(title)}</text>',
    ]
    for place, (part, color) in enumerate(colors.items()):
        left = MARGIN_PX + place * LEGEND_PX
        lines.append(f'<rect x="{left}" y="{ROW_PX + 4}" width="10" height="10" fill="{color}"/>')
        lines.append(f'<text x="{left + 14}" y="{ROW_PX + 13}">{escape(part)}</text>')
    colored: list[str] = [next(iter(colors.values()))]
    for box in boxes:
        own = part_of(box.frame)
        color = colors[own] if own else colored[box.depth]
        del colored[box.depth + 1 :]
        colored.append(color)
        lines.append(_drawn(box, color, height))
    return "\n".join([*lines, "</svg>", ""])


def _boxes(node: _Node, depth: int, start: float, total: int) -> Iterator[_Box]:
    """What is drawn of a node's callees, each before its own."""
    for frame, callee in sorted(node.callees.items()):
        share = callee.samples / total
        if share >= LEAST_SHARE:
            yield _Box(frame, depth, start, share)
            yield from _boxes(callee, depth + 1, start, total)
            start += share


def _drawn(box: _Box, color: str, height: int) -> str:
    """A box, with its whole name where a mouse rests on it, and as much of the name as fits into it."""
    inside = WIDTH_PX - 2 * MARGIN_PX
    left, width = MARGIN_PX + box.start * inside, box.share * inside
    top = height - (box.depth + 1) * ROW_PX - ROW_PX / 2
    letters = int((width - 4) / LETTER_PX)
    name = box.frame if len(box.frame) <= letters else f"{box.frame[: letters - 1]}…"
    text = f'<text x="{left + 2:.1f}" y="{top + 12:g}">{escape(name)}</text>' if letters > 2 else ""
    return (
        f"<g><title>{escape(box.frame)}: {box.share:.1%}</title>"
        f'<rect x="{left:.1f}" y="{top:g}" width="{width:.1f}" height="{ROW_PX}" fill="{color}"/>{text}</g>'
    )
