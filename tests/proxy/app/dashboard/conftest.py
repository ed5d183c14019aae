"""Time limit of what-if simulations for tests on a busy machine."""

import pytest

from tests.conftest import PATIENCE_S
from tidegate_proxy.app.dashboard import what_if


@pytest.fixture(autouse=True)
def _patient_what_if(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the limit: simulations run at the lowest priority and may get no core for a minute."""
    monkeypatch.setattr(what_if, "GIVE_UP_S", 4 * PATIENCE_S)
