"""Simulation of bypassed requests under a policy."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from tidegate.api import NEVER_NS, RequestArrived
from tidegate.engine import FIRST_LEAD_NS, Engine, ResponseMargin
from tidegate.host import Plugins
from tidegate.sim.cluster import Cluster
from tidegate.sim.observed_profiles import NO_BATCH_STATS, TritonBatchStats
from tidegate.sim.record import ANSWERED, LATE, RunRecord
from tidegate.sim.shadow_messages import BypassedRequest, ShadowSetup
from tidegate.sim.simulation import Simulation
from tidegate.sim.true_latency import SimulatedWorker, TrueLatency
from tidegate.workload import RequestSequence

MAX_IDLE_TIMERS: Final = 100_000


class ShadowReplayResult(NamedTuple):
    """Result of simulating the window."""

    took_ns: list[int | None]
    """Latency of each request in ns; None if it had no response, or none in time."""
    batches: list[tuple[int, str, int]]
    """End of each batch in ns on the clock of the requests, its model, and its rows."""


def replay_under_policy(
    begin: ShadowSetup, plugins: Plugins, seen: Sequence[BypassedRequest], headroom: ResponseMargin
) -> ShadowReplayResult:
    """Simulate the policy with deadlines that are earlier by the response margin; late responses do not count.

    `seen`: requests of the window; `headroom`: the margin. Raises PluginError, and whatever the policy raises.
    """
    return _replay(begin, plugins, seen, begin.policy, begin.options, headroom, {})


def replay_under_batcher(
    begin: ShadowSetup,
    plugins: Plugins,
    seen: Sequence[BypassedRequest],
    options: dict[str, Any],
    batch_stats: Mapping[str, TritonBatchStats],
) -> ShadowReplayResult:
    """Simulate Triton's own batcher with these options; late responses count, too.

    `seen`: requests of the window. `batch_stats`: by model; they replace the profiles. Raises PluginError.
    """
    return _replay(begin, plugins, seen, "triton", options, None, batch_stats)


def _replay(
    begin: ShadowSetup,
    plugins: Plugins,
    seen: Sequence[BypassedRequest],
    policy: str,
    options: dict[str, Any],
    headroom: ResponseMargin | None,
    batch_stats: Mapping[str, TritonBatchStats],
) -> ShadowReplayResult:
    setup, first_ns = begin.setup, seen[0].at_ns
    slos_ns = tuple(NEVER_NS if model.slo_ns is None else model.slo_ns for model in setup.models)
    names = tuple(model.name for model in setup.models)
    of_name = {name: index for index, name in enumerate(names)}
    shaped = {(profile.partition, profile.shape) for profile in setup.profiles}
    shapes = tuple(request.shape if (request.model, request.shape) in shaped else "" for request in seen)
    sequence = RequestSequence(
        models=names,
        slos_ns=slos_ns,
        at_ns=array("q", [request.at_ns - first_ns for request in seen]),
        model=array("q", [of_name[request.model] for request in seen]),
        rows=array("q", [request.rows for request in seen]),
        apps=None,
        shapes=shapes,
        times_ms=None,
        served_late=frozenset(
            model.name for model in setup.models if model.on_deadline_miss == "serve" and model.slo_ns
        ),
    )
    record = RunRecord(sequence)
    tables = {
        profile.key: batch_stats.get(profile.partition, NO_BATCH_STATS).table_ns(profile) for profile in setup.profiles
    }
    cluster = Cluster(
        [SimulatedWorker(worker.id, worker.device_class) for worker in setup.workers],
        TrueLatency(tables, None, {}, shapes),
    )
    made = plugins.make_policy(policy, setup, options)
    # An instance of a Triton asks for its next batch when it has ended one, and no sooner.
    lead_ns = FIRST_LEAD_NS if headroom else 0
    engine = Engine(made, name=policy, strict=True, learn=False, first_lead_ns=lead_ns)
    engine.reducer.add_listener(record)
    simulation = Simulation(engine, cluster, patience=MAX_IDLE_TIMERS)
    due = headroom.before if headroom else lambda deadline_ns, _: deadline_ns
    simulation.feed(
        RequestArrived(
            request.arrival_ns,
            replace(request, merge_key=passed.merge_key, deadline_ns=due(request.deadline_ns, request.arrival_ns)),
        )
        for request, passed in zip(sequence, seen, strict=True)
    )
    simulation.run()
    wanted = (ANSWERED,) if headroom else (ANSWERED, LATE)
    took_ns = [
        ended_ns - request.arrival_ns if outcome in wanted else None
        for outcome, ended_ns, request in zip(record.outcome, record.ended_ns, sequence, strict=True)
    ]
    stages = zip(record.stage_ended_ns, record.stage_model, record.stage_rows, strict=True)
    return ShadowReplayResult(took_ns, [(first_ns + ended_ns, names[model], rows) for ended_ns, model, rows in stages])
