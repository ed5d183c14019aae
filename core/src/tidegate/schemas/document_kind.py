"""Kind of a file that was given in place of another: a scenario to `serve`, a configuration to `simulate`."""

from typing import Final

DOCUMENT_KINDS: Final = {
    "a scenario": ({"arrivals"}, "`tidegate simulate {file}`, `loadtest` or `recommend`"),
    "a configuration of `tidegate serve`": ({"tritons", "shards"}, "`tidegate serve {file}`, `check` or `doctor`"),
}
"""For each kind of document the fields that identify it, and the commands that take it."""


def other_kind(data: object, wanted: str, file: str) -> str:
    """Return an error if a document is of another kind than `wanted`, with the commands that take it; else "".

    `data`: content of the document. `wanted`: a key of DOCUMENT_KINDS, or words for a document of no such kind. `file`:
    its path, for the message.
    """
    if not isinstance(data, dict) or (wanted in DOCUMENT_KINDS and data.keys() & DOCUMENT_KINDS[wanted][0]):
        return ""
    for kind, (fields, commands) in DOCUMENT_KINDS.items():
        if kind != wanted and data.keys() & fields:
            return f"it is {kind}, not {wanted}: give it to {commands.format(file=file)}"
    return ""
