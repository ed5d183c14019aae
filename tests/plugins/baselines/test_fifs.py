"""First idle, first served, event by event."""

from tests.arrivals import Arrivals
from tidegate.api import Batch, Dispatch, Model, Profile, Setup, Stage, Worker, WorkerReady
from tidegate.testing import Playbook
from tidegate_baselines.fifs import Fifs, FifsOptions

SETUP = Setup(
    models=(Model("m", 4), Model("n", 4)),
    workers=(Worker(0, "w0", ("m", "n")), Worker(1, "w1", ("n",))),
    profiles=tuple(Profile(name, "default", (10, 20, 30, 40)) for name in ("m", "n")),
)


def playbook(max_rows: int | None = None) -> Playbook:
    return Playbook(Fifs(SETUP, FifsOptions(max_rows=max_rows)))


arrived = Arrivals(slo_ns=1)


def run(batch: int, *request_ids: int, at: int, rows: int = 0, model: str = "m", worker: int = 0) -> Dispatch:
    stage = Stage(worker, model, at, 10 * (rows or len(request_ids)))
    return Dispatch(Batch(batch, model, request_ids, (stage,)))


def freed(now_ns: int, worker: int = 0) -> WorkerReady:
    return WorkerReady(now_ns, worker, now_ns)


def test_it_is_eager_and_takes_what_waits_behind_the_oldest_however_late() -> None:
    assert (
        playbook()
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        >> arrived(2, 2, rows=2)
        >> arrived(3, 3, rows=2)
        >> freed(50)
        << run(1, 1, 2, at=50, rows=3)
        >> freed(80)
        << run(2, 3, at=80, rows=2)
        >> freed(100)
    )


def test_the_oldest_head_of_what_a_worker_hosts_goes_first() -> None:
    assert (
        playbook()
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 0, "n")
        << run(1, 1, at=0, model="n", worker=1)
        >> arrived(2, 1)
        >> arrived(3, 2, "n")
        >> arrived(4, 3, key="wide")
        >> freed(10, worker=1)
        << run(2, 3, at=10, model="n", worker=1)
        >> freed(20)
        << run(3, 2, at=20)
        >> freed(30)
        << run(4, 4, at=30)
    )


def test_the_largest_batch_can_be_limited_but_a_larger_request_still_runs() -> None:
    assert (
        playbook(max_rows=2)
        >> arrived(0, 0)
        << run(0, 0, at=0)
        >> arrived(1, 1)
        >> arrived(2, 2)
        >> arrived(3, 3)
        >> arrived(4, 4, rows=3)
        >> freed(10)
        << run(1, 1, 2, at=10)
        >> freed(30)
        << run(2, 3, at=30)
        >> freed(40)
        << run(3, 4, at=40, rows=3)
    )
