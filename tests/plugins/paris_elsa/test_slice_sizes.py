"""Which workers ELSA asks first."""

import pytest

from tidegate.api import Profile, Worker
from tidegate.schemas import Device, Mig, Mps, Slice, WholeDevice
from tidegate_paris_elsa.policy import smallest_first


def worker(number: int, part: Slice, product: str = "A100") -> Worker:
    return Worker(number, f"w{number}", ("m",), device=Device("n", number, product), slice=part)


def takes(milliseconds: float) -> Profile:
    return Profile.linear("m", alpha_ms=milliseconds, beta_ms=1, max_rows=4)


def order(*workers: tuple[Worker, float]) -> list[int]:
    ranked = smallest_first([(worker, takes(milliseconds)) for worker, milliseconds in workers])
    return [workers[place][0].id for place in ranked]


def test_slices_of_one_product_are_compared_by_size_however_fast_they_are() -> None:
    slices: list[Slice] = [WholeDevice(), Mig("3g.40gb", 0), Mig("1g.10gb+me", 4), Mig("2g.20gb", 5)]
    assert order(*((worker(number, part), 5.0) for number, part in enumerate(slices))) == [2, 3, 1, 0]
    shares: list[Slice] = [Mps(50), WholeDevice(), Mps(20)]
    assert order(*((worker(number, part), 5.0) for number, part in enumerate(shares))) == [2, 0, 1]
    of_one: list[Slice] = [Mps(70, None, Mig("3g.40gb", 4)), Mps(40, None, Mig("3g.40gb", 0))]
    assert order(*((worker(number, part), 5.0) for number, part in enumerate(of_one))) == [1, 0]


def test_compute_instances_are_as_large_as_their_share_of_the_instance() -> None:
    assert order((worker(0, Mig("2g.20gb", 0)), 5), (worker(1, Mig("1c.3g.40gb", 2)), 5)) == [1, 0]


@pytest.mark.parametrize(
    "workers",
    [
        (worker(0, Mig("7g.80gb", 0)), worker(1, Mig("1g.12gb", 0), "H100")),
        (worker(0, WholeDevice()), worker(1, WholeDevice(), "T4")),
        (worker(0, Mig("3g.40gb", 0)), worker(1, Mps(90))),
        (worker(0, Mps(90, None, Mig("1g.10gb", 0))), worker(1, Mps(50, None, Mig("4g.40gb", 0)))),
        (worker(0, Mps(90, None, Mig("1g.10gb", 0))), worker(1, Mps(50))),
        (worker(0, Mps(90, None, Mig("3g.40gb", 0))), worker(1, Mig("3g.40gb", 0))),
        (worker(0, Mig("3g.40gb", 0)), worker(1, Mig("half", 4))),
        (Worker(0, "w0", ("m",), "fast"), Worker(1, "w1", ("m",), "slow")),
    ],
)
def test_what_has_no_common_measure_is_compared_by_speed(workers: tuple[Worker, Worker]) -> None:
    one, other = workers
    assert order((one, 2.0), (other, 5.0)) == [1, 0]
    assert order((one, 5.0), (other, 2.0)) == [0, 1]
