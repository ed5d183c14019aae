"""Fixtures for policy authors, in every pytest session with Tidegate installed (entry point `pytest11`).

playbook_of(Mine, models, workers, profiles, patience_ms=3)    a Playbook of a new policy, its options validated
plugins                                                        Plugins.installed(), to which a test may register its own

Sessions without tests of policies load it, too: it imports only pytest until a fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidegate.host import Plugins
    from tidegate.testing.playbook import PlaybookOf


@pytest.fixture
def playbook_of() -> PlaybookOf:
    """Fixture `playbook_of(policy, models, workers, profiles, **options)`: returns a Playbook of a new policy."""
    from tidegate.testing.playbook import Playbook  # noqa: PLC0415 - see above

    return Playbook.of


@pytest.fixture
def plugins() -> Plugins:
    """Return the installed plugins, a new object for every test, so that a test can register more."""
    from tidegate.host import Plugins  # noqa: PLC0415 - see above

    return Plugins.installed()
