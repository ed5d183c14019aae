"""The engine: the books, and the check of every command that a policy gives. Pure: no clock, no network.

engine         what drivers call; one event after the other: BEGIN HERE
  intake         what happened enters the books; turns: what the policy is told of what waits
  policy_runner  who decides: tells the policy, replaces one that breaks; policy_retry: when that is tried again
state          what the engine knows at the moment
  books          the workers and what is booked on them; flights: batches on their way; tries: of requests
  sharing        whose turn it is; shared_workers: on one set of workers; flows: whose requests wait there;
                 held: what waits for its turn; in_view: what the policy sees; batch_costs: what that will take
  hurried        who may wait behind others that have more time, and when that is in vain
  late           what cannot be in time any more and is served all the same: first come, first served
  expectations   the profiles as they stand; learner: how legs correct them, by a line (correction) and a margin that
                 follows how far they stray (spread); shapes: what a new one starts from;
                 alone: what applications take by themselves; probes: who runs alone so that this is learned;
                 time_classes: those that take about as long; lateness: how late wake-ups come
  overlap        when workers take their next batch, so that they do not idle; readiness: what the policy is told
  succession     which policy decides; timers: those that it set
commands       what the policy wants, checked (invariants) and carried out
refusals       events that are not taken in
headroom       what is kept free before a deadline for the answer's way back, before drivers tell a request
observers      who watches; validation: the books checked against each other, in tests

What drivers tell an engine besides the events of the contract, and the effects that they carry out, are defined in
`tidegate.observation`, as those who watch see them, too.
"""

from tidegate.engine.engine import MAX_TRIES, Engine
from tidegate.engine.headroom import Headroom
from tidegate.engine.invariants import InvariantViolation
from tidegate.engine.overlap import FIRST_LEAD_NS
from tidegate.engine.state import NO_WORKER
from tidegate.engine.succession import Policies
from tidegate.engine.validation import WrongBooks
from tidegate.observation import (
    AnyEffect,
    AnyStimulus,
    CancelLeg,
    ClockAdvanced,
    EngineRestarted,
    Fail,
    ObserverRemoved,
    PlanChanged,
    PolicyChanged,
    PolicyReplaced,
    PolicyRestored,
    StartLeg,
    Tally,
    TriesChanged,
)

__all__ = [
    "FIRST_LEAD_NS",
    "MAX_TRIES",
    "NO_WORKER",
    "AnyEffect",
    "AnyStimulus",
    "CancelLeg",
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
    "PolicyReplaced",
    "PolicyRestored",
    "StartLeg",
    "Tally",
    "TriesChanged",
    "WrongBooks",
]
