"""Equal emulated GPUs with one latency profile, as a scenario and as a model repository."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.workload import Scenario
from tidegate_loadtest.emulated import write_emulated_model


@dataclass(frozen=True)
class Fleet:
    """Equal emulated GPUs: `l(b) = alpha*b + beta`."""

    gpus: int
    alpha_ms: float
    beta_ms: float
    slo_ms: float
    max_batch: int

    def staggered_rps(self) -> float:
        """The most that can be answered on time (Symphony, equation 1): N*b/l(b) where (1 + 1/N) * l(b) <= SLO."""
        latency_ms = self.slo_ms / (1 + 1 / self.gpus)
        batch = min(self.max_batch, int((latency_ms - self.beta_ms) / self.alpha_ms))
        return self.gpus * batch / (self.alpha_ms * batch + self.beta_ms) * 1e3

    def scenario(self, model: str, rate_rps: float = 1.0, warmup_s: float = 0.0, duration_s: float = 1.0) -> Scenario:
        """Poisson arrivals for a model on the fleet."""
        profile = {"alpha_ms": self.alpha_ms, "beta_ms": self.beta_ms, "max_batch": self.max_batch}
        return Scenario.model_validate(
            {
                "name": "demo",
                "warmup_s": warmup_s,
                "duration_s": duration_s,
                "workers": [{"count": self.gpus}],
                "models": [{"name": model, "slo_ms": self.slo_ms, "profile": profile}],
                "arrivals": {"rate_rps": rate_rps},
            }
        )

    def write_gpu(self, repository: Path, model: str) -> None:
        """Write the repository of a Triton with one of the GPUs, which does not batch."""
        write_models(repository, [self.scenario(model).models[0].model_dump(exclude_defaults=True)], None)


def write_models(repository: Path, models: Sequence[Mapping[str, Any]], batching: dict[str, Any] | None) -> None:
    """Write models of a scenario, on one emulated GPU each. `batching`: options of Triton's batcher; None: none."""
    given = {"duration_s": 1, "workers": [{"count": 1}], "models": models, "arrivals": {"rate_rps": 1}}
    scenario = Scenario.model_validate(given)
    for model in scenario.models:
        write_emulated_model(repository, scenario, model, scenario.workers, seed=0, batching=batching)
