"""The contract: what a plugin has to know. Beside it: `tidegate.toolkit` to build policies from, `tidegate.schemas`.

Words: a *request* of a *model* waits until a *policy* puts it into a *batch*; the batch runs along its *stages*, each
one *partition* on one *worker*; a *profile* says how long that takes. Events come in, commands go out.

policy    one method per event: BEGIN HERE; events: what it is told, commands: what it wants done
model     the nouns; device: what workers are bound to, network: what is between them, shape: how one is read
mig       into which instances NVIDIA cuts a GPU, and where in its memory each may begin
interference  how tenants of one device slow each other down
profile   how long a partition runs; latency_distribution: how long requests of an application run alone
planner   from a problem to a plan; late_import: by what needs libraries that policies do without
specs     what a distribution offers, and how its hooks return it
"""

from tidegate.api.commands import Advise, AnyCommand, CancelTimer, Dispatch, Drop, Preempt, Reroute, SetTimer
from tidegate.api.events import (
    AnyEvent,
    BatchFailed,
    LatencyDistributionUpdated,
    ProfileUpdated,
    RequestArrived,
    RequestCancelled,
    StageFinished,
    TimerFired,
    TimerKey,
    TimerLatencyUpdated,
    WorkerDelayed,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from tidegate.api.latency_distribution import LatencyDistribution
from tidegate.api.model import NEVER_NS, Batch, Model, Pipeline, QueueKey, Request, Stage, Worker, queue_key
from tidegate.api.network import Network
from tidegate.api.planner import (
    Plan,
    Planner,
    PlanningError,
    Progress,
    VersionedDocument,
)
from tidegate.api.policy import Commands, Policy, PolicyOptions, Setup
from tidegate.api.profile import NS_PER_MS, Profile, ProfileKey, ms_to_ns
from tidegate.api.specs import CommandSpec, PlannerSpec, PolicySpec, hookimpl

__all__ = [
    "NEVER_NS",
    "NS_PER_MS",
    "Advise",
    "AnyCommand",
    "AnyEvent",
    "Batch",
    "BatchFailed",
    "CancelTimer",
    "CommandSpec",
    "Commands",
    "Dispatch",
    "Drop",
    "LatencyDistribution",
    "LatencyDistributionUpdated",
    "Model",
    "Network",
    "Pipeline",
    "Plan",
    "Planner",
    "PlannerSpec",
    "PlanningError",
    "Policy",
    "PolicyOptions",
    "PolicySpec",
    "Preempt",
    "Profile",
    "ProfileKey",
    "ProfileUpdated",
    "Progress",
    "QueueKey",
    "Request",
    "RequestArrived",
    "RequestCancelled",
    "Reroute",
    "SetTimer",
    "Setup",
    "Stage",
    "StageFinished",
    "TimerFired",
    "TimerKey",
    "TimerLatencyUpdated",
    "VersionedDocument",
    "Worker",
    "WorkerDelayed",
    "WorkerJoined",
    "WorkerLost",
    "WorkerReady",
    "hookimpl",
    "ms_to_ns",
    "queue_key",
]
