"""The engine: the books, and the check of every command that a policy gives. Pure: no clock, no network."""

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
from tidegate.engine.engine import MAX_TRIES, NO_WORKER, Engine
from tidegate.engine.invariants import InvariantViolation
from tidegate.engine.recorder import LOG_VERSION, LogEntry, LogHeader, Recorder, read_log

__all__ = [
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
