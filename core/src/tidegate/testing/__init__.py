"""For authors of policies: transcripts (`Playbook`) and conformance (`check_policy`). Needs no test framework."""

from tidegate.testing.conformance import ConformanceError, check_policy
from tidegate.testing.playbook import Playbook, TranscriptMismatch
from tidegate.testing.scenario import Scenario, random_scenario, run_scenario

__all__ = [
    "ConformanceError",
    "Playbook",
    "Scenario",
    "TranscriptMismatch",
    "check_policy",
    "random_scenario",
    "run_scenario",
]
