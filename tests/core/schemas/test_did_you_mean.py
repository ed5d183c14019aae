"""What is likely meant by a name that there is not."""

import pytest

from tidegate.schemas import did_you_mean
from tidegate.schemas.validation_errors import closest


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("symfony", ["symphony", "fifs"], "symphony"),
        ("SLO_MS", ["slo_ms", "name"], "slo_ms"),
        ("slo", ["slo_ms", "name"], "slo_ms"),
        ("max", ["max_batch", "max_rows"], None),  # which of the two?
        ("resnet", [], None),
        ("resnet", ["bert"], None),
        ("mdoel_b", ["model_a", "model_b"], "model_b"),
    ],
)
def test_the_closest_name(given: str, known: list[str], meant: str | None) -> None:
    assert closest(given, known) == meant


def test_all_that_there_are_are_listed() -> None:
    assert did_you_mean("fif", ["symphony", "fifs"], "installed") == "; did you mean 'fifs'? Installed: fifs, symphony"
    assert did_you_mean("lifo", ["symphony", "fifs"], "installed") == "; installed: fifs, symphony"
    assert did_you_mean("fifs", [], "installed") == "; installed: none"
