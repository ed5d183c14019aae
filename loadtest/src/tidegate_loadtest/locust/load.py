"""Load of a Locust test: drawn once when a test starts, then divided among the sending processes."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tidegate.api import NEVER_NS, NS_PER_MS, ms_to_ns
from tidegate.workload import (
    Arrivals,
    Gamma,
    Poisson,
    RequestSequence,
    Scenario,
    Uniform,
    draw_requests,
    read_scenario,
)
from tidegate.workload.arrivals import NS_PER_S
from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.locust.options import Options
from tidegate_loadtest.scenario_run import plan_runs

CLOSED_LOOP_REQUESTS = 4096
"""Number of different requests of a closed loop, after which they repeat."""


@dataclass(frozen=True)
class Load:
    """Requests of one test, or the model of a closed loop."""

    options: Options
    scenario: Scenario | None
    requests: RequestSequence
    """Requests. Open loop: the schedule, warm-up included. Closed loop: the sequence to send; arrivals are ignored."""
    seed: int
    warmup_ns: int
    window_ns: int | None
    """Length of the window in nanoseconds; None: a closed loop lasts until it is stopped."""

    @property
    def slo_ms(self) -> Mapping[str, float | None]:
        """SLO of each model in ms, or None."""
        slos = zip(self.requests.models, self.requests.slos_ns, strict=True)
        return {model: None if slo_ns == NEVER_NS else slo_ns / NS_PER_MS for model, slo_ns in slos}

    @classmethod
    def asked_for(cls, options: Options) -> "Load":
        """Draw the load from the options. Raises LoadTestError, ScenarioError, TraceError and PluginError."""
        if options.scenario is not None:
            scenario = read_scenario(options.scenario_path)
            seed = scenario.seed if options.seed is None else options.seed
            plan_runs(scenario, options.policies, [seed], options.sending(), target="target")  # is the policy known?
            times_ns = (round(seconds * NS_PER_S) for seconds in (scenario.warmup_s, scenario.duration_s))
            return cls(options, scenario, draw_requests(scenario, seed), seed, *times_ns)
        seed = options.seed or 0
        warmup_ns, window_ns = round(options.warmup_s * NS_PER_S), round(options.duration_s * NS_PER_S)
        if options.rate is None:
            at_ns = array("q", bytes(8 * CLOSED_LOOP_REQUESTS))
            return cls(options, None, _of_model(options, at_ns), seed, warmup_ns, None)
        instants = _arrivals(options).instants_ns(warmup_ns + window_ns, Random(seed))
        return cls(options, None, _of_model(options, array("q", instants)), seed, warmup_ns, window_ns)


@dataclass(frozen=True)
class LoadShare:
    """Part of a load that one process sends."""

    options: Options
    target: str
    seed: int
    number: "array[int]"
    """Number of each request in the whole load."""
    requests: RequestSequence

    @classmethod
    def of(cls, load: Load, target: str, position: int, processes: int) -> "LoadShare":
        """Return every `processes`-th request of the schedule from `position` on; a closed loop is not divided.

        `target`: HOST:PORT of the server.
        """
        every = slice(position, None, processes) if load.options.open_loop else slice(None)
        whole = load.requests
        part = RequestSequence(
            models=whole.models,
            slos_ns=whole.slos_ns,
            at_ns=whole.at_ns[every],
            model=whole.model[every],
            rows=whole.rows and whole.rows[every],
            apps=None,
            shapes=whole.shapes and whole.shapes[every],
            times_ms=None,
        )
        return cls(load.options, target, load.seed, array("q", range(len(whole)))[every], part)

    def as_message(self) -> dict[str, Any]:
        """Serialize for the message to the sending process."""
        part = self.requests
        return {
            "options": self.options.as_message(),
            "target": self.target,
            "seed": self.seed,
            "number": self.number.tobytes(),
            "models": list(part.models),
            "slos_ns": list(part.slos_ns),
            "at_ns": part.at_ns.tobytes(),
            "model": part.model.tobytes(),
            "rows": part.rows.tobytes() if part.rows else None,
            "shapes": part.shapes,
        }

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> "LoadShare":
        """Restore from the result of `as_message`."""
        part = RequestSequence(
            models=tuple(message["models"]),
            slos_ns=tuple(message["slos_ns"]),
            at_ns=array("q", message["at_ns"]),
            model=array("q", message["model"]),
            rows=array("q", message["rows"]) if message["rows"] else None,
            apps=None,
            shapes=tuple(message["shapes"]) if message["shapes"] else None,
            times_ms=None,
        )
        options = Options.from_message(message["options"])
        return cls(options, message["target"], message["seed"], array("q", message["number"]), part)


def _of_model(options: Options, at_ns: "array[int]") -> RequestSequence:
    assert options.model is not None
    assert options.slo_ms is not None
    count = len(at_ns)
    return RequestSequence(
        models=(options.model,),
        slos_ns=(ms_to_ns(options.slo_ms),),
        at_ns=at_ns,
        model=array("q", bytes(8 * count)),
        rows=array("q", [options.rows]) * count,
        apps=None,
        shapes=None,
        times_ms=None,
    )


def _arrivals(options: Options) -> Arrivals:
    assert options.rate is not None
    try:
        match options.process:
            case "poisson":
                return Poisson(options.rate)
            case "gamma":
                return Gamma(options.rate, options.gamma_shape)
            case _:
                return Uniform(options.rate)
    except ValueError as error:
        raise LoadTestError(f"--rate {options.rate}: {error}") from error
