"""The reference is complete: every hook, every invariant, and no test that does not exist."""

import inspect
import re
from pathlib import Path

import pytest

from tidegate.api import PolicySpec
from tidegate.control import ControllerSpec
from tidegate.host import Plugins
from tidegate.host.manager import Hooks
from tidegate.host.options import PluginOption, options_of

ROOT = Path(__file__).parents[2]
HOOKS = (ROOT / "docs/reference/hooks.md").read_text(encoding="utf-8")
INVARIANTS = (ROOT / "docs/reference/invariants.md").read_text(encoding="utf-8")
ENGINE = ROOT / "core/src/tidegate/engine"


@pytest.mark.parametrize("hook", [name for name in vars(Hooks) if name.startswith("tidegate_")])
def test_every_hook_is_documented_with_an_example(hook: str) -> None:
    section = re.search(rf"^## {hook}\n(.*?)(?=^## |\Z)", HOOKS, re.MULTILINE | re.DOTALL)
    assert section, f"docs/reference/hooks.md has no section on {hook}"
    assert f"def {hook}(" in section[1], f"the section on {hook} has no example"


def test_no_hook_is_documented_that_does_not_exist() -> None:
    documented = re.findall(r"^## (tidegate_\w+)$", HOOKS, re.MULTILINE)
    assert [name for name in documented if not hasattr(Hooks, name)] == []


def test_every_invariant_is_documented_under_its_number() -> None:
    listed = re.findall(r"(\d+) [a-z]", (ENGINE / "kernel/invariants.py").read_text(encoding="utf-8").split('"""')[1])
    raised = {
        number
        for path in ENGINE.rglob("*.py")
        for number in re.findall(r"InvariantViolation\(\s*(\d+)", path.read_text(encoding="utf-8"))
    }
    documented = re.findall(r"^## (\d+) ", INVARIANTS, re.MULTILINE)
    assert documented == [str(number) for number in range(1, 12)]
    assert raised | set(listed) <= set(documented)


@pytest.mark.parametrize("number", range(1, 12))
def test_every_invariant_names_its_own_test(number: int) -> None:
    section = re.search(rf"^## {number} (.*?)(?=^## |\Z)", INVARIANTS, re.MULTILINE | re.DOTALL)
    assert section
    assert f".py::test_{number}_" in section[1]
    assert "- Checked: " in section[1]


@pytest.mark.parametrize(("path", "test"), sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", INVARIANTS))))
def test_every_test_that_is_named_exists(path: str, test: str) -> None:
    assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "path"), sorted(set(re.findall(r"`([\w.]+)`[^`]{1,3}in `([\w/]+\.py)`", INVARIANTS))))
def test_what_is_said_to_check_an_invariant_exists(name: str, path: str) -> None:
    source = (ENGINE.parent / path).read_text(encoding="utf-8")
    assert all(re.search(rf"(def|class) {step}\b", source) for step in name.split(".")) or name == "Drop"


PLUGINS = Plugins.installed()
SPECS = [*PLUGINS.policies.values(), *PLUGINS.controllers.values()]
HEADING = r"^## (?:The controllers: [^\n]*)?\b{}(?:, [\w-]+)*\n(.*?)(?=^## |\Z)"
SECTIONS = ["How it works", "Options", "Limits"]
"""What the README of a plugin says of each policy, after what it is and when to use it. An example may follow."""


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_policy_and_controller_is_described_in_the_readme_of_its_plugin(
    spec: PolicySpec | ControllerSpec,
) -> None:
    described = spec.policy if isinstance(spec, PolicySpec) else spec.controller
    source = inspect.getsourcefile(described)
    assert source is not None
    readme = next(parent for parent in Path(source).parents if (parent / "pyproject.toml").exists()) / "README.md"
    text = readme.read_text(encoding="utf-8")
    section = re.search(HEADING.format(spec.name), text, re.MULTILINE | re.DOTALL)
    assert section, f"{readme} does not describe {spec.name}"
    introduction, *parts = re.split(r"^### (.*)$", section[1], flags=re.MULTILINE)
    assert introduction.strip(), f"{readme} does not say what {spec.name} is, and when to use it"
    assert [part.replace("they work", "it works") for part in parts[::2] if part != "Example"] == SECTIONS
    rows = [_row(option) for option in options_of(described.Options)] or ["None."]
    assert [row for row in rows if row not in text] == [], (
        f"write these rows into {readme}, or where they are inherited from"
    )


def _row(option: PluginOption) -> str:
    default = "required" if option.default is None else option.default
    value_type = re.sub(r" \(.*\)", "", option.type)
    return f"| `{option.name}` | {value_type} | {default} | {option.description} |"
