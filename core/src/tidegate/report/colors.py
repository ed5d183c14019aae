"""Colors of charts: the same meaning on every page. `style.css` defines them for light and dark mode."""

from collections.abc import Iterable, Mapping

OUTCOME_COLORS: Mapping[str, str] = {
    "on time": "on-time",
    "late": "late",
    "dropped": "dropped",
    "failed": "failed",
}
"""Outcomes of requests, best first, with their colors."""
WAITING, EXECUTING = "waiting", "executing"
INK, OTHER = "ink", "other"
MODELS, CONTENDERS = 10, 8
"""Number of models and of contenders (policies, servers) with colors of their own; further ones share a color."""
DASH_PATTERNS = ("", "7 3", "2 3")


class Colors:
    """Colors of a page; models and contenders (policies, servers) have different palettes."""

    def __init__(self, models: Iterable[str], contenders: Iterable[str]) -> None:
        self._models = {name: number for number, name in enumerate(dict.fromkeys(models))}
        self._contenders = {name: number for number, name in enumerate(dict.fromkeys(contenders))}

    def of_model(self, name: str) -> str:
        """Return the color of a model, by its name in `style.css`."""
        number = self._models[name]
        return f"model-{number}" if number < MODELS else OTHER

    def of_contender(self, name: str) -> str:
        """Return the color of a policy or a server."""
        number = self._contenders[name]
        return f"contender-{number}" if number < CONTENDERS else OTHER

    def dash_of(self, name: str) -> str:
        """Return the dash pattern of a contender's line, which distinguishes it without color."""
        return DASH_PATTERNS[self._contenders[name] % len(DASH_PATTERNS)]


def css(color: str) -> str:
    """Return a color as CSS and SVG write it."""
    return f"var(--{color})"
