"""From what there is to what a layout wants: all or nothing, and nothing that is wanted where it is, is touched."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py, the extra `nvml` of tidegate-proxy")

from tests.examples import examples  # noqa: E402
from tests.proxy.tritons.mig.fake_nvml import FakeNvml, Gpu, refuse  # noqa: E402
from tidegate.schemas import MIG_GEOMETRIES, Device, Mig, MigGeometry  # noqa: E402
from tidegate_proxy.tritons.mig.changes import apply_changes, changes  # noqa: E402
from tidegate_proxy.tritons.mig.interface import MigError  # noqa: E402
from tidegate_proxy.tritons.mig.nvml import NvmlMig  # noqa: E402

ONE, TWO = (f"GPU-0000000{number}-2222-3333-4444-555555555555" for number in (1, 2))
FIRST, SECOND = Device("here", 0), Device("here", TWO)


def carry_out(nvml: FakeNvml, wanted: dict[Device, Sequence[Mig]], *, unused_only: bool = False) -> list[str]:
    node, said = NvmlMig(nvml), list[str]()
    apply_changes(node, changes(node.gpus(), wanted, unused_only=unused_only), said.append)
    return said


def cut(gpu: Gpu) -> set[Mig]:
    return {Mig(profile, start) for profile, starts in gpu.cut().items() for start in starts}


@st.composite
def subsets(draw: st.DrawFn, geometry: MigGeometry) -> tuple[Mig, ...]:
    """Some of the instances of a GPU that is cut as finely as it can be, of whatever profiles."""
    names = draw(st.sets(st.sampled_from([profile.name for profile in geometry.profiles]), min_size=1))
    placed = draw(st.sampled_from(geometry.configurations(names)))
    return tuple(each for each in placed if draw(st.booleans()))


geometries = st.sampled_from(list(MIG_GEOMETRIES.values()))
a_few = settings(max_examples=examples(0.4))


@a_few
@given(data=st.data(), geometry=geometries)
def test_whatever_there_is_becomes_what_is_wanted(data: st.DataObject, geometry: MigGeometry) -> None:
    gpu = Gpu(ONE, geometry=geometry)
    nvml = FakeNvml(gpu)
    present, wanted = data.draw(subsets(geometry)), data.draw(subsets(geometry).filter(bool))
    for instance in present:
        nvml.make(gpu, instance.profile, instance.start)
    before = {(each.profile.name, each.start): each.parts[0].uuid for each in gpu.instances}
    carry_out(nvml, {FIRST: wanted})
    assert cut(gpu) == set(wanted)
    for each in gpu.instances:
        if (each.profile.name, each.start) in before:
            assert each.parts[0].uuid == before[each.profile.name, each.start], "it was touched"
    assert carry_out(nvml, {FIRST: wanted}) == []


@a_few
@given(data=st.data(), geometry=geometries)
def test_what_is_in_use_is_left_for_later_and_the_rest_is_done(data: st.DataObject, geometry: MigGeometry) -> None:
    """A change of layouts goes on wave by wave: whoever computes notices nothing, and it ends as it is wanted."""
    gpu = Gpu(ONE, geometry=geometry)
    nvml = FakeNvml(gpu)
    present, wanted = data.draw(subsets(geometry)), data.draw(subsets(geometry).filter(bool))
    used = set(data.draw(st.lists(st.sampled_from(present), unique=True))) if present else set[Mig]()
    for each in present:
        nvml.make(gpu, each.profile, each.start, pids=(7,) if each in used else ())
    uuids = {Mig(each.profile.name, each.start): each.parts[0].uuid for each in gpu.instances}
    carry_out(nvml, {FIRST: wanted}, unused_only=True)
    there = {Mig(each.profile.name, each.start): each.parts[0].uuid for each in gpu.instances}
    assert {each: uuids[each] for each in used} == {each: there[each] for each in used}
    assert there.keys() <= used | set(wanted)
    for each in set(wanted) - there.keys():
        assert not geometry.is_legal((*there, each)), "there was room for it"
    assert carry_out(nvml, {FIRST: wanted}, unused_only=True) == []
    for instance in gpu.instances:
        instance.parts[0].pids.clear()
    carry_out(nvml, {FIRST: wanted}, unused_only=True)
    assert cut(gpu) == set(wanted)


@a_few
@given(data=st.data(), geometry=geometries, at=st.integers(0, 20), interrupted=st.booleans())
def test_where_one_step_is_refused_all_is_as_it_was(
    data: st.DataObject, geometry: MigGeometry, at: int, interrupted: bool
) -> None:
    gpu, other = Gpu(ONE, geometry=geometry), Gpu(TWO, geometry=geometry)
    nvml = FakeNvml(gpu, other)
    cuts = [data.draw(subsets(geometry)) for _ in range(4)]
    for each, present in ((gpu, cuts[0]), (other, cuts[1])):
        for instance in present:
            nvml.make(each, instance.profile, instance.start)
    calls = iter(range(1000))

    def fail(*_: object) -> None:
        if next(calls) == at:
            if interrupted:
                raise KeyboardInterrupt
            refuse(pynvml.NVML_ERROR_UNKNOWN)

    nvml.fails = fail
    wanted: dict[Device, Sequence[Mig]] = {device: cut for device, cut in ((FIRST, cuts[2]), (SECOND, cuts[3])) if cut}
    try:
        carry_out(nvml, wanted)
    except MigError as error:
        assert "nothing is changed" in str(error) or "what was changed before is taken back" in str(error)
        assert (cut(gpu), cut(other)) == (set(cuts[0]), set(cuts[1]))
    else:
        assert (cut(gpu), cut(other)) == (set(cuts[2] or cuts[0]), set(cuts[3] or cuts[1]))
        assert next(calls) <= at


@a_few
@given(data=st.data(), geometry=geometries)
def test_what_the_hardware_would_refuse_is_refused_before_anything_is_touched(
    data: st.DataObject, geometry: MigGeometry
) -> None:
    """And what is legal is not: the stand-in has rules of its own for that."""
    instance = st.builds(Mig, st.sampled_from([each.name for each in geometry.profiles]), st.integers(0, 7))
    wanted = tuple(sorted(data.draw(st.sets(instance, min_size=1, max_size=4)), key=lambda each: each.start))
    gpu, alone = Gpu(ONE, geometry=geometry), Gpu(ONE, geometry=geometry)
    try:
        for each in wanted:
            if each.start not in geometry.profile(each.profile).starts:
                refuse(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            FakeNvml(alone).make(alone, each.profile, each.start)
        legal = True
    except pynvml.NVMLError:
        legal = False
    nvml = FakeNvml(gpu)
    try:
        carry_out(nvml, {FIRST: wanted})
        assert legal
    except MigError as error:
        assert not legal, error
        assert "cannot be cut so" in str(error)
        assert nvml.changed == []


def test_what_stays_goes_and_comes() -> None:
    gpu, other = Gpu(ONE), Gpu(TWO)
    nvml = FakeNvml(gpu, other)
    nvml.make(gpu, "3g.20gb", 4, pids=(7,))
    nvml.make(gpu, "2g.10gb", 0, 1, 1)
    said = carry_out(nvml, {FIRST: (Mig("2g.10gb", 0), Mig("3g.20gb", 4)), SECOND: (Mig("7g.40gb", 0),)})
    assert said == [
        "GPU 0 (A100-SXM4-40GB): 2g.10gb at 0 (cut again, or without a compute instance) is gone",
        "GPU 0 (A100-SXM4-40GB): 2g.10gb at 0 is there",
        "GPU 1 (A100-SXM4-40GB): 7g.40gb at 0 is there",
    ]
    assert gpu.cut() == {"2g.10gb": [0], "3g.20gb": [4]}
    assert gpu.instances[0].parts[0].pids == [7], "who computes there noticed nothing"


@pytest.mark.parametrize(
    ("gpu", "wanted", "root", "said"),
    [
        (Gpu(ONE), [Mig("3g.20gb", 2)], True, "3g.20gb begins at memory slice 0, 4, not at 2"),
        (Gpu(ONE), [Mig("3g.40gb", 0)], True, "has no MIG profile '3g.40gb': it has 1g.5gb, "),
        (Gpu(ONE, now=False, then=False), [Mig("3g.20gb", 0)], True, "turn it on with `nvidia-smi -i 0 -mig 1`"),
        (Gpu(ONE, now=False), [Mig("3g.20gb", 0)], True, "it comes with a reset (`nvidia-smi -i 0 --gpu-reset`)"),
        (Gpu(ONE, geometry=None), [Mig("3g.20gb", 0)], True, "has no MIG: plan its workers on whole GPUs"),
        (Gpu(ONE), [], True, "turn it off with `nvidia-smi -i 0 -mig 0`"),
        (Gpu(ONE), [Mig("3g.20gb", 0)], False, "may not see where its instances lie: run it as root"),
    ],
)
def test_what_speaks_against_it_is_said_and_nothing_is_changed(gpu: Gpu, wanted: Any, root: bool, said: str) -> None:
    nvml = FakeNvml(gpu, root=root)
    with pytest.raises(MigError) as refused:
        carry_out(nvml, {FIRST: wanted})
    assert said in str(refused.value)
    assert nvml.changed == []


def test_all_that_speaks_against_it_is_said_at_once() -> None:
    gpu, other = Gpu(ONE), Gpu(TWO, now=False, then=False)
    nvml = FakeNvml(gpu, other)
    nvml.make(gpu, "3g.20gb", 4, pids=(7, 1003))
    nvml.make(gpu, "1g.5gb", 0)
    wanted: dict[Device, Sequence[Mig]] = {
        FIRST: (Mig("7g.40gb", 0),),
        SECOND: (Mig("7g.40gb", 0),),
        Device("here", 9): (Mig("7g.40gb", 0),),
    }
    with pytest.raises(MigError) as refused:
        carry_out(nvml, wanted)
    first, second, third = str(refused.value).splitlines()
    assert "3g.20gb at 4 would have to go and is in use, by pid 7, 1003: stop what runs there first" in first
    assert "GPU 1 (A100-SXM4-40GB): its MIG mode is off" in second
    assert "the layout has GPU 9 in node 'here', and this machine has 0" in third
    assert nvml.changed == []


def test_a_gpu_that_a_layout_calls_by_two_names_is_refused() -> None:
    nvml = FakeNvml(Gpu(ONE))
    with pytest.raises(MigError, match=f"is 0 in the layout, and {ONE}, too: call it by one of them everywhere"):
        carry_out(nvml, {FIRST: (Mig("4g.20gb", 0),), Device("here", ONE): (Mig("3g.20gb", 4),)})
    assert nvml.changed == []


def test_a_layout_of_another_gpu_is_refused_though_its_profiles_have_the_same_names() -> None:
    gpu = Gpu(ONE, name="NVIDIA H100 80GB HBM3", geometry=MIG_GEOMETRIES["H100-80GB"])
    nvml = FakeNvml(gpu)
    half = (Mig("3g.40gb", 4),)
    with pytest.raises(MigError, match=r"GPU 0 \(H100-80GB-HBM3\) is A100-80GB in the layout, which was planned with"):
        carry_out(nvml, {Device("here", 0, "A100-80GB"): half})
    assert nvml.changed == []
    carry_out(nvml, {Device("here", 0, "H100-80GB"): half})
    assert cut(gpu) == set(half)


def test_what_comes_into_use_meanwhile_is_kept_and_the_rest_taken_back() -> None:
    """Between the look and the deed: the driver refuses, as it would on hardware."""
    gpu = Gpu(ONE)
    nvml = FakeNvml(gpu)
    nvml.make(gpu, "1g.5gb", 0)
    late = nvml.make(gpu, "3g.20gb", 4)
    node = NvmlMig(nvml)
    found = changes(node.gpus(), {FIRST: (Mig("7g.40gb", 0),)})
    late.parts[0].pids.append(7)
    with pytest.raises(
        MigError, match=r"it is in use; stop what runs on it first\nwhat was changed before is taken back"
    ):
        apply_changes(node, found)
    assert gpu.cut() == {"1g.5gb": [0], "3g.20gb": [4]}


def test_what_cannot_be_taken_back_is_said() -> None:
    gpu = Gpu(ONE)
    nvml = FakeNvml(gpu)
    nvml.make(gpu, "1g.5gb", 0)
    nvml.fails = lambda what, *_: refuse(pynvml.NVML_ERROR_UNKNOWN) if what == "create" else None
    with pytest.raises(MigError, match=r"could not be taken back: .*\n`tidegate mig show` says what there is"):
        carry_out(nvml, {FIRST: (Mig("7g.40gb", 0),)})
