"""Devices, slices, and the kind of a worker that follows from the two."""

import msgspec
import pytest

from tidegate.api import Worker
from tidegate.schemas import Device, Mig, Mps, Slice, WholeDevice, compute_percent

A100 = Device("n", "GPU-8f6ab4d2-1c7e-4bd4-9c55-6e6b6d2e8a10", "A100", 40536)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (WholeDevice(), "A100"),
        (Mig("1g.5gb", 2), "A100/1g.5gb"),
        (Mig("1g.5gb", 3), "A100/1g.5gb"),
        (Mps(25), "A100/mps-25"),
        (Mps(25, memory_mib=4096), "A100/mps-25"),
        (Mps(25, instance=Mig("3g.20gb", 4)), "A100/3g.20gb/mps-25"),
    ],
)
def test_the_kind_follows_from_product_and_slice(part: Slice, kind: str) -> None:
    worker = Worker(3, "w", ("m",), device=A100, slice=part)
    assert (worker.device_class, worker.node) == (kind, "n")
    assert msgspec.json.decode(msgspec.json.encode(worker), type=Worker) == worker
    assert len({worker, Worker(3, "w", ("m",), device=A100, slice=part)}) == 1


def test_a_kind_that_is_named_stands() -> None:
    assert Worker(0, "w", ("m",), "mine", A100, Mps(50)).device_class == "mine"
    assert Worker(0, "w", ("m",), device=Device("n", 0)).device_class == "default"
    assert Worker(0, "w", ("m",), device=Device("n", 0), slice=Mps(50)).device_class == "default/mps-50"
    nowhere = Worker(0, "w", ("m",))
    assert (nowhere.device_class, nowhere.device, nowhere.node) == ("default", None, "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "mps", "percent": 0},
        {"type": "mps", "percent": 101},
        {"type": "mps", "percent": 12.5},
        {"type": "mig", "profile": "1g.5gb"},
        {"type": "mig", "profile": "$(date)", "start": 0},
        {"type": "mig", "profile": "1g.5gb\n", "start": 0},
        {"type": "whole", "percent": 100},
        {"percent": 100},
    ],
)
def test_what_is_no_slice_is_refused(wrong: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Slice)


@pytest.mark.parametrize("wrong", [-1, "gpu0", "GPU-x", "GPU-0; date", "GPU-0\n", None])
def test_a_device_has_a_number_or_a_uuid(wrong: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"node": "n", "id": wrong}, Device)


def test_a_share_is_of_the_device_or_of_its_instance() -> None:
    instance = Mig("3g.20gb", 4)
    parts = (WholeDevice(), instance, Mps(40), Mps(70, None, instance))
    assert [compute_percent(part) for part in parts] == [100, 100, 40, 70]
