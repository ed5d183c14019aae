"""Reader of tritonserver's log: finds the lines that explain a failed start."""

import json
import re

_MAX_REASONS = 20
_MAX_REASON_CHARS = 600
# `E1120 21:46:16.288978 4830 model_lifecycle.cc:642] "failed to load ..."`
_ERROR_LINE = re.compile(r"^E\d{4} [\d:.]+ \d+ [\w.]+:\d+\] (?P<text>.*)$")
# Lines that no severity marks: an option, or a config.pbtxt, that cannot be read.
_UNMARKED_LINE = re.compile(r"(?:^error: (?=.)|(?=unrecognized option|Error parsing text-format))(?P<text>.+)$")
# Every machine without a GPU logs this one.
_HARMLESS = ("CudaDriverHelper has not been initialized",)
_NO_BACKEND = "unable to find backend library"
ONNX_REMEDY = "(the nvidia-pytriton wheel has the Python backend only: `tidegate generate MODEL.onnx -o FOLDER`)"
_BIND_FAILURE = re.compile(
    r"already in use|address in use|Failed to bind|Unable to bind|failed to start .* service", re.I
)


class TritonStartError(RuntimeError):
    """Error: the embedded Triton did not start; the message gives the cause, and the remedy if it is known."""


def says_port_taken(log: str) -> bool:
    """Return whether the server exited because another process uses one of its ports."""
    return _BIND_FAILURE.search(log) is not None


def failure_reasons(log: str) -> list[str]:
    """Return the reasons of a failed start, most telling first: failed models, else errors, else the last lines."""
    lines = log.splitlines()
    errors = _error_lines(lines)
    # A model whose configuration cannot be read never reaches the table.
    unread = [text for text in errors if text.startswith(("Poll failed", "Error parsing text-format"))]
    reasons = _unavailable_models(lines) + unread or errors or [line for line in lines[-5:] if line.strip()]
    # Several instances of one model fail with one text.
    unique = list(dict.fromkeys(reasons))
    shown = [reason[:_MAX_REASON_CHARS] for reason in unique[:_MAX_REASONS]]
    if len(unique) > _MAX_REASONS:
        shown.append(f"and {len(unique) - _MAX_REASONS} more")
    return shown


def _unavailable_models(lines: list[str]) -> list[str]:
    """Read the rows of the model table whose status is UNAVAILABLE; a status of several lines fills several rows."""
    reasons: list[tuple[str, list[str]]] = []
    open_row = False
    for line in lines:
        # Only the first two columns cannot hold a bar.
        cells = [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|", 2)]
        if not line.startswith("|") or len(cells) != 3:
            open_row = False
        elif cells[0]:
            open_row = cells[2].startswith("UNAVAILABLE")
            if open_row:
                reasons.append((cells[0], [cells[2].removeprefix("UNAVAILABLE").removeprefix(":").strip()]))
        elif open_row:
            reasons[-1][1].append(cells[2])
    return [f"model '{model}': {_essence(status)}" for model, status in reasons]


def _essence(status: list[str]) -> str:
    """Shorten a Python exception of several lines to its message and its innermost frame."""
    text = [line for line in status if line]
    if any(_NO_BACKEND in line for line in text):
        return f"{' '.join(text)} {ONNX_REMEDY}"
    if "At:" not in text:
        return " ".join(text)
    at = text.index("At:")
    frame = f" (at {text[at + 1]})" if at + 1 < len(text) else ""
    return " ".join(text[:at]) + frame


def _error_lines(lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        match = _ERROR_LINE.match(line) or _UNMARKED_LINE.search(line)
        if match and not any(known in line for known in _HARMLESS):
            found.append(" ".join(_unquoted(match["text"]).split()))
    return found


def _unquoted(text: str) -> str:
    """Undo Triton's quoting of a message, which writes newlines as two characters."""
    try:
        decoded = json.loads(text, strict=False)
    except ValueError:
        return text
    return decoded if isinstance(decoded, str) else text
