"""Changes of layouts: what they end in, that no step is illegal, and that every model keeps its share meanwhile."""

from collections import Counter, defaultdict
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.paris_elsa import problems
from tests.plugins.paris_elsa.problems import A100, unhurried
from tidegate.api import PlanningError
from tidegate.api.device import Device, Mig, Mps, Slice, WholeDevice
from tidegate.api.mig import MIG_GEOMETRIES
from tidegate.schemas import Layout, LayoutModel, LayoutPartition, LayoutPipeline, LayoutWorker
from tidegate_paris_elsa.change_plan import Reconfiguration, ReconfigurationProblem
from tidegate_paris_elsa.instances import gpu_of, gpus_of
from tidegate_paris_elsa.layout import layout_of
from tidegate_paris_elsa.planners import plan_paris
from tidegate_paris_elsa.reconfigure import new_layout, plan_reconfiguration, rates_borne
from tidegate_paris_elsa.steps import CapacityChange, least_kept, waves_of

GEOMETRY = MIG_GEOMETRIES["A100-40GB"]
PRODUCT = "A100-40GB"


def layout(*gpus: dict[int, tuple[str, str]], node: str = "a", rates_rps: float = 0.0) -> Layout:
    """GPUs from number 0 on, each {start: (profile, model)}; a slice does as many rows a second as it has GPCs."""
    workers = tuple(
        LayoutWorker(
            name=f"{node}-{number}-{start}-{profile}",
            device=Device(node, number, PRODUCT),
            slice=Mig(profile, start),
            hosts=(name,),
        )
        for number, gpu in enumerate(gpus)
        for start, (profile, name) in gpu.items()
    )
    names = sorted({worker.hosts[0] for worker in workers})
    return Layout(
        models=tuple(
            LayoutModel(name=name, rate_rps=rates_rps, pipelines=(LayoutPipeline(partitions=(name,), batch=1),))
            for name in names
        ),
        partitions=tuple(
            LayoutPartition(
                name=name,
                model=name,
                blocks=(0, 1),
                latency_ms={f"{PRODUCT}/{profile}": (1000 / gpcs,) for gpcs, profile in A100.items()},
            )
            for name in names
        ),
        workers=workers,
    )


def change(present: Layout, planned: Layout, **more: object) -> tuple[ReconfigurationProblem, Reconfiguration]:
    problem = ReconfigurationProblem.model_validate({"present": present, "planned": planned, **more})
    return problem, plan_reconfiguration(problem, time_limit_s=10, progress=unhurried)


def capacity(workers: list[LayoutWorker], name: str) -> float:
    return sum(int(worker.speed.split("/")[1][0]) for worker in workers if name in worker.hosts)


def check(problem: ReconfigurationProblem, plan: Reconfiguration) -> None:
    """Carry the plan out, step by step: nothing is illegal, enough capacity serves, and it ends as planned."""
    present, planned = problem.layouts
    final = new_layout(problem, plan)
    running = {worker.name: worker for worker in present.workers}
    there: defaultdict[Device, set[Slice]] = defaultdict(set)
    for worker in present.workers:
        there[worker.device].add(worker.slice)
    new = {worker.name: worker for worker in final.workers}
    least = {
        part.name: min(capacity([*present.workers], part.name), capacity([*planned.workers], part.name))
        for part in present.partitions
    }
    kept = 1.0
    for wave in range(1 + max((step.wave for step in plan.steps), default=-1)):
        steps = [step for step in plan.steps if step.wave == wave]
        for step in steps:
            for name in step.stops:
                del running[name]
            there[step.device] -= set(step.destroys)
        for name, whole in least.items():
            serves = capacity([*running.values()], name)
            assert serves >= problem.keep * whole - 1e-6
            kept = min(kept, serves / whole if whole else 1.0)
        for step in steps:
            there[step.device] |= set(step.creates)
            for name in step.starts:
                running[name] = new[name]
        for device, parts in there.items():
            assert all(isinstance(part, Mig) for part in parts)
            assert GEOMETRY.is_legal(part for part in parts if isinstance(part, Mig)), device
    assert plan.cost.kept == pytest.approx(kept)
    assert {name: (its.device, its.slice, its.hosts) for name, its in running.items()} == {
        name: (its.device, its.slice, its.hosts) for name, its in new.items()
    }
    wanted, got = (
        Counter(pair for gpu in map(gpu_of, gpus_of(each).values()) for pair in _migs(gpu)) for each in (planned, final)
    )
    assert Counter((part.profile, hosts) for part, hosts in got.elements()) == Counter(
        (part.profile, hosts) for part, hosts in wanted.elements()
    )


def _migs(gpu: tuple[tuple[Slice, object], ...]) -> list[tuple[Mig, object]]:
    return [(part, hosts) for part, hosts in gpu if isinstance(part, Mig)]


CUTS = GEOMETRY.configurations()
MODELS = ("m", "n")


@st.composite
def any_layout(draw: st.DrawFn, gpus: int) -> Layout:
    cells = [
        {instance.start: (instance.profile, draw(st.sampled_from(MODELS))) for instance in draw(st.sampled_from(CUTS))}
        for _ in range(gpus)
    ]
    return layout(*cells)


@given(data=st.data())
def test_whatever_is_changed_ends_as_planned_is_legal_meanwhile_and_keeps_the_share(data: st.DataObject) -> None:
    present, planned = data.draw(any_layout(data.draw(st.integers(1, 3)))), data.draw(any_layout(2))
    keep = data.draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    try:
        problem, plan = change(present, planned, keep=keep)
    except PlanningError as error:
        assert keep > 0
        assert "can be kept" in str(error)
        problem, plan = change(present, planned, keep=0.0)
    check(problem, plan)
    assert plan.cost.away_s <= plan.naive.away_s + 1e-3


def named(given: Layout) -> Layout:
    """The same with kinds of its own, of the same speed."""
    document = given.model_dump()
    for worker in document["workers"]:
        worker["device_class"] = f"my {worker['slice']['profile']}"
    for part in document["partitions"]:
        part["latency_ms"] = {f"my {kind.split('/')[1]}": table for kind, table in part["latency_ms"].items()}
    return Layout.model_validate(document)


@given(data=st.data())
def test_kinds_that_layouts_name_have_their_capacity_too(data: st.DataObject) -> None:
    """What a change does to layouts of other words for the same is the same, and the new layout has those words."""
    present, planned = data.draw(any_layout(2)), data.draw(any_layout(2))
    keep = data.draw(st.sampled_from([0.0, 0.2, 0.5]))
    try:
        _, plan = change(present, planned, keep=keep)
    except PlanningError as error:
        with pytest.raises(PlanningError) as refused:
            change(named(present), named(planned), keep=keep)
        assert str(refused.value) == str(error)
        return
    problem, other = change(named(present), named(planned), keep=keep)
    assert (other.cost, other.steps) == (plan.cost, plan.steps)
    assert {worker.device_class for worker in new_layout(problem, other).workers} == {
        worker.device_class for worker in named(planned).workers
    }


def test_a_layout_that_serves_already_is_not_changed_wherever_its_gpus_are_numbered() -> None:
    seven, cut = {0: (A100[7], "m")}, {0: (A100[4], "m"), 4: (A100[3], "n")}
    problem, plan = change(layout(seven, cut, seven), layout(cut, seven, seven, node="b"))
    assert plan.steps == ()
    assert plan.summary.startswith("nothing is to be changed")
    assert {worker.name for worker in new_layout(problem, plan).workers} == {
        worker.name for worker in problem.layouts[0].workers
    }
    assert plan.naive.destroyed > 0


def test_slices_that_serve_stay_where_they_are() -> None:
    """The 3g at 4 stays, though the plan has it at 0; only the left half is cut anew."""
    present = layout({0: (A100[4], "m"), 4: (A100[3], "n")})
    planned = layout({0: (A100[3], "n"), 4: (A100[2], "m"), 6: (A100[1], "m")})
    problem, plan = change(present, planned, keep=0.0)
    check(problem, plan)
    (step,) = plan.steps
    assert step.destroys == (Mig(A100[4], 0),)
    assert {part.profile for part in step.creates if isinstance(part, Mig)} == {A100[2], A100[1]}
    assert all(isinstance(part, Mig) and part.start < 4 for part in step.creates)
    assert plan.cost.destroyed == 1
    assert plan.naive.destroyed == 2


def test_what_takes_nothing_comes_first_and_order_keeps_capacity() -> None:
    """The only GPU of n cannot go before another one has a slice for n, which has three GPCs of its seven."""
    present = layout({0: (A100[7], "m")}, {0: (A100[7], "m")}, {0: (A100[7], "n")})
    planned = layout(*({0: (A100[4], "m"), 4: (A100[3], "n")} for _ in range(3)))
    problem, plan = change(present, planned, keep=0.4)
    check(problem, plan)
    assert plan.cost.kept == pytest.approx(3 / 7)
    assert plan.steps[0].device != Device("a", 2, PRODUCT)
    with pytest.raises(PlanningError, match=r"keeps 0\.5 of every model's capacity; 0\.428 can be kept: allow that"):
        change(present, planned, keep=0.5)


@pytest.mark.parametrize("field", ["load_s", "rates_rps"])
def test_a_model_that_no_layout_has_is_named(field: str) -> None:
    present, planned = layout({0: (A100[7], "m")}), layout({0: (A100[7], "n")})
    more: dict[str, object] = {field: {"m": 1, "x": 2}}
    with pytest.raises(PlanningError, match=f"{field}: no layout has a model 'x', but m, n"):
        change(present, planned, **more)


def test_a_model_is_loaded_into_a_slice_that_stays() -> None:
    present = layout({0: (A100[4], "m"), 4: (A100[3], "m")}, {0: (A100[7], "n")})
    planned = layout({0: (A100[4], "m"), 4: (A100[3], "n")}, {0: (A100[7], "n")})
    problem, plan = change(present, planned, load_s={"m": 7, "n": 11})
    check(problem, plan)
    (step,) = plan.steps
    assert (step.destroys, step.creates, step.seconds) == ((), (), 11)
    assert step.stops == step.starts == ("a-0-4-3g.20gb",)
    assert (plan.cost.destroyed, plan.cost.loads) == (0, 1)


def test_a_change_is_worth_what_it_gains_and_says_so_if_it_is_not() -> None:
    cut = layout({0: (A100[4], "m"), 4: (A100[3], "m")}, {0: (A100[7], "m")}, rates_rps=110.0)
    whole = layout({0: (A100[7], "m")}, {0: (A100[7], "m")}, rates_rps=100.0)
    _, long = change(whole, cut, horizon_s=3600)
    # Half of 100 requests a second are away for 35 s; 10 more are borne for the rest of the hour.
    assert long.lost_requests == pytest.approx(0.5 * 100 * 35)
    assert long.gained_rps == pytest.approx(10)
    assert long.worth
    assert long.summary.startswith("worth it: it gains 35,650 requests within 3600 s and loses 1,750")
    _, short = change(whole, cut, horizon_s=100)
    assert short.worth is False
    assert short.summary.startswith("NOT worth its change: it gains 650 requests within 100 s and loses 1,750")
    _, asked = change(whole, cut, rates_rps={"m": 90})
    assert asked.worth is False, "nobody asks for more than is borne already"
    _, unknown = change(layout({0: (A100[7], "m")}), layout({0: (A100[4], "m")}), keep=0)
    assert unknown.worth is None
    assert "a layout says no rate_rps" in unknown.summary


def test_gpus_that_are_no_mig_are_changed_as_a_whole() -> None:
    cut = layout({0: (A100[4], "m"), 4: (A100[3], "m")})
    worker = LayoutWorker(
        name="w", device=Device("a", 0, PRODUCT), slice=WholeDevice(), hosts=("m",), device_class=None
    )
    parts = cut.partitions[0].model_copy(update={"latency_ms": {**cut.partitions[0].latency_ms, PRODUCT: (100.0,)}})
    whole = cut.model_copy(update={"workers": (worker,), "partitions": (parts,)})
    problem, plan = change(whole, cut, keep=0)
    (step,) = plan.steps
    assert step.destroys == (WholeDevice(),)
    assert len(step.creates) == 2
    assert len(new_layout(problem, plan).workers) == 2


def shared(*workers: tuple[str, Slice, str], node: str = "a") -> Layout:
    """Workers of one GPU, each with its slice and model, measured on all slices that occur here."""
    every = layout({0: (A100[7], "m")}, {0: (A100[7], "n")})
    kinds = [PRODUCT, *(f"{PRODUCT}{of}/mps-{each}" for of in ("", f"/{A100[3]}") for each in (30, 40, 70))]
    parts = tuple(
        part.model_copy(update={"latency_ms": {**part.latency_ms, **dict.fromkeys(kinds, (100.0,))}})
        for part in every.partitions
    )
    mine = tuple(
        LayoutWorker(name=name, device=Device(node, 0, PRODUCT), slice=part, hosts=(model,))
        for name, part, model in workers
    )
    hosted = {model for _, _, model in workers}
    models = tuple(model for model in every.models if model.name in hosted)
    return Layout(models=models, partitions=tuple(part for part in parts if part.model in hosted), workers=mine)


def test_workers_with_shares_of_an_instance_are_its_own() -> None:
    """A share that changes is one worker's affair; the instance and who else is in it stay."""
    three, there = Mig(A100[3], 4), Mig(A100[3], 0)
    seven = ("seven", Mig(A100[4], 0), "n")
    present = shared(("large", Mps(70, 8192, three), "m"), ("small", Mps(40, None, three), "n"), seven)
    same = shared(("x", Mps(40, None, there), "n"), ("y", Mps(70, 8192, there), "m"), node="b")
    problem, plan = change(present, same, keep=0)
    assert [(step.destroys, step.creates, step.stops) for step in plan.steps] == [((Mig(A100[4], 0),), (), ("seven",))]
    stayed = {worker.name: worker for worker in present.workers[:2]}
    assert {worker.name: worker for worker in new_layout(problem, plan).workers} == stayed
    smaller = shared(("x", Mps(30, None, three), "n"), ("y", Mps(70, 8192, three), "m"), seven)
    problem, plan = change(present, smaller, load_s=11, keep=0)
    (step,) = plan.steps
    assert (step.destroys, step.creates, step.stops, step.starts) == ((), (), ("small",), ("small",))
    assert (step.seconds, plan.cost.loads, plan.cost.destroyed) == (11, 1, 0), "its process starts anew"
    assert {worker.name: worker.slice for worker in new_layout(problem, plan).workers} == {
        "large": Mps(70, 8192, three),
        "small": Mps(30, None, three),
        "seven": Mig(A100[4], 0),
    }


def test_a_share_of_a_gpu_changes_beside_the_others() -> None:
    present = shared(("large", Mps(70), "m"), ("small", Mps(40), "n"))
    _, plan = change(present, shared(("x", Mps(70), "m"), ("y", Mps(40), "m")), keep=0)
    (step,) = plan.steps
    assert (step.destroys, step.creates, step.stops, step.starts) == ((), (), ("small",), ("small",))
    _, more = change(present, shared(("x", Mps(70), "m"), ("y", Mps(40), "n"), ("z", Mps(30), "m")), keep=1)
    (step,) = more.steps
    assert (step.stops, len(step.starts)) == ((), 1)
    _, cut = change(present, shared(("x", Mig(A100[7], 0), "m")), keep=0)
    (step,) = cut.steps
    assert (step.destroys, step.creates, set(step.stops)) == ((WholeDevice(),), (Mig(A100[7], 0),), {"large", "small"})


@given(data=st.data())
def test_an_order_is_found_wherever_there_is_one(data: st.DataObject) -> None:
    """Against every order of up to five moves; waves keep what single moves would."""
    amounts = st.dictionaries(st.sampled_from("ab"), st.integers(0, 4).map(float), max_size=2)
    moves = data.draw(st.lists(st.builds(CapacityChange, amounts, amounts), min_size=1, max_size=5))
    lost = {name: sum(move.lost.get(name, 0.0) for move in moves) for name in "ab"}
    present = {name: lost[name] + data.draw(st.integers(0, 3)) for name in "ab"}
    needed = {name: present[name] * data.draw(st.sampled_from([0.0, 0.3, 0.6])) for name in "ab"}

    def keeps(order: tuple[int, ...]) -> bool:
        have = dict(present)
        for number in order:
            for name, amount in moves[number].lost.items():
                have[name] -= amount
                if amount > 0 and have[name] < needed[name] - 1e-9:
                    return False
            for name, amount in moves[number].gained.items():
                have[name] += amount
        return True

    waves = waves_of(moves, present, needed)
    assert (waves is not None) == any(keeps(order) for order in permutations(range(len(moves))))
    if waves is not None:
        assert sorted(number for wave in waves for number in wave) == list(range(len(moves)))
        assert 0 <= least_kept(moves, waves, present, present) <= 1
        assert keeps(tuple(number for wave in waves for number in wave))


def test_what_layouts_are_worth_follows_from_the_requests_that_come() -> None:
    """A layout for small requests says that it bears more than one for large ones; of large ones it bears less."""
    small, large = problems.model(sizes={1: 1}, slo_ms=30), problems.model(sizes={32: 1}, slo_ms=30)
    present, planned = (
        layout_of(given, plan_paris(given, time_limit_s=10, progress=unhurried))
        for given in (problems.problem(small), problems.problem(large))
    )
    said = change(present, planned, keep=0)[1]
    assert said.worth is False
    assert said.gained_rps is not None
    assert said.gained_rps < 0
    _, known = change(present, planned, keep=0, problem=problems.problem(large))
    assert known.worth
    back = change(planned, present, keep=0, problem=problems.problem(large))[1]
    assert back.gained_rps == pytest.approx(-(known.gained_rps or 0))


def test_slices_bear_what_can_be_on_time_on_them() -> None:
    """32 rows take 2 + 4 * 32 / GPCs ms: within 30 ms on 7g only, though 1g does small ones."""
    cut = layout({0: (A100[7], "m")}, dict.fromkeys(range(7), (A100[1], "m")))
    mixed = problems.model(sizes={1: 1, 32: 1}, slo_ms=30)
    seven_ms, one_ms = 2 + 4 * 32 / 7, 2 + 4
    # Half of the requests keep 7g busy, the others seven 1g: those have time to spare.
    assert rates_borne(problems.problem(mixed), cut)["m"] == pytest.approx(2 * 1000 / seven_ms)
    light = problems.model(sizes={1: 1}, slo_ms=30)
    assert rates_borne(problems.problem(light), cut)["m"] == pytest.approx(7 * 1000 / one_ms + 1000 / (2 + 4 / 7))
    assert rates_borne(problems.problem(light), named(cut)) == rates_borne(problems.problem(light), cut)
    halves = [problems.model(name, sizes={1: 1}) for name in ("m", "n")]
    assert rates_borne(problems.problem(*halves), cut) == {"m": 0, "n": 0}
    small = problems.model(sizes={1: 1}, profiles=(problems.sliced(2), problems.sliced(3)))
    with pytest.raises(PlanningError, match=r"'m' was measured on .*2g.10gb, .*, and the layout has it on .*1g.5gb"):
        rates_borne(problems.problem(small), cut)


@given(data=st.data())
def test_where_as_many_slices_serve_as_are_planned_nothing_is_changed(data: st.DataObject) -> None:
    """Whichever GPUs the plan has them on; and if one serves another model, one is loaded and no more."""
    cuts = data.draw(st.lists(st.sampled_from(CUTS), min_size=1, max_size=4))
    others = data.draw(st.permutations(cuts))
    profiles = [instance.profile for cut in cuts for instance in cut]
    names = data.draw(st.lists(st.sampled_from(MODELS), min_size=len(profiles), max_size=len(profiles)))
    dealt: defaultdict[str, list[str]] = defaultdict(list)
    for profile, name in zip(profiles, data.draw(st.permutations(names)), strict=True):
        dealt[profile].append(name)

    def cells(cuts: list[tuple[Mig, ...]], dealt: dict[str, list[str]]) -> list[dict[int, tuple[str, str]]]:
        left = {profile: list(mine) for profile, mine in dealt.items()}
        return [{part.start: (part.profile, left[part.profile].pop()) for part in cut} for cut in cuts]

    present = layout(*cells(cuts, dealt))
    planned = layout(*cells(others, {profile: mine[::-1] for profile, mine in dealt.items()}), node="b")
    assert change(present, planned)[1].steps == ()
    profile = profiles[0]
    dealt[profile][0] = "m" if dealt[profile][0] == "n" else "n"
    problem, plan = change(present, layout(*cells(others, dealt), node="b"), keep=0)
    check(problem, plan)
    assert [(step.destroys, step.creates, len(step.starts)) for step in plan.steps] == [((), (), 1)]
