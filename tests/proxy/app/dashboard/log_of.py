"""Recordings that tests make: a policy under virtual time, with an observer that records."""

from pathlib import Path

from tests.proxy.app.dashboard.event_buffers import MS
from tidegate.api import Model, Profile, Request, RequestArrived, Setup, Worker
from tidegate.engine import Engine
from tidegate.host import Plugins
from tidegate.observation import Recorder
from tidegate.sim import Simulation

SETUP = Setup(
    (Model("m", 8, slo_ns=60 * MS), Model("n", 4, slo_ns=40 * MS)),
    (Worker(0, "w0", ("m", "n")), Worker(1, "w1", ("m",))),
    (
        Profile.linear("m", alpha_ms=2, beta_ms=10, max_rows=8),
        Profile.linear("n", alpha_ms=3, beta_ms=8, max_rows=4),
    ),
)


def write_log(path: Path, *, seconds: int, rate: int = 100) -> int:
    """Requests for both models in turn, evenly spaced; how many."""
    engines = Plugins.installed().make_policy("symphony", SETUP, {})
    count = seconds * rate
    with path.open("wb") as out:
        engine = Engine(engines, name="symphony", observers=[Recorder(out)])
        simulation = Simulation(engine, patience=100)
        slos = {model.name: model.slo_ns or 0 for model in SETUP.models}
        arrivals = []
        for number in range(count):
            at_ns, model = 5_000 * MS + number * 1_000 * MS // rate, "n" if number % 3 == 0 else "m"
            arrivals.append(RequestArrived(at_ns, Request(number, model, 1, at_ns, at_ns + slos[model])))
        simulation.feed(arrivals)
        simulation.run()
        engine.close()
    return count
