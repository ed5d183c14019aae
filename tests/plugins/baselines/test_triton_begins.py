"""When Triton's batcher begins a batch on one instance, for whatever arrivals: held against a reckoning of its own."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.api import Model, Profile, Request, RequestArrived, Setup, Worker
from tidegate.engine import Engine
from tidegate.host import Plugins
from tidegate.observation import OutcomeListener, StartStage
from tidegate.sim import Simulation

MOST = 64
ALPHA_NS, BETA_NS = 40, 400
"""What a row, and what a batch takes: even, while requests arrive at odd instants and an idle instance begins an odd
time later, so that no two things happen at once."""
SETUP = Setup(
    models=(Model("m", MOST),),
    workers=(Worker(0, "w", ("m",)),),
    profiles=(Profile("m", "default", tuple(BETA_NS + ALPHA_NS * rows for rows in range(1, MOST + 1))),),
)


class _Starts(OutcomeListener):
    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []

    def stage_ran(self, effect: StartStage, started_ns: int, ended_ns: int) -> None:
        self.batches.append((started_ns, effect.rows))


def _simulated(arrivals: list[int], begin_ns: int) -> list[tuple[int, int]]:
    policy = Plugins.installed().make_policy("triton", SETUP, {"begin_ms": begin_ns / 1e6})
    engine = Engine(policy, name="triton", strict=True, learn=False)
    starts = _Starts()
    engine.reducer.add_listener(starts)
    simulation = Simulation(engine)
    simulation.schedule(RequestArrived(at, Request(number, "m", 1, at)) for number, at in enumerate(arrivals))
    simulation.run()
    return starts.batches


def _reckoned(arrivals: list[int], begin_ns: int) -> list[tuple[int, int]]:
    """It begins when the batch before has ended, where somebody waits then; else so long after the next one comes."""
    waiting, batches, free_ns = list(arrivals), [], 0
    while waiting:
        start_ns = free_ns if waiting[0] <= free_ns else waiting[0] + begin_ns
        rows = min(MOST, sum(at <= start_ns for at in waiting))
        batches.append((start_ns, rows))
        waiting = waiting[rows:]
        free_ns = start_ns + BETA_NS + ALPHA_NS * rows
    return batches


@given(gaps=st.lists(st.integers(1, 400), min_size=1, max_size=MOST), begin_ns=st.integers(0, 300))
def test_an_idle_instance_takes_its_time_and_a_busy_one_none(gaps: list[int], begin_ns: int) -> None:
    arrivals = [1 + 2 * sum(gaps[: number + 1]) for number in range(len(gaps))]
    begin_ns = 2 * begin_ns + 1
    assert _simulated(arrivals, begin_ns) == _reckoned(arrivals, begin_ns)
