"""What one who watches an engine sees: every stimulus, with the commands and the effects that it had.

observer    who watches, with options: BEGIN HERE; witness: one who knows what the policy is told, too
stimuli     what happens to an engine: the events that policies are told, and those that only drivers give it
effects     what an engine asks of its driver
reducer     folds the stream into what became of each request and stage: every figure that is kept is read from it
event_log   the stream in a file: written by an observer, read back
stories     of an engine's requests, as they happen; story: what happened to one of them, and why
"""

from tidegate.observation.effects import (
    AnyEffect,
    CancelStage,
    EngineRestarted,
    Fail,
    ObserverRemoved,
    PolicyReplaced,
    PolicyRestored,
    StartStage,
)
from tidegate.observation.event_log import LOG_VERSION, LogEntry, LogHeader, Recorder, read_log
from tidegate.observation.observer import EngineSettings, Observer, ObserverOptions, ObserverSpec
from tidegate.observation.reducer import Reader, Reducer, SentStage, Tally
from tidegate.observation.stimuli import (
    AnyStimulus,
    ChangeProgressed,
    ClockAdvanced,
    PlanChanged,
    PolicyChanged,
    PolicyOverran,
    TriesChanged,
)
from tidegate.observation.stories import Stories
from tidegate.observation.story import Step, Story
from tidegate.observation.witness import Witness

__all__ = [
    "LOG_VERSION",
    "AnyEffect",
    "AnyStimulus",
    "CancelStage",
    "ChangeProgressed",
    "ClockAdvanced",
    "EngineRestarted",
    "EngineSettings",
    "Fail",
    "LogEntry",
    "LogHeader",
    "Observer",
    "ObserverOptions",
    "ObserverRemoved",
    "ObserverSpec",
    "PlanChanged",
    "PolicyChanged",
    "PolicyOverran",
    "PolicyReplaced",
    "PolicyRestored",
    "Reader",
    "Recorder",
    "Reducer",
    "SentStage",
    "StartStage",
    "Step",
    "Stories",
    "Story",
    "Tally",
    "TriesChanged",
    "Witness",
    "read_log",
]
