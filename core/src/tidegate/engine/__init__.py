"""The engine: the books, and the check of every command that a policy gives. Pure: no clock, no network.

kernel       takes in events, asks the policy, checks and carries out what it commands: BEGIN with its `engine`
waiting      every request that waits: whose turn it is, who is late; which of them the policy sees
estimates    what batches are expected to take, and what corrects that
books        the workers, and what is booked on them; timers: what is due

The kernel knows the two other rooms, waiting knows estimates, and all know the books.

What drivers tell an engine besides the events of the contract, and the effects that they carry out, are defined in
`tidegate.observation`, as those who watch see them, too.
"""

from tidegate.engine.estimates.lateness import Headroom
from tidegate.engine.kernel.engine import MAX_TRIES, Engine
from tidegate.engine.kernel.invariants import InvariantViolation
from tidegate.engine.kernel.overlap import FIRST_LEAD_NS
from tidegate.engine.kernel.state import NO_WORKER
from tidegate.engine.kernel.succession import Policies
from tidegate.engine.kernel.validation import WrongBooks
from tidegate.observation import (
    AnyEffect,
    AnyStimulus,
    CancelStage,
    ClockAdvanced,
    EngineRestarted,
    Fail,
    ObserverRemoved,
    PlanChanged,
    PolicyChanged,
    PolicyOverran,
    PolicyReplaced,
    PolicyRestored,
    StartStage,
    Tally,
    TriesChanged,
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
    "Headroom",
    "InvariantViolation",
    "ObserverRemoved",
    "PlanChanged",
    "Policies",
    "PolicyChanged",
    "PolicyOverran",
    "PolicyReplaced",
    "PolicyRestored",
    "StartStage",
    "Tally",
    "TriesChanged",
    "WrongBooks",
]
