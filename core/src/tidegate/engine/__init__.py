"""The engine: the books, and the check of every command that a policy gives. Pure: no clock, no network.

engine         what drivers call; one event after the other: BEGIN HERE
  intake         what happened enters the books; turns: what the policy is told of what waits
  policy_runner  who decides: tells the policy, replaces one that breaks
state          what the engine knows at the moment
  books          the workers and what is booked on them; flights: batches on their way; outcomes: how requests end
  sharing        whose turn it is; shared_workers: on one set of workers; flows: whose requests wait there;
                 held: what waits for its turn; in_view: what the policy sees; batch_costs: what that will take
  expectations   the profiles as they stand; learner: how legs correct them; lateness: how late wake-ups come
  overlap        when workers take their next batch, so that they do not idle; readiness: what the policy is told
  succession     which policy decides; timers: those that it set
commands       what the policy wants, checked (invariants) and carried out
refusals       events that are not taken in
effects        what the driver has to do
observers      who watches; recorder: the event log
"""

from tidegate.engine.books import Tally
from tidegate.engine.effects import (
    AnyEffect,
    CancelLeg,
    Effect,
    EngineRestarted,
    Fail,
    ObserverRemoved,
    PolicyReplaced,
    StartLeg,
)
from tidegate.engine.engine import MAX_TRIES, Engine
from tidegate.engine.invariants import InvariantViolation
from tidegate.engine.overlap import FIRST_LEAD_NS
from tidegate.engine.recorder import LOG_VERSION, LogEntry, LogHeader, Recorder, read_log
from tidegate.engine.state import NO_WORKER

__all__ = [
    "FIRST_LEAD_NS",
    "LOG_VERSION",
    "MAX_TRIES",
    "NO_WORKER",
    "AnyEffect",
    "CancelLeg",
    "Effect",
    "Engine",
    "EngineRestarted",
    "Fail",
    "InvariantViolation",
    "LogEntry",
    "LogHeader",
    "ObserverRemoved",
    "PolicyReplaced",
    "Recorder",
    "StartLeg",
    "Tally",
    "read_log",
]
