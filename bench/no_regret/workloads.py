"""Random scenarios, from ordinary ones to jitter, stalls, bursts and wrong profiles."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from tidegate.workload import Scenario, stream
from tidegate_proxy.tritons.initial_profiles import DEFAULT_LATENCY

REQUESTS = 6000
"""Number of requests in the measured window."""
LEAST_S, LEAST_WARMUP_S = 1.5, 1.0
MAX_BATCH = 32
ROWS: dict[str, tuple[dict[str, Any], float, int]] = {
    "1": ({"distribution": "constant", "value": 1}, 1.0, 1),
    "log-normal": ({"distribution": "lognormal", "mean": 4, "cv": 1}, 4.0, 9),
    "1 or 16": ({"distribution": "table", "values": [1, 16], "weights": [3, 1]}, 4.75, 16),
}
"""Distributions of rows per request: the distribution, its mean, and the rows of a large request, which SLOs
allow for.
"""
BATCHING = {"much": (6.0, 30.0), "some": (0.8, 4.0), "little": (0.05, 0.4)}
"""Gain of batching: the range of beta / alpha."""


@dataclass(frozen=True)
class Workload:
    """One random experiment, described by the properties by which results are grouped."""

    number: int
    workers: int
    models: int
    batching: str
    """Gain of batching: `much`, `some` or `little` for all models, or `mixed`."""
    popularity: str
    shapes: int
    """Maximum number of shapes of a model; the slowest takes up to three times as long as the fastest."""
    cv: float
    """CV of execution times."""
    stalls: bool
    """Whether one in a hundred executions takes ten times as long."""
    arrivals: str
    """Arrival process: `poisson`, `gamma` with a shape, or a `step` of the load."""
    load: float
    """Load as a share of the capacity with the largest batches that the SLOs allow."""
    profiles: str
    """Quality of the profiles: `good`, `wrong` or `none`."""
    tight: bool = False
    """Whether SLOs are 2.5 to 4 times a request's latency alone, instead of 3 to 10 times."""
    rows: str = "1"
    """Rows per request: `1`, `log-normal` or `1 or 16`."""
    network_latency_ms: float = 0.0
    """Network latency between Tidegate and its Tritons in ms, round trip."""
    network_jitter_ms: float = 0.0
    """Mean of the exponential network jitter in ms."""

    @property
    def facts(self) -> dict[str, Any]:
        """All fields, for files."""
        return asdict(self)


def draw_workload(seed: int, number: int, *, tight: bool = False, near: bool = False) -> Workload:
    """Draw workload `number` of the sample with this seed.

    By default the network latency to Tritons is 0.2 to 2 ms, every other workload is tight, and some have requests of
    several rows.

    Args:
        seed: of the sample.
        number: of the workload.
        tight: few workers with variable execution times, and short SLOs.
        near: no network latency, requests of one row, and no tight workload unless `tight` is given.
    """
    if not near:
        drawn = draw_workload(seed, number, tight=tight or number % 2 == 1, near=True)
        draw = stream(seed, "ways", number)
        network_latency_ms = round(_log_uniform(draw, 0.2, 2), 3)
        jitter_ms = round(network_latency_ms * draw.choice((0, 0.2, 0.5)), 3)
        rows = draw.choice(("1", "1", "log-normal", "1 or 16"))
        return replace(drawn, network_latency_ms=network_latency_ms, network_jitter_ms=jitter_ms, rows=rows)
    draw = stream(seed, "tight" if tight else "no regret", number)
    if tight:
        return replace(
            _drawn(draw, number),
            workers=round(_log_uniform(draw, 1, 4)),
            models=round(_log_uniform(draw, 1, 4)),
            cv=draw.choice((0.2, 0.35, 0.5)),
            load=round(draw.uniform(0.2, 1.2), 3),
            tight=True,
        )
    return _drawn(draw, number)


def _drawn(draw: Random, number: int) -> Workload:
    workers = round(_log_uniform(draw, 1, 64))
    arrivals = draw.choice(("poisson", "poisson", f"gamma {draw.uniform(0.1, 0.25):.2f}", "step"))
    return Workload(
        number=number,
        workers=workers,
        models=round(_log_uniform(draw, 1, 40)),
        batching=draw.choice(("much", "some", "little", "mixed")),
        popularity=draw.choice(("equal", "zipf")),
        shapes=draw.choice((1, 1, 1, 2, 5)),
        cv=draw.choice((0.0, 0.05, 0.1, 0.2, 0.5)),
        stalls=draw.random() < 0.25,
        arrivals=arrivals,
        load=round(draw.uniform(0.05, 1.5), 3),
        profiles=draw.choice(("good", "wrong", "none")),
    )


def scenario_of(workload: Workload, seed: int, requests: int = REQUESTS, learning_s: float = 0.0) -> Scenario:
    """Return a workload as a scenario.

    Args:
        workload: the workload, with its network latency; use `beside` for Triton's batcher.
        seed: of the sample; it also draws what the workload leaves open.
        requests: number of requests in the measured window.
        learning_s: minimum length of the warm-up in s; a step of the load comes after it.
    """
    draw = stream(seed, "models of no regret", workload.number)
    models, service, shares = [], {}, _shares(workload)
    slo_times = (2.5, 4.0) if workload.tight else (3.0, 10.0)
    rows, mean_rows, large_rows = ROWS[workload.rows]
    mean_ms = 0.0
    """Of a worker's time, what a request of the mix costs in batches as large as the SLOs allow."""
    for index in range(workload.models):
        name = f"m{index}"
        least, most = BATCHING[draw.choice([*BATCHING]) if workload.batching == "mixed" else workload.batching]
        alone_ms, ratio = _log_uniform(draw, 2, 50), _log_uniform(draw, least, most)
        true = {"alpha_ms": alone_ms / (1 + ratio), "beta_ms": alone_ms * ratio / (1 + ratio)}
        widths = [100] if workload.shapes == 1 else sorted(draw.sample(range(100, 301), workload.shapes))
        large_ms = true["alpha_ms"] * large_rows + true["beta_ms"]
        slo_ms = max(10.0, large_ms * widths[-1] / 100 * draw.uniform(*slo_times))
        wrong = draw.uniform(0.5, 2.0), draw.uniform(0.5, 2.0)
        told = {
            "good": true,
            "wrong": {"alpha_ms": true["alpha_ms"] * wrong[0], "beta_ms": true["beta_ms"] * wrong[1]},
            "none": DEFAULT_LATENCY,
        }[workload.profiles]
        models.append(
            {
                "name": name,
                "slo_ms": slo_ms,
                "profile": {**told, "max_batch": MAX_BATCH},
                "weight": shares[index],
                "rows": rows,
                "shapes": []
                if workload.shapes == 1
                else [
                    {
                        "shape": f"x:3,48,{width}",
                        "latency_factor": width / 100,
                        "known_to_policy": workload.profiles != "none",
                    }
                    for width in widths
                ],
            }
        )
        service[name] = {"profile": {**true, "max_batch": MAX_BATCH}}
        cost_ms = [_cost_ms(true, width / 100, slo_ms, workload.workers) for width in widths]
        mean_ms += mean_rows * shares[index] * sum(cost_ms) / len(cost_ms)
    rate_rps = workload.load * workload.workers * 1000 / mean_ms
    duration_s = max(LEAST_S, requests / rate_rps)
    simulation: dict[str, Any] = {"service": service}
    if workload.cv:
        simulation["jitter"] = {"cv": workload.cv}
    if workload.stalls:
        simulation["stalls"] = {"probability": 0.01}
    return Scenario.model_validate(
        {
            "version": 1,
            "name": f"no regret {workload.number}",
            "warmup_s": max(LEAST_WARMUP_S, 0.1 * duration_s, learning_s),
            "duration_s": duration_s,
            "workers": [_workers(workload)],
            "models": models,
            "arrivals": _arrivals(workload.arrivals, rate_rps, duration_s, learning_s),
            "simulation": simulation,
        }
    )


def beside(workload: Workload) -> Workload:
    """Return the workload without network latency, as for Triton's own batcher."""
    return replace(workload, network_latency_ms=0.0, network_jitter_ms=0.0)


def _workers(workload: Workload) -> dict[str, Any]:
    network = {"control_ms": workload.network_latency_ms, "jitter_ms": workload.network_jitter_ms}
    return {"count": workload.workers, **({"network": network} if workload.network_latency_ms else {})}


def _arrivals(kind: str, rate_rps: float, duration_s: float, learning_s: float) -> dict[str, Any]:
    if kind == "poisson":
        return {"process": "poisson", "rate_rps": rate_rps}
    if kind == "step":  # to three times the rate and back; the mean is the load
        third = duration_s / 3
        steps = [(0.0, 0.6), (learning_s + third, 1.8), (learning_s + 2 * third, 0.6)]
        return {
            "process": "poisson",
            "rate_rps": [{"from_s": at_s, "rate_rps": factor * rate_rps} for at_s, factor in steps],
        }
    return {"process": "gamma", "shape": float(kind.split()[1]), "rate_rps": rate_rps}


def _shares(workload: Workload) -> Sequence[float]:
    weights = [1 / (index + 1) if workload.popularity == "zipf" else 1.0 for index in range(workload.models)]
    return [weight / sum(weights) for weight in weights]


def _cost_ms(true: dict[str, float], times: float, slo_ms: float, workers: int) -> float:
    """A worker's time for one request of a shape in the largest batch that evenly staggered workers bring in time."""
    best_ms = times * (true["alpha_ms"] + true["beta_ms"])
    for rows in range(2, MAX_BATCH + 1):
        latency_ms = times * (true["alpha_ms"] * rows + true["beta_ms"])
        if latency_ms * (1 + 1 / workers) <= slo_ms:
            best_ms = latency_ms / rows
    return best_ms


def _log_uniform(draw: Random, least: float, most: float) -> float:
    return least * float((most / least) ** draw.random())
