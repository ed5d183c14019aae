"""Fixtures for authors of policies, in every pytest session where Tidegate is installed (entry point `pytest11`).

playbook_of(Mine, models, workers, profiles, patience_ms=3)    a Playbook of a new policy, its options validated
plugins                                                        Plugins.installed(), to which a test may register its own

Sessions that test no policy load this too: it imports pytest, and the rest when a fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate.api import Model, Policy, Profile, Worker
    from tidegate.host import Plugins
    from tidegate.testing.playbook import Playbook, PlaybookOf


@pytest.fixture
def playbook_of() -> PlaybookOf:
    """`playbook_of(policy, models, workers, profiles, **options)`: a Playbook of a new policy of that class."""
    return _playbook_of


@pytest.fixture
def plugins() -> Plugins:
    """What is installed: loaded anew for every test, so that one may register more."""
    from tidegate.host import Plugins  # noqa: PLC0415 - see above

    return Plugins.installed()


def _playbook_of(
    policy: type[Policy],
    models: Sequence[Model],
    workers: Sequence[Worker],
    profiles: Sequence[Profile],
    **options: Any,  # noqa: ANN401 - the policy's own
) -> Playbook:
    from tidegate.api import PolicySpec, Setup  # noqa: PLC0415 - see above
    from tidegate.host import make_policy  # noqa: PLC0415
    from tidegate.testing.playbook import Playbook  # noqa: PLC0415

    spec = PolicySpec(policy.__name__, "", policy)
    return Playbook(make_policy(spec, Setup(tuple(models), tuple(workers), tuple(profiles)), options))
