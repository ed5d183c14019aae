"""How long idle instances take to begin is learned of the sizes of batches, and of nothing else."""

from random import Random

import pytest

from tidegate.api import Model, Profile, Setup, Worker
from tidegate.host import Plugins
from tidegate.sim.observed_profiles import NO_BATCH_STATS, TritonBatchStats
from tidegate.sim.shadow_batcher import BEGINS_MS, OwnBatcher
from tidegate.sim.shadow_messages import BypassedRequest, ShadowSetup
from tidegate.sim.shadow_replay import replay_under_batcher

S = 1_000_000_000
MS = 1_000_000
ALL = (0, 100 * S)
SETUP = Setup(
    models=(Model("m", 16, slo_ns=70 * MS),),
    workers=(Worker(0, "a", ("m",)), Worker(1, "b", ("m",))),
    profiles=(Profile.linear("m", alpha_ms=5.0, beta_ms=19.0, max_rows=16),),
)
BEGIN = ShadowSetup(SETUP, "symphony", {}, {"max_queue_delay_ms": 0.0}, ())
PLUGINS = Plugins.installed()


def _bursts(seed: int) -> list[BypassedRequest]:
    """Some 100 requests a second for 20 s; within a burst they come within 0.6 ms of each other."""
    rng, at_ns, seen = Random(seed), 0, []
    while at_ns < 10 * S:
        at_ns += round(rng.expovariate(25) * S)
        for _ in range(rng.randint(1, 7)):
            at_ns += round(rng.uniform(0.02, 0.6) * MS)
            seen.append(BypassedRequest(at_ns, "m", 1, "", ""))
    return seen


def _of_truth(seen: list[BypassedRequest], begin_ms: float) -> TritonBatchStats:
    """What Tritons would tell whose instances take so long to begin."""
    batches = replay_under_batcher(BEGIN, PLUGINS, seen, {"begin_ms": begin_ms}, {}).batches
    sizes = [rows for _, _, rows in batches]
    return TritonBatchStats(0, {rows: (sizes.count(rows), (19.0 + 5.0 * rows) * MS) for rows in set(sizes)})


@pytest.mark.parametrize(
    "begin_ms",
    [pytest.param(begin_ms, marks=() if begin_ms in (0.0, 0.8) else pytest.mark.slow) for begin_ms in BEGINS_MS],
)
def test_it_is_learned_within_a_few_reports_and_kept(begin_ms: float) -> None:
    batcher = OwnBatcher(PLUGINS)
    learned = []
    for seed in range(5):
        seen = _bursts(seed)
        batcher.took_ns(BEGIN, seen, {"m": _of_truth(seen, begin_ms)}, ALL)
        assert batcher.begin_ms is not None
        learned.append(BEGINS_MS.index(batcher.begin_ms))
    true = BEGINS_MS.index(begin_ms)
    assert all(abs(each - true) <= 1 for each in learned[3:]), learned


def test_it_is_unlearned_where_batches_become_smaller() -> None:
    batcher = OwnBatcher(PLUGINS)
    for begin_ms in (1.6, 0.0):
        for seed in range(4):
            seen = _bursts(seed)
            batcher.took_ns(BEGIN, seen, {"m": _of_truth(seen, begin_ms)}, ALL)
        assert batcher.begin_ms is not None
        assert abs(BEGINS_MS.index(batcher.begin_ms) - BEGINS_MS.index(begin_ms)) <= 1


def test_where_batches_do_not_tell_nothing_is_assumed() -> None:
    batcher, alone = OwnBatcher(PLUGINS), [BypassedRequest(at_s * S, "m", 1, "", "") for at_s in range(20)]
    took_ns = batcher.took_ns(BEGIN, alone, {"m": _of_truth(alone, 1.6)}, ALL)
    assert batcher.begin_ms == 0
    assert took_ns == [24 * MS] * 20
    seen = _bursts(1)
    batcher.took_ns(BEGIN, seen, {"m": NO_BATCH_STATS}, ALL)
    assert batcher.begin_ms is None
