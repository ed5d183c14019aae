"""What-if simulations of these tests have as long as a busy machine needs."""

import pytest

from tests.conftest import PATIENCE_S
from tidegate_proxy.app.dashboard import what_if


@pytest.fixture(autouse=True)
def _patient_what_if(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run at the lowest priority: beside four test processes they may get no core for a minute."""
    monkeypatch.setattr(what_if, "GIVE_UP_S", 4 * PATIENCE_S)
