"""The contract is read in ten minutes: how much there is of it is counted."""

import re
from pathlib import Path

import tidegate.api
import tidegate.toolkit

ROOT = Path(__file__).parents[3]
MOST, MOST_OF_THE_TUTORIAL = 59, 14


def test_the_contract_and_the_toolkit_stay_small() -> None:
    names = {*tidegate.api.__all__, *tidegate.toolkit.__all__}
    assert len(names) <= MOST, f"{len(names)} names: what can a policy's author do without?"


def test_what_only_drivers_and_observers_need_is_elsewhere() -> None:
    theirs = {
        "ClockAdvanced",
        "TopologyChanged",
        "RetryLimitChanged",
        "EngineSettings",
        "Observer",
        "ObserverSpec",
        "StartStage",
    }
    assert not theirs & {*tidegate.api.__all__, *tidegate.toolkit.__all__}


def test_a_first_policy_needs_few_of_them() -> None:
    tutorial = (ROOT / "docs/tutorials/first-policy.md").read_text(encoding="utf-8")
    imports = re.findall(r"^from tidegate\.(?:api|toolkit) import (.*)$", tutorial, re.MULTILINE)
    names = {name.strip() for line in imports for name in line.split(",")}
    assert "PolicySpec" in names
    assert len(names) <= MOST_OF_THE_TUTORIAL, sorted(names)
