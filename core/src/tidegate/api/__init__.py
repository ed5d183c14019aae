"""The plugin API: events and commands of policies, planners, and the specs that hooks return.

A *request* of a *model* waits until a *policy* puts it into a *batch*. The batch runs along its *stages*, each one
*partition* on one *worker*; a *profile* gives the latency. The engine passes events to the policy and applies the
commands that it returns. Beside this package: `tidegate.toolkit` (building blocks), `tidegate.schemas` (files).

policy        base class of policies: BEGIN HERE; events: its input, commands: its output
model         requests, models, workers, batches; device: GPUs, slices and the network
mig           MIG profiles of NVIDIA GPUs and where their instances may lie
interference  how batches on one device slow each other down
profile       latency of a partition by rows; latency_distribution: stand-alone latency of an application
planner       from a problem to a plan; late_import: imports a planner's libraries when it runs
specs         what a distribution offers, as its hooks return it
"""

from tidegate.api.commands import Advise, AnyCommand, CancelTimer, Dispatch, Drop, Preempt, Reroute, SetTimer
from tidegate.api.device import Network
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
