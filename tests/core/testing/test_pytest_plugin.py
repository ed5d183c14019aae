"""The fixtures come along with the distribution, and cost nothing where nobody uses them."""

import subprocess
import sys

import pytest

from tidegate.api import Model, PolicyOptions, PolicySpec, Profile, Request, RequestArrived, Worker
from tidegate.host import PluginError, Plugins
from tidegate.testing import Playbook, PlaybookOf
from tidegate.toolkit import FirstComeFirstServed

MODELS = (Model("m", 4),)
WORKERS = (Worker(0, "w0", ("m",)),)
PROFILES = (Profile("m", "default", (10, 20, 30, 40)),)


class Options(PolicyOptions):
    patience_ms: float = 1


class Patient(FirstComeFirstServed):
    Options = Options


def test_a_playbook_of_a_policy_with_its_options(playbook_of: PlaybookOf) -> None:
    book = playbook_of(Patient, MODELS, list(WORKERS), PROFILES, patience_ms="3")
    assert isinstance(book, Playbook)
    assert book.policy.options == Options(patience_ms=3)
    assert len((book >> RequestArrived(0, Request(0, "m", 1, 0))).commands()) == 1


def test_options_are_validated(playbook_of: PlaybookOf) -> None:
    with pytest.raises(PluginError, match=r"options of policy 'Patient': patients_ms: .* did you mean patience_ms"):
        playbook_of(Patient, MODELS, WORKERS, PROFILES, patients_ms=3)


@pytest.mark.parametrize("_", range(2))
def test_what_one_test_registers_no_other_sees(plugins: Plugins, _: int) -> None:
    assert "fifs" in plugins.policies
    assert "patient" not in plugins.policies
    plugins.policies["patient"] = PolicySpec("patient", "Waits", Patient)


def test_a_session_that_tests_no_policy_imports_nothing_of_it() -> None:
    program = """
import sys
import tidegate.testing.pytest_plugin
print(*(name for name in sys.modules if name.split(".")[0] in ("tidegate", "pydantic", "msgspec", "typer")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["tidegate", "tidegate.testing", "tidegate.testing.pytest_plugin"]


def test_the_kit_needs_no_pytest() -> None:
    program = """
import sys
import tidegate.testing
for name in tidegate.testing.__all__:
    getattr(tidegate.testing, name)
assert "pytest" not in sys.modules and "_pytest" not in sys.modules
try:
    tidegate.testing.no_such_thing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "module 'tidegate.testing' has no attribute 'no_such_thing'\n"
