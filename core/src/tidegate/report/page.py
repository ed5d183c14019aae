"""The frame of a report: one HTML file with its data for download, readable without a network."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

from tidegate.report.chart import Chart

WORD_COLUMNS = ("", "policy", "target", "model", "state", "if")
TEXT_COLUMNS = ("reason", "starts", "stops", "batching", "started with")
"""Columns of text, aligned left; numbers are aligned right."""


@dataclass(frozen=True)
class PageOrigin:
    """Origin of a page: version, command, date."""

    version: str
    """Version of Tidegate."""
    date: str
    command: str

    def facts(self) -> dict[str, str]:
        """Return the facts for the page's head."""
        return {"Tidegate": self.version, "Date": self.date, "Command": self.command}


@dataclass(frozen=True)
class Download:
    """A file embedded in the page."""

    name: str
    kind: str
    """Media type of the file."""
    content: str

    def html(self) -> str:
        """Return a link that saves the file."""
        data = b64encode(self.content.encode()).decode("ascii")
        return f'<a download="{escape(self.name)}" href="data:{self.kind};base64,{data}">{escape(self.name)}</a>'


@dataclass(frozen=True)
class PageSection:
    """A heading over a table or other HTML."""

    title: str
    body: str
    note: str = ""
    folded: bool = False
    """Whether only the title is shown until the reader opens the section."""

    def html(self) -> str:
        """Return the section as HTML."""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        body = f"<details><summary>show</summary>{self.body}</details>" if self.folded else self.body
        return f"<section><h2>{escape(self.title)}</h2>{note}{body}</section>"


@dataclass(frozen=True)
class Page:
    """An HTML report: verdicts, origin, sections."""

    title: str
    verdicts: Sequence[str]
    """Conclusions, the most important sentence first."""
    origin: PageOrigin
    facts: Mapping[str, str]
    """Parameters of the run, such as seeds and servers."""
    scenario: Mapping[str, object]
    """Scenario as a JSON object."""
    parts: Sequence[Chart | PageSection]
    warnings: Sequence[str] = ()
    downloads: Sequence[Download] = field(default_factory=tuple)

    def html(self) -> str:
        """Return the page as HTML."""
        style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("style.css", "zoom.js"))
        zoomed = any('class="gantt"' in part.body for part in self.parts)
        verdicts = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.verdicts)
        warnings = "".join(f'<p class="warning">{escape(sentence)}</p>' for sentence in self.warnings)
        facts = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
            for name, value in {**self.origin.facts(), **self.facts}.items()
        )
        links = " ".join(download.html() for download in self.downloads)
        data = f"<div><dt>Data</dt><dd>{links}</dd></div>" if links else ""
        scenario = escape(json.dumps(self.scenario, indent=1, ensure_ascii=False))
        scenario = f"<details><summary>Scenario</summary><pre>{scenario}</pre></details>" if self.scenario else ""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{style}</style></head>\n"
            f'<body><header><h1>{escape(self.title)}</h1><div class="verdict">{verdicts}</div>{warnings}</header>\n'
            "<main>"
            + "\n".join(part.html() for part in self.parts)
            + f"</main>\n<footer><dl>{facts}{data}</dl>{scenario}</footer>"
            f"{f'<script>{script}</script>' if zoomed else ''}</body></html>\n"
        )


def table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """Return a table with escaped cells; on a phone each line becomes a card, and elsewhere a wide one scrolls."""
    classes = [
        ' class="word"' if name in WORD_COLUMNS else ' class="words"' if name in TEXT_COLUMNS else "" for name in head
    ]

    # Names of fields, `models.0.slo_ms`, break after dots: they are longer than what stands below them.
    heads = [escape(name).replace(".", ".<wbr>") for name in head]
    top = "".join(f"<th{its}>{cell}</th>" for cell, its in zip(heads, classes, strict=True))
    cells = [f'<td{its} data-what="{escape(name)}">' for name, its in zip(head, classes, strict=True)]

    def row(line: Sequence[object]) -> str:
        # So do reasons, `deadline_unreachable`, after underscores: in a card they would break within a word.
        texts = [escape(str(value)).replace("_", "_<wbr>") for value in line]
        return "".join(f"{cell}{text}</td>" for cell, text in zip(cells, texts, strict=True))

    rows = "".join(f"<tr>{row(line)}</tr>" for line in lines)
    body = f"<thead><tr>{top}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="scroll"><table class="figures">{body}</table></div>'
