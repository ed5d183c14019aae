"""MIG by NVML, against a stand-in that refuses what hardware refuses."""

import inspect
from typing import Any

import msgspec
import pytest

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py, the extra `nvml` of tidegate-proxy")

from tests.proxy.tritons.mig.fake_nvml import FakeNvml, Gpu, refuse  # noqa: E402
from tidegate.schemas import MIG_GEOMETRIES, Mig  # noqa: E402
from tidegate_proxy.tritons.mig.interface import MigError, MigMode  # noqa: E402
from tidegate_proxy.tritons.mig.nvml import NvmlMig  # noqa: E402

ONE = "GPU-00000001-2222-3333-4444-555555555555"


@pytest.mark.parametrize("name", [name for name in vars(FakeNvml) if name.startswith("nvml")])
def test_the_stand_in_is_called_as_pynvml_is(name: str) -> None:
    real, fake = inspect.signature(getattr(pynvml, name)), inspect.signature(getattr(FakeNvml(), name))
    assert list(real.parameters) == list(fake.parameters)


def seen(nvml: FakeNvml) -> list[tuple[str, int | None, bool, tuple[int, ...]]]:
    (gpu,) = NvmlMig(nvml).gpus()
    assert nvml.open == 0
    return [(each.profile, each.start, each.uuid is not None, each.processes) for each in gpu.instances]


def test_what_there_is_is_told() -> None:
    gpu = Gpu(ONE)
    nvml = FakeNvml(gpu)
    nvml.make(gpu, "3g.20gb", 4, pids=(7, 1003))
    nvml.make(gpu, "1g.5gb", 0)
    nvml.make(gpu, "2g.10gb", 2, 1, 1, pids=(9,))
    assert seen(nvml) == [
        ("1g.5gb", 0, True, ()),
        ("2g.10gb", 2, False, (9,)),  # cut again: it is two devices
        ("3g.20gb", 4, True, (7, 1003)),
    ]
    (told,) = NvmlMig(nvml).gpus()
    assert (told.number, told.device.id, told.device.product, told.device.memory_mib) == (
        0,
        ONE,
        "A100-SXM4-40GB",
        40960,
    )
    assert told.mode is MigMode.ON
    nvml.root = False
    assert [start for _, start, _, _ in seen(nvml)] == [None] * 3
    (told,) = NvmlMig(nvml).gpus()
    assert (told.geometry, sorted(each.profile for each in told.instances)) == (None, ["1g.5gb", "2g.10gb", "3g.20gb"])


def test_a_profile_without_a_place_is_none() -> None:
    known = MIG_GEOMETRIES["A100-40GB"]
    first, *others = known.profiles
    listed = msgspec.structs.replace(known, profiles=(msgspec.structs.replace(first, starts=()), *others))
    (told,) = NvmlMig(FakeNvml(Gpu(ONE, geometry=listed))).gpus()
    assert told.geometry is not None
    assert {profile.name for profile in told.geometry.profiles} == {profile.name for profile in others}


@pytest.mark.parametrize("product", MIG_GEOMETRIES)
def test_the_geometry_that_nvml_tells_is_the_one_that_is_known(product: str) -> None:
    known = MIG_GEOMETRIES[product]
    (told,) = NvmlMig(FakeNvml(Gpu(ONE, geometry=known))).gpus()
    assert told.geometry is not None
    assert (told.geometry.compute_slices, told.geometry.memory_slices) == (known.compute_slices, known.memory_slices)
    facts = [
        {
            (each.name, each.id, each.compute_slices, each.memory_slices, each.starts, each.most)
            for each in geometry.profiles
        }
        for geometry in (told.geometry, known)
    ]
    assert facts[0] == facts[1]


@pytest.mark.parametrize(
    ("gpu", "mode"),
    [
        (Gpu(ONE, geometry=None), MigMode.NONE),
        (Gpu(ONE, now=False, then=False), MigMode.OFF),
        (Gpu(ONE, now=False), MigMode.GOING_ON),
        (Gpu(ONE, then=False), MigMode.GOING_OFF),
    ],
)
def test_modes(gpu: Gpu, mode: MigMode) -> None:
    assert [each.mode for each in NvmlMig(FakeNvml(gpu)).gpus()] == [mode]


def test_instances_come_and_go_where_they_were_asked_for() -> None:
    gpu = Gpu(ONE)
    nvml = FakeNvml(gpu)
    node = NvmlMig(nvml)
    (told,) = node.gpus()
    for wanted in (Mig("3g.20gb", 4), Mig("1g.5gb", 3), Mig("1g.5gb+me", 0)):
        node.create(told, wanted)
    assert gpu.cut() == {"1g.5gb+me": [0], "1g.5gb": [3], "3g.20gb": [4]}
    (told,) = node.gpus()
    node.destroy(told, next(each for each in told.instances if each.start == 3))
    assert gpu.cut() == {"1g.5gb+me": [0], "3g.20gb": [4]}
    assert nvml.open == 0


def test_an_instance_that_cannot_be_filled_is_not_left_behind() -> None:
    gpu = Gpu(ONE)
    nvml = FakeNvml(gpu)
    (told,) = NvmlMig(nvml).gpus()
    nvml.fails = lambda what, *_: refuse(pynvml.NVML_ERROR_UNKNOWN) if what == "fill" else None
    with pytest.raises(MigError, match=r"does not make 3g.20gb at 4 on GPU 0"):
        NvmlMig(nvml).create(told, Mig("3g.20gb", 4))
    assert gpu.instances == []


def test_an_instance_that_does_not_go_is_as_it_was() -> None:
    gpu = Gpu(ONE)
    nvml = FakeNvml(gpu)
    nvml.make(gpu, "3g.20gb", 4, 1, 2)
    (told,) = NvmlMig(nvml).gpus()
    nvml.fails = lambda what, *_: refuse(pynvml.NVML_ERROR_IN_USE) if what == "destroy" else None
    with pytest.raises(MigError, match="it is in use; stop what runs on it first"):
        NvmlMig(nvml).destroy(told, told.instances[0])
    assert sorted(part.slices for part in gpu.instances[0].parts) == [1, 2]


@pytest.mark.parametrize(
    ("wanted", "root", "said"),
    [
        (Mig("4g.20gb", 0), True, "what else is there leaves no room"),
        (Mig("1g.5gb", 2), False, "this user may not make 1g.5gb at 2 on GPU 0"),
    ],
)
def test_what_hardware_refuses(wanted: Mig, root: bool, said: str) -> None:
    gpu = Gpu(ONE)
    nvml = FakeNvml(gpu)
    nvml.make(gpu, "1g.5gb", 0)
    (told,) = NvmlMig(nvml).gpus()
    nvml.root = root
    with pytest.raises(MigError, match=said):
        NvmlMig(nvml).create(told, wanted)
    assert gpu.cut() == {"1g.5gb": [0]}


def test_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MigError, match="NVML does not start"):
        NvmlMig(FakeNvml()).gpus()

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("tidegate_proxy.tritons.mig.nvml.import_module", missing)
    with pytest.raises(MigError, match=r"pip install .tidegate-proxy\[nvml\]"):
        NvmlMig()
