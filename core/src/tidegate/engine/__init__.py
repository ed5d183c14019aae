"""The scheduling engine: keeps the state of requests and workers, and checks every command of a policy.

Pure: no clock, no network.

kernel        handles events, calls the policy, checks and applies its commands: BEGIN with its `engine`
waiting       every waiting request: fair queueing, late requests, and which requests the policy sees
estimates     the expected latency of batches, corrected by what was observed
state_tables  the workers and their reservations
timers        the pending timers, how late they fire, and how long responses travel

The kernel imports the two other packages, waiting imports estimates, and all import the state tables.

Events that only drivers send and effects that drivers carry out are defined in `tidegate.observation`, because
observers see them, too.
"""

from tidegate.engine.kernel.engine import MAX_TRIES, Engine
from tidegate.engine.kernel.in_flight import FIRST_LEAD_NS
from tidegate.engine.kernel.invariants import InvariantViolation
from tidegate.engine.kernel.state import NO_WORKER, Policies
from tidegate.engine.kernel.validation import InconsistentStateError
from tidegate.engine.timers import ResponseMargin
from tidegate.observation import (
    AnyEffect,
    AnyStimulus,
    CancelStage,
    ClockAdvanced,
    EngineRestarted,
    Fail,
    FirstResponse,
    ObserverRemoved,
    OutcomeCounts,
    PolicyChanged,
    PolicyOverran,
    PolicyReplaced,
    PolicyRestored,
    RetryLimitChanged,
    StartStage,
    TopologyChanged,
)

__all__ = [
    "FIRST_LEAD_NS",
    "MAX_TRIES",
    "NO_WORKER",
    "AnyEffect",
    "AnyStimulus",
    "CancelStage",
    "ClockAdvanced",
    "Engine",
    "EngineRestarted",
    "Fail",
    "FirstResponse",
    "InconsistentStateError",
    "InvariantViolation",
    "ObserverRemoved",
    "OutcomeCounts",
    "Policies",
    "PolicyChanged",
    "PolicyOverran",
    "PolicyReplaced",
    "PolicyRestored",
    "ResponseMargin",
    "RetryLimitChanged",
    "StartStage",
    "TopologyChanged",
]
