"""Test kit for plugin authors: transcripts (`Playbook`) and conformance tests.

playbook                scripted events, and the commands that the policy is expected to return
conformance             checks the invariants on random worlds (world)
judgment                compares a policy with simple baselines
policy_conformance      the same as a test class, also with other hash seeds; pytest_plugin: fixtures
controller_conformance  checks the contract of a controller, as a test class

No test framework is needed. For pytest there are two fixtures (`pytest_plugin`). Modules are imported on first use,
because pytest imports this package in every session.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.testing.conformance import ConformanceError, ConformanceFault, check_policy, find_faults
    from tidegate.testing.controller_conformance import ControllerConformance
    from tidegate.testing.judgment import Judgment, judge_policies
    from tidegate.testing.playbook import Playbook, PlaybookOf, TranscriptMismatch
    from tidegate.testing.policy_conformance import PolicyConformance
    from tidegate.testing.world import ConformanceWorld, random_world, run_world

__all__ = [
    "ConformanceError",
    "ConformanceFault",
    "ConformanceWorld",
    "ControllerConformance",
    "Judgment",
    "Playbook",
    "PlaybookOf",
    "PolicyConformance",
    "TranscriptMismatch",
    "arrived",
    "check_policy",
    "find_faults",
    "judge_policies",
    "random_world",
    "run_world",
]

_NAMES = {
    "conformance": ("ConformanceError", "ConformanceFault", "check_policy", "find_faults"),
    "controller_conformance": ("ControllerConformance",),
    "judgment": ("Judgment", "judge_policies"),
    "playbook": ("Playbook", "PlaybookOf", "TranscriptMismatch", "arrived"),
    "policy_conformance": ("PolicyConformance",),
    "world": ("ConformanceWorld", "random_world", "run_world"),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is asked for
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
