"""Workloads of the Orloj paper's Tables 2 to 5 as scenarios: latencies as published, the rest chosen here.

The paper gives the spread of each mode, the number of modes, or the mean and the 99th percentile of the stand-alone
latencies. It does not give the positions of the modes, the constants c0 and c1, the arrivals, or the load.
"""

from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import NormalDist
from typing import Any, Final

from pydantic import TypeAdapter

from tidegate.workload import PolicyChoice, RequestSequence, Scenario, draw_requests
from tidegate.workload.distributions import AnyDistribution, Distribution

FIRST_MODE_MS, LAST_MODE_MS, UNIT_MS = 40.0, 170.0, 10.0
"""Positions of the first and the last mode, evenly spaced between, and the latency of a spread of 1, in ms.

Latencies range from a tenth of the 99th percentile to above it, with a mean of half of it, as section 5.7 says of the
three-modal case (2, 10 and 20 ms).
"""
SCALE: Final = 0.18
"""c1: the part of its own latency that a request adds to a batch.

ResNet50V2 and InceptionV3 on a 1080Ti (scenarios/profiles_1080ti.csv) have 0.19 and 0.18. c0 is the rest of the mean
latency.
"""
LOAD: Final = 2.0
"""Requests per mean stand-alone latency and worker: twice the capacity without batches, and 46 % of that with the
largest.

Chosen as the highest round number at which Orloj finishes as much as in the paper in the static, the one-modal and the
two-modal cases.
"""
MAX_BATCH: Final = 16
"""Maximum batch size of Clockwork, on which Orloj is built."""
SLOS: Final = (1.5, 2.0, 3.0, 4.0, 5.0)
POINTS = 1000
"""Number of points of a distribution given by its moments."""

MOMENTS_MS: Final = {
    "blenderbot-convAI": (200.39, 242.27),
    "blenderbot-cornell": (203.22, 247.04),
    "gpt-convAI": (79.47, 143.40),
    "gpt-cornell": (94.84, 161.69),
    "bart-cnn": (774.66, 1101.99),
    "t5-cnn": (552.91, 797.28),
    "fsmt-wmt": (189.30, 319.31),
    "mbart-wmt": (432.38, 729.87),
    "rdinet-cifar": (683.15, 2667.54),
    "skipnet-imagenet": (3.24, 5.56),
}
"""Mean and 99th percentile of the stand-alone latencies in ms (Table 1)."""
STATIC_MS: Final = {"inception-imagenet": 15.0, "resnet-imagenet": 10.0}
"""Constant latency of all requests, in arbitrary units."""
SPREADS: Final = {
    "std-0.5": (0.5, 0.5),
    "std-1": (1.0, 1.0),
    "std-2": (2.0, 2.0),
    "std-2/0.5": (2.0, 0.5),
    "std-0.5/2": (0.5, 2.0),
    **{
        f"{number}-modal": (1.0,) * count
        for count, number in enumerate(("one", "two", "three", "four", "five", "six", "seven", "eight"), 1)
    },
}
"""Standard deviation of each mode (Tables 2 and 3)."""
CASES: Final = (*SPREADS, *STATIC_MS, *MOMENTS_MS)


@dataclass(frozen=True)
class Workload:
    """A case with one SLO."""

    case: str
    slo: float
    """SLO as a multiple of the 99th percentile of stand-alone latencies."""
    load: float = LOAD
    scale: float = SCALE
    requests: int = 5000
    """Approximate number of arrivals in the measured window."""
    known: bool = True
    """Whether policies get the latency distributions; else the engine learns them from nothing."""
    by_shape: bool = False
    """Whether applications also have different shapes, so that they share no batch."""

    def requests_of(self, scenario: Scenario, seed: int) -> RequestSequence:
        """Return the requests that arrive, the same with shapes and without."""
        drawn = draw_requests(scenario, seed)
        return replace(drawn, shapes=drawn.apps) if self.by_shape else drawn

    def scenario(self, policy: PolicyChoice) -> Scenario:
        """Return the scenario; the engine corrects the profile only for policies evaluated as in production."""
        times = times_of(self.case)
        points = sorted(each.quantile((at + 0.5) / POINTS) for each in map(_read, times) for at in range(POINTS))
        mean_ms, p99_ms = sum(points) / len(points), points[int(0.99 * len(points))]
        rate_rps = 1000 * self.load / mean_ms
        fixed_ms = (1 - self.scale) * mean_ms
        names = [f"mode {number}" for number in range(len(times))]
        model: dict[str, object] = {
            "name": "m",
            "slo_ms": self.slo * p99_ms,
            # What those expect who know only the mean.
            "profile": {"alpha_ms": self.scale * mean_ms, "beta_ms": fixed_ms, "max_batch": MAX_BATCH},
            "apps": [
                {"name": name, "known_to_policy": self.known, "time_ms": _times(each, self.scale)}
                for name, each in zip(names, times, strict=True)
            ],
        }
        if self.by_shape:
            model["shapes"] = [{"shape": name} for name in names]
        truth = {"profile": {"alpha_ms": 0, "beta_ms": fixed_ms}, "combine": "padded"}
        return Scenario.model_validate(
            {
                "warmup_s": 10 * self.slo * p99_ms / 1000,
                "duration_s": self.requests / rate_rps,
                "workers": [{"count": 1}],
                "models": [model],
                "arrivals": {"process": "poisson", "rate_rps": rate_rps},
                "simulation": {"learn": policy.name == "symphony" or not self.known, "service": {"m": truth}},
            }
        )


def times_of(case: str) -> list[dict[str, Any]]:
    """Return the distribution of stand-alone latencies in ms for each application; all applications have equal
    rates.
    """
    if case in STATIC_MS:
        return [{"distribution": "constant", "value": STATIC_MS[case]}]
    if case in SPREADS:
        spreads = SPREADS[case]
        step_ms = (LAST_MODE_MS - FIRST_MODE_MS) / max(1, len(spreads) - 1)
        first_ms = FIRST_MODE_MS if len(spreads) > 1 else (FIRST_MODE_MS + LAST_MODE_MS) / 2
        return [
            {"distribution": "normal", "mean": first_ms + mode * step_ms, "std": spread * UNIT_MS}
            for mode, spread in enumerate(spreads)
        ]
    # Log-normal times, grouped into the shorter half and the longer one, as the paper groups a data set's requests.
    mean_ms, p99_ms = MOMENTS_MS[case]
    above = NormalDist().inv_cdf(0.99)
    sigma = above - sqrt(above**2 - 2 * log(p99_ms / mean_ms))
    logarithms = NormalDist(log(mean_ms) - sigma**2 / 2, sigma)
    points = [exp(logarithms.inv_cdf((at + 0.5) / POINTS)) for at in range(POINTS)]
    return [{"distribution": "table", "values": half} for half in (points[: POINTS // 2], points[POINTS // 2 :])]


def _times(distribution: dict[str, Any], factor: float) -> dict[str, Any]:
    """The same distribution with every time multiplied by this factor."""
    return {
        name: [factor * value for value in given]
        if isinstance(given, list)
        else given
        if isinstance(given, str)
        else factor * given
        for name, given in distribution.items()
    }


def _read(given: dict[str, Any]) -> Distribution:
    distribution: Distribution = _ADAPTER.validate_python(given)
    return distribution


_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyDistribution)
