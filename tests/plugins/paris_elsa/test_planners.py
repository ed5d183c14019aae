"""Plans of slices: every GPC spent, every GPU legal, as much borne as any cut bears."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from tests.examples import few
from tests.plugins.paris_elsa.problems import A100, model, problem, sliced, unhurried
from tidegate.api import PlanningError
from tidegate.api.device import Mig
from tidegate.api.mig import MIG_GEOMETRIES, mig_geometries
from tidegate_paris_elsa import program
from tidegate_paris_elsa.budget import Budget
from tidegate_paris_elsa.layout import layout_of
from tidegate_paris_elsa.plan import MigPlan
from tidegate_paris_elsa.planners import plan_homogeneous, plan_max, plan_paris, plan_random
from tidegate_paris_elsa.problem import GpuPool, MigModel, MigProblem, SliceProfile
from tidegate_paris_elsa.slices import offers_of, work_s


def planned(run: object, given_problem: MigProblem) -> MigPlan:
    assert callable(run)
    plan = run(given_problem, time_limit_s=20, progress=unhurried)
    assert isinstance(plan, MigPlan)
    return plan


def gpcs_in(plan: MigPlan) -> int:
    return sum(int(slice_.profile[0]) for gpu in plan.gpus for slice_ in gpu.slices)


def check_legal(plan: MigPlan) -> None:
    """Every GPU once, cut as it can be, and the counts are those of the slices."""
    assert len({gpu.device for gpu in plan.gpus}) == len(plan.gpus)
    counts: Counter[tuple[str, str]] = Counter()
    for gpu in plan.gpus:
        (geometry,) = mig_geometries(gpu.device.product, gpu.device.memory_mib)
        assert geometry.is_legal(Mig(slice_.profile, slice_.start) for slice_ in gpu.slices)
        counts.update((slice_.model, f"{gpu.device.product}/{slice_.profile}") for slice_ in gpu.slices)
    assert counts == {
        (each.name, slice_type): count for each in plan.models for slice_type, count in each.slices.items() if count
    }
    assert plan.gpcs == gpcs_in(plan)


@given(data=st.data())
def test_every_gpc_of_any_budget_is_spent_on_legal_gpus(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    gpcs = data.draw(st.none() | st.integers(3, 7 * count))
    sizes = data.draw(st.dictionaries(st.integers(1, 32), st.floats(0.1, 9), min_size=1, max_size=6))
    names = ("a", "b")[: data.draw(st.integers(1, 2))]
    given_problem = problem(*(model(name, sizes) for name in names), count=count, gpcs=gpcs)
    try:
        plan = planned(plan_paris, given_problem)
    except PlanningError as error:
        assert "too few for 2 models" in str(error)
        return
    check_legal(plan)
    assert plan.gpcs == (gpcs or 7 * count)
    assert len(plan.gpus) <= count
    layout = layout_of(given_problem, plan)
    assert len(layout.workers) == sum(len(gpu.slices) for gpu in plan.gpus)


def every_count(count: int, gpcs: int) -> Iterator[dict[str, int]]:
    """Brute force: what so many A30 can be cut into, of these GPCs."""
    geometry = MIG_GEOMETRIES["A30-24GB"]
    one = {
        tuple(sorted(names))
        for size in range(5)
        for names in combinations_with_replacement(geometry.plain_names, size)
        if geometry.place(names) is not None
    }
    seen = set()
    for cuts in combinations_with_replacement(sorted(one), count):
        names = tuple(sorted(name for cut in cuts for name in cut))
        if sum(int(name[0]) for name in names) == gpcs and names not in seen:
            seen.add(names)
            yield dict(Counter(names))


def borne(given_problem: MigProblem, slices: dict[str, dict[str, int]], plan: MigPlan) -> float:
    """The load that counts bear, by model and profile: a linear program over which slice serves which segment."""
    offers = offers_of(given_problem)
    slice_types, loads = offers.slice_types, []
    for each, its, speeds in zip(given_problem.models, plan.models, offers.speeds, strict=True):
        flows = [
            (segment, speed)
            for segment, first in zip(its.segments, range(len(speeds)), strict=True)
            for speed in speeds[first:]
            if segment.work_s > 0
        ]
        demanded = [segment for segment in its.segments if segment.work_s > 0]
        served = np.zeros((len(demanded), len(flows) + 1))
        busy = np.zeros((len(speeds), len(flows) + 1))
        for place, (segment, speed) in enumerate(flows):
            served[demanded.index(segment), place] = -1
            busy[speeds.index(speed), place] = work_s(each.shares, segment.rows, speed.throughput_rps)
        served[:, -1] = 1
        have = [slices[each.name].get(slice_types[speed.slice_type].mig.name, 0) for speed in speeds]
        result = linprog(
            [*[0.0] * len(flows), -1.0], A_ub=np.vstack([served, busy]), b_ub=[*[0.0] * len(demanded), *have]
        )
        loads.append(-float(result.fun or 0.0) / each.weight)
    return min(loads)


def on_a30(name: str, rng: Random) -> MigModel:
    profiles = tuple(
        SliceProfile(
            slice_type=slice_type,
            rows=(1, 2, 4, 8),
            latency_ms=tuple(rng.uniform(2, 5) + rng.uniform(1, 4) * rows / gpcs for rows in (1, 2, 4, 8)),
        )
        for slice_type, gpcs in (("1g.6gb", 1), ("2g.12gb", 2), ("4g.24gb", 4))
    )
    return model(name, {rows: rng.random() for rows in (1, 2, 3, 5, 8)}, profiles=profiles, weight=rng.uniform(0.5, 2))


@pytest.mark.parametrize("seed", few(range(12), 4))
def test_no_whole_slices_bear_more_than_those_of_the_plan(seed: int) -> None:
    """Against every way to cut two A30 and to share the slices among one or two models."""
    rng = Random(seed)
    names = ("a", "b")[: 1 + seed % 2]
    given_problem = problem(
        *(on_a30(name, rng) for name in names), gpus=(GpuPool(product="A30-24GB", count=2),), gap=0.0
    )
    plan = planned(plan_paris, given_problem)
    check_legal(plan)
    best = 0.0
    for counts in every_count(2, 8):
        shares = [range(counts.get(slice_type, 0) + 1) for slice_type in ("1g.6gb", "2g.12gb", "4g.24gb")]
        for first in product(*shares):
            mine = dict(zip(("1g.6gb", "2g.12gb", "4g.24gb"), first, strict=True))
            slices = {"a": mine, "b": {slice_type: counts.get(slice_type, 0) - mine[slice_type] for slice_type in mine}}
            if len(names) == 1 and mine != {slice_type: counts.get(slice_type, 0) for slice_type in mine}:
                continue
            best = max(best, borne(given_problem, slices, plan))
    wanted = [
        segment.wanted / segment.work_s / each.weight
        for each, its in zip(given_problem.models, plan.models, strict=True)
        for segment in its.segments
        if segment.work_s > 0
    ]
    assert wanted == pytest.approx([wanted[0]] * len(wanted)), "all parts bear the same load"
    assert plan.objective == pytest.approx(min(best, wanted[0]), rel=1e-4)
    assert plan.bound == pytest.approx(plan.objective, rel=1e-4)


def test_of_counts_that_bear_as_much_the_nearest_to_what_paris_wants_are_taken() -> None:
    """On many GPUs, of kinds that fit together in any numbers, these are the wanted ones but for the rounding."""
    measured = tuple(sliced(gpcs) for gpcs in (1, 2, 7))
    plan = planned(plan_paris, problem(model(profiles=measured), count=100, gain=0.2))
    (only,) = plan.models
    assert min(segment.wanted for segment in only.segments) > 5
    for segment in only.segments:
        assert only.slices.get(segment.slice_type, 0) == pytest.approx(segment.wanted, abs=1)
    assert plan.gpcs == 700
    assert plan.gap is not None
    assert plan.gap <= 0.001


def test_models_are_planned_together_by_their_weights() -> None:
    light, heavy = model("light", {1: 1}), model("heavy", {32: 1}, weight=0.25)
    plan = planned(plan_paris, problem(light, heavy, count=4))
    assert [each.rate_rps for each in plan.models] == pytest.approx([plan.objective, plan.objective / 4], rel=1e-4)
    alone = [
        planned(plan_paris, problem(one, count=2)).objective
        for one in (light, heavy.model_copy(update={"weight": 1.0}))
    ]
    assert plan.objective >= min(alone[0], alone[1] / 0.25)


@pytest.mark.parametrize(("size", "count"), [(1, 14), (2, 6), (3, 4), (4, 2), (7, 2)])
def test_equal_slices_are_as_many_as_fit(size: int, count: int) -> None:
    plan = planned(plan_homogeneous, problem(size=size))
    check_legal(plan)
    assert plan.models[0].slices == {f"A100-40GB/{A100[size]}": count}


@pytest.mark.parametrize(("size", "gpcs", "gpus"), [(1, 24, 4), (2, 24, 4), (3, 24, 4), (7, 28, 4), (3, 48, 8)])
def test_the_homogeneous_servers_of_table_i(size: int, gpcs: int, gpus: int) -> None:
    plan = planned(plan_homogeneous, problem(count=gpus, gpcs=gpcs, size=size))
    check_legal(plan)
    assert plan.models[0].slices == {f"A100-40GB/{A100[size]}": gpcs // size}


def test_the_best_of_equal_slices_is_one_whose_slices_are_on_time() -> None:
    assert planned(plan_max, problem()).objective == max(
        planned(plan_homogeneous, problem(size=size)).objective for size in (1, 2, 3, 7)
    )
    # 32 rows take 2 + 128 / 3 ms on three GPCs.
    hurried = problem(model(slo_ms=45))
    assert set(planned(plan_max, hurried).models[0].slices) == {"A100-40GB/3g.20gb"}


def test_random_slices_follow_the_seed_and_spend_the_budget() -> None:
    plans = [planned(plan_random, problem(count=4, gpcs=24, seed=seed)) for seed in range(20)]
    for plan in plans:
        check_legal(plan)
        assert plan.gpcs == 24
    assert plans[3] == planned(plan_random, problem(count=4, gpcs=24, seed=3))
    assert len({tuple(plan.models[0].slices.items()) for plan in plans}) > 15


def test_a_slice_is_meant_for_nothing_that_it_answers_late() -> None:
    # Rows take 2 + 4 rows / GPCs ms: 4 of them are on time on 1g, 8 on 2g, ...
    on_time = [(7, "slo"), (14, "slo"), (21, "slo")]
    for given_problem in (
        problem(model(slo_ms=30), segments="knees", utilization=1.0, gain=0.01),
        problem(model(slo_ms=60), segments="slo", within=0.5),
        problem(model(slo_ms=37.5), segments="slo"),
    ):
        segments = planned(plan_paris, given_problem).models[0].segments
        assert [(segment.knee, segment.knee_from) for segment in segments[:3]] == on_time


def test_knees_bound_segments_where_no_slo_is_known_or_they_are_asked_for() -> None:
    unknown = planned(plan_paris, problem(model()))
    asked = planned(plan_paris, problem(model(slo_ms=1000), segments="knees"))
    assert asked == unknown
    assert {segment.knee_from for segment in unknown.models[0].segments} == {"latency"}
    by_slo = planned(plan_paris, problem(model(slo_ms=1000), segments="slo"))
    assert {segment.knee_from for segment in by_slo.models[0].segments} == {"slo"}
    both = planned(plan_paris, problem(model("a", slo_ms=1000), model("b"), count=4, segments="slo"))
    assert [each.segments[0].knee_from for each in both.models] == ["slo", "latency"]


def test_slices_with_too_little_memory_are_not_used() -> None:
    plan = planned(plan_paris, problem(model(memory_mib=8000)))
    assert {segment.slice_type for segment in plan.models[0].segments} == {
        f"A100-40GB/{A100[size]}" for size in (2, 3, 4, 7)
    }


def test_memory_that_no_listing_confirmed_is_taken_for_what_is_there_at_least() -> None:
    measured = tuple(
        SliceProfile(slice_type=slice_type, rows=(1, 32), latency_ms=(6, 80)) for slice_type in ("2g.45gb", "3g.90gb")
    )
    b200 = (GpuPool(product="B200-180GB", count=1),)
    plan = planned(plan_paris, problem(model(profiles=measured, memory_mib=80_000), gpus=b200))
    assert plan.models[0].slices == {"B200-180GB/3g.90gb": 2}


def test_gpus_of_several_products_are_cut_each_by_its_own_geometry() -> None:
    measured = (
        *(sliced(gpcs) for gpcs in A100),
        SliceProfile(slice_type="A30-24GB/2g.12gb", rows=(1, 32), latency_ms=(6, 80)),
    )
    pools = (GpuPool(product="A100-40GB", count=1), GpuPool(product="A30-24GB", count=2))
    plan = planned(plan_paris, problem(model(profiles=measured), gpus=pools))
    check_legal(plan)
    assert plan.gpcs == 7 + 8
    assert plan.models[0].slices["A30-24GB/2g.12gb"] == 4


BAD: list[tuple[MigProblem, str]] = [
    (problem(gpcs=15), "no legal layout of 2 A100-40GB spends 15 GPCs with slices of 1g.5gb, .*: 14 would do"),
    (
        problem(model(profiles=(sliced(3), sliced(7))), gpcs=8),
        "spends 8 GPCs with slices of 3g.20gb, 7g.40gb: 7 or 9 would do",
    ),
    (
        problem(model(profiles=(SliceProfile(slice_type="5g.40gb", rows=(1,), latency_ms=(1,)),))),
        "'5g.40gb' is no slice of these GPUs: A100-40GB has 1g.5gb",
    ),
    (problem(model(profiles=(sliced(1, 8), sliced(2, 8)))), "its requests have up to 32 rows, measured are .* up to 8"),
    (problem(model(memory_mib=99999)), r"no slice can serve it: it takes 99999 MiB, A100-40GB/1g.5gb has 4864"),
    (problem(model(slo_ms=5)), "32 rows take 20.* ms on its fastest slice, and its slo_ms is 5: a longer slo_ms"),
    (problem(*(model(name) for name in "abc")), "14 GPCs are too few for 3 models: no two share a slice"),
    (problem(model(sizes="/nowhere.json")), "/nowhere.json: No such file"),
    (problem(model(profiles="/nowhere.json")), "/nowhere.json: No such file"),
]


@pytest.mark.parametrize(("bad", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_what_cannot_be_planned_is_said_with_the_remedy(bad: MigProblem, said: str) -> None:
    with pytest.raises(Exception, match=said):
        planned(plan_paris, bad)


def test_equal_slices_that_there_are_not_are_named() -> None:
    with pytest.raises(PlanningError, match="size: `homogeneous` needs one"):
        planned(plan_homogeneous, problem())
    a30 = problem(on_a30("m", Random(1)), gpus=(GpuPool(product="A30-24GB", count=1),), size=3)
    with pytest.raises(PlanningError, match="size: A30-24GB have no slices of 3 GPCs"):
        planned(plan_homogeneous, a30)
    with pytest.raises(PlanningError, match=r"it was not measured on A100-40GB/4g.20gb"):
        planned(plan_homogeneous, problem(model(profiles=(sliced(1), sliced(2))), size=4))
    with pytest.raises(PlanningError, match=r"spends 24 GPCs with slices of 7g.40gb: 21 or 28 would do"):
        planned(plan_homogeneous, problem(count=4, gpcs=24, size=7))


def test_the_budget_of_many_gpus_is_added_up_once() -> None:
    many = problem(count=1000)
    offers = offers_of(many)
    budget = Budget(many, offers.slice_types, offers.usable)
    assert budget.most == budget.gpcs == 7000


def test_too_little_time_is_no_proof_that_there_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver may end with counts that bear nothing, which are a plan of nothing."""
    monkeypatch.setattr(
        program, "milp", lambda goal, **_: SimpleNamespace(x=np.zeros(len(goal)), mip_dual_bound=-1.0, status=1)
    )
    with pytest.raises(PlanningError, match="found no plan in 20 s, and no proof that there is none: give more time"):
        planned(plan_paris, problem())
