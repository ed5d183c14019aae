"""The workloads of the Orloj paper's Tables 2 to 5, as scenarios: times as it gives them, the rest as chosen here.

The paper gives the spread of each mode, the number of modes, or the mean and the 99th percentile of the stand-alone
times. It does not give where the modes are, the constants c0 and c1, the arrivals, nor the load.
"""

from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import NormalDist
from typing import Any, Final

from pydantic import TypeAdapter

from tidegate.workload import PolicyChoice, RequestSequence, Scenario, draw_requests
from tidegate.workload.distributions import AnyDistribution, Distribution

FIRST_MODE_MS, LAST_MODE_MS, UNIT_MS = 40.0, 170.0, 10.0
"""Where the modes lie, evenly spaced, and what a spread of 1 is: times from a tenth of the 99th percentile to above it,
with about half of it as the mean, as section 5.7 says of the three-modal case (2, 10 and 20 ms)."""
SCALE: Final = 0.18
"""c1: what a request adds to a batch, of its own time. ResNet50V2 and InceptionV3 measured on a 1080Ti
(scenarios/profiles_1080ti.csv) have 0.19 and 0.18. c0 is the rest of the mean time, so that a batch of one takes it."""
LOAD: Final = 2.0
"""Requests in the mean stand-alone time, per worker: twice what one at a time could carry, and 46 % of what the largest
batches can. Chosen on the static, the one-modal and the two-modal cases, as the highest round number at which Orloj
finishes there what the paper's does."""
MAX_BATCH: Final = 16
"""Clockwork's, on which Orloj is built."""
SLOS: Final = (1.5, 2.0, 3.0, 4.0, 5.0)
POINTS = 1000
"""Of a distribution that is given by its moments."""

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
"""Mean and 99th percentile of the stand-alone times (Table 1)."""
STATIC_MS: Final = {"inception-imagenet": 15.0, "resnet-imagenet": 10.0}
"""The one time of all requests; in what unit makes no difference."""
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
"""The standard deviation of each mode (Tables 2 and 3)."""
CASES: Final = (*SPREADS, *STATIC_MS, *MOMENTS_MS)


@dataclass(frozen=True)
class Workload:
    """A case at one SLO."""

    case: str
    slo: float
    """In multiples of the 99th percentile of the stand-alone times."""
    load: float = LOAD
    scale: float = SCALE
    requests: int = 5000
    """About how many arrive in the measured window."""
    told: bool = True
    """Whether policies are told how the times are distributed; else the engine learns it, beginning with nothing."""
    by_shape: bool = False
    """Whether requests of different applications have different shapes, too, and so share no batch."""

    def requests_of(self, scenario: Scenario, seed: int) -> RequestSequence:
        """The requests that arrive: the same ones with shapes and without."""
        drawn = draw_requests(scenario, seed)
        return replace(drawn, shapes=drawn.apps) if self.by_shape else drawn

    def scenario(self, policy: PolicyChoice) -> Scenario:
        """The experiment; the engine corrects the profile only for the policies that are to be as they are live."""
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
                {"name": name, "known_to_policy": self.told, "time_ms": _times(each, self.scale)}
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
                "simulation": {"learn": policy.name == "symphony" or not self.told, "service": {"m": truth}},
            }
        )


def times_of(case: str) -> list[dict[str, Any]]:
    """The distributions of the stand-alone times in ms, one for each application; all come equally often."""
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
    """The same distribution with everything taking so many times as long."""
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
