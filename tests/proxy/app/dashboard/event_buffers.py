"""Moments of an engine under a policy that does what a test says."""

from collections.abc import Iterable

from tests.core.engine.script import BestEffort
from tidegate.api import Commands, Model, Profile, Setup, Worker
from tidegate.engine import AnyStimulus, Engine
from tidegate_proxy.app.dashboard.event_buffer import BufferedEvent, EventBuffer

MS = 1_000_000
SETUP = Setup(
    (Model("m", max_rows=4), Model("n", max_rows=4)),
    (Worker(0, "w0", ("m", "n")), Worker(1, "w1", ("m",))),
    tuple(Profile(model, "default", (10 * MS, 20 * MS, 30 * MS, 40 * MS)) for model in ("m", "n")),
)


def moments_of(stimuli: Iterable[AnyStimulus], *answers: Commands) -> list[BufferedEvent]:
    """What an engine took in, whose policy answers the n-th event that it is told with the n-th answer."""
    engine = Engine(BestEffort(*answers, setup=SETUP), name="script", strict=True, learn=False)
    moments = EventBuffer(most=1000, longest_ns=10**12)
    engine.attach(moments)
    for stimulus in stimuli:
        engine.handle(stimulus)
    return list(moments.latest)
