"""Observers of an engine: they see every stimulus, with the commands and effects that followed.

observer    the base class, with options: BEGIN HERE; one that also sees the policy's events
stimuli     inputs of an engine: the events that policies see, and those that only drivers send
effects     actions that an engine requests from its driver
reducer     derives the outcome of each request and stage from the stream: every metric is computed from it
event_log   the stream in a file: written by an observer, read back
timeline_recorder  what happened to one request, and why: records timelines while an engine runs
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
from tidegate.observation.observer import EngineSettings, Observer, ObserverOptions, ObserverSpec, PolicyTraceObserver
from tidegate.observation.reducer import OutcomeCounts, OutcomeListener, Reducer, SentStage
from tidegate.observation.stimuli import (
    AnyStimulus,
    ChangeProgressed,
    ClockAdvanced,
    FirstResponse,
    PolicyChanged,
    PolicyOverran,
    PolicyTuned,
    RetryLimitChanged,
    TopologyChanged,
)
from tidegate.observation.timeline_recorder import RequestTimeline, Step, TimelineRecorder

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
    "FirstResponse",
    "LogEntry",
    "LogHeader",
    "Observer",
    "ObserverOptions",
    "ObserverRemoved",
    "ObserverSpec",
    "OutcomeCounts",
    "OutcomeListener",
    "PolicyChanged",
    "PolicyOverran",
    "PolicyReplaced",
    "PolicyRestored",
    "PolicyTraceObserver",
    "PolicyTuned",
    "Recorder",
    "Reducer",
    "RequestTimeline",
    "RetryLimitChanged",
    "SentStage",
    "StartStage",
    "Step",
    "TimelineRecorder",
    "TopologyChanged",
    "read_log",
]
