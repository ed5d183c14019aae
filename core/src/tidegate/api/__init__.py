"""The contract: everything a plugin imports, and nothing else.

Words: a *request* of a *model* waits until a *policy* puts it into a *batch*; the batch runs along its *legs*, each one
*partition* on one *worker*; a *profile* says how long that takes. Events come in, commands go out.
"""

from tidegate.api.batch_target import ArrivalRate, BatchTarget, staggered_target
from tidegate.api.block_profile import BlockLatencies, BlockProfile
from tidegate.api.commands import Advise, AnyCommand, CancelTimer, Command, Dispatch, Drop, Preempt, Reroute, SetTimer
from tidegate.api.events import (
    AnyEvent,
    BatchFailed,
    ClockAdvanced,
    Event,
    LegFinished,
    PlanChanged,
    ProfileUpdated,
    RequestArrived,
    RequestCancelled,
    TimerFired,
    TimerKey,
    WorkerJoined,
    WorkerLost,
)
from tidegate.api.first_come import FirstComeFirstServed
from tidegate.api.gathering import Gathered, Gathering
from tidegate.api.hookspecs import CommandSpec, Observer, ObserverSpec, PlannerSpec, PolicySpec, hookimpl
from tidegate.api.layout import (
    Layout,
    LayoutModel,
    LayoutNetwork,
    LayoutPartition,
    LayoutPipeline,
    LayoutWorker,
)
from tidegate.api.model import NEVER, Batch, Leg, Model, Pipeline, Request, Worker
from tidegate.api.network import Network
from tidegate.api.planner import (
    Document,
    DocumentError,
    Plan,
    Planner,
    PlanningError,
    Progress,
    read_document,
    write_document,
)
from tidegate.api.policy import Commands, Policy, PolicyOptions, Setup
from tidegate.api.profile import NS_PER_MS, Profile, ms_to_ns
from tidegate.api.profile_file import (
    ModelProfile,
    Point,
    ProfileFile,
    ProfileFileError,
    read_profiles,
    write_profile,
)
from tidegate.api.queueing import IdleWorkers, QueueingPolicy, QueueKey, RequestQueue

__all__ = [
    "NEVER",
    "NS_PER_MS",
    "Advise",
    "AnyCommand",
    "AnyEvent",
    "ArrivalRate",
    "Batch",
    "BatchFailed",
    "BatchTarget",
    "BlockLatencies",
    "BlockProfile",
    "CancelTimer",
    "ClockAdvanced",
    "Command",
    "CommandSpec",
    "Commands",
    "Dispatch",
    "Document",
    "DocumentError",
    "Drop",
    "Event",
    "FirstComeFirstServed",
    "Gathered",
    "Gathering",
    "IdleWorkers",
    "Layout",
    "LayoutModel",
    "LayoutNetwork",
    "LayoutPartition",
    "LayoutPipeline",
    "LayoutWorker",
    "Leg",
    "LegFinished",
    "Model",
    "ModelProfile",
    "Network",
    "Observer",
    "ObserverSpec",
    "Pipeline",
    "Plan",
    "PlanChanged",
    "Planner",
    "PlannerSpec",
    "PlanningError",
    "Point",
    "Policy",
    "PolicyOptions",
    "PolicySpec",
    "Preempt",
    "Profile",
    "ProfileFile",
    "ProfileFileError",
    "ProfileUpdated",
    "Progress",
    "QueueKey",
    "QueueingPolicy",
    "Request",
    "RequestArrived",
    "RequestCancelled",
    "RequestQueue",
    "Reroute",
    "SetTimer",
    "Setup",
    "TimerFired",
    "TimerKey",
    "Worker",
    "WorkerJoined",
    "WorkerLost",
    "hookimpl",
    "ms_to_ns",
    "read_document",
    "read_profiles",
    "staggered_target",
    "write_document",
    "write_profile",
]
