"""Triton's own batcher is tuned as well as it can be: for all models, by their SLOs, and model by model."""

from collections.abc import Sequence
from typing import Any, cast

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tidegate.recommend.assess import tuned_by_model
from tidegate.recommend.candidates import Candidate
from tidegate.recommend.files import dynamic_batching
from tidegate.recommend.simulation_runs import SimulationOutcome, SimulationRun, SimulationRuns
from tidegate.recommend.successive_halving import EntrantStanding, HalvingResult
from tidegate.recommend.triton_tuning import BY_MODEL, choices_of, in_proportion, nearby, sections_of, triton_choices
from tidegate.recommend.verdicts import settings
from tidegate.workload import PolicyChoice, Scenario

PROFILE = {"alpha_ms": 1, "beta_ms": 4, "max_batch": 32}
SCENARIO = Scenario.model_validate(
    {
        "duration_s": 1,
        "workers": [{"count": 1}],
        "models": [
            {"name": "quick", "slo_ms": 20, "profile": PROFILE},
            {"name": "slow", "slo_ms": 100, "profile": PROFILE, "weight": 3},
            {"name": "alone", "slo_ms": 50, "profile": PROFILE, "scheduling": "unbatched"},
            {"name": "small", "profile": PROFILE | {"max_batch": 4}},
        ],
        "arrivals": {"rate_rps": 10},
    }
)


def triton(**options: Any) -> PolicyChoice:
    return PolicyChoice(name="triton", options=options, label=BY_MODEL if "models" in options else None)


def test_delays_and_timeouts_are_in_proportion_to_each_models_slo() -> None:
    common = triton(max_queue_delay_ms=2.0, default_timeout_ms=10.0, preferred_batch_size=[8])
    assert in_proportion(SCENARIO, common) == triton(
        **common.options,
        models={
            "alone": {"max_queue_delay_ms": 5.0, "default_timeout_ms": 25.0},
            "slow": {"max_queue_delay_ms": 10.0, "default_timeout_ms": 50.0},
            "small": {"max_queue_delay_ms": 10.0, "default_timeout_ms": 50.0},  # the longest of those that have one
        },
    )
    assert in_proportion(SCENARIO, triton()) == triton()


def test_what_is_near_keeps_the_proportions() -> None:
    tuned = triton(max_queue_delay_ms=2.0, models={"slow": {"max_queue_delay_ms": 10.0, "default_timeout_ms": 5.0}})
    _, less, more = nearby(tuned)
    assert less.options == {
        "max_queue_delay_ms": 1.2,
        "models": {"slow": {"max_queue_delay_ms": 6.0, "default_timeout_ms": 5.0}},
    }
    assert more.options["models"]["slow"]["max_queue_delay_ms"] == 15.0


def test_a_model_is_tried_with_shares_of_its_slo_and_with_sizes_that_run_in_half_of_it() -> None:
    """4 ms and 1 ms a row: 32 rows take less than half of 100 ms, and 6 rows take half of 20 ms."""
    slow = [each.options["models"]["slow"] for each in choices_of(SCENARIO, triton(), "slow")]
    assert {"max_queue_delay_ms": 5.0} in slow
    assert {"default_timeout_ms": 75.0} in slow
    assert {"max_queue_delay_ms": 10.0, "preferred_batch_size": [32]} in slow
    quick = choices_of(SCENARIO, triton(max_queue_delay_ms=1.0), "quick")
    sizes = [each.options["models"]["quick"].get("preferred_batch_size") for each in quick]
    assert [size for size in sizes if size] == [[3], [6]]
    assert triton(max_queue_delay_ms=1.0) not in quick


def test_what_a_model_may_go_back_to_is_said() -> None:
    common = triton(max_queue_delay_ms=2.0, preferred_batch_size=[8])
    tried = [each.options["models"]["slow"] for each in choices_of(SCENARIO, common, "slow")]
    assert {"max_queue_delay_ms": 0.0} in tried
    assert {"preferred_batch_size": []} in tried


class Wanted(SimulationRuns):
    """Every model keeps the less the further its delay is from the one that is good for it; seeds differ a little."""

    def run(self, label: str, runs: Sequence[SimulationRun]) -> list[SimulationOutcome]:
        """Of pairs of a candidate and a seed."""
        del label
        self.count += len(runs)
        return [self._outcome(*pair) for pair in cast("list[tuple[Candidate, int]]", runs)]

    def _outcome(self, candidate: Candidate, seed: int) -> SimulationOutcome:
        options = candidate.choice.options
        good = {"quick": 0.0, "slow": 20.0}
        kept = {}
        for name, wanted_ms in good.items():
            own = options.get("models", {}).get(name, {})
            delay_ms = own.get("max_queue_delay_ms", options.get("max_queue_delay_ms", 0.0))
            kept[name] = 0.9 - abs(delay_ms - wanted_ms) / 100 + 0.001 * (seed % 3)
        return SimulationOutcome(sum(kept.values()) / 2, kept)


def tune(*standings: tuple[PolicyChoice, float]) -> tuple[HalvingResult[Candidate], int]:
    def run_of(each: Candidate, seed: int, load: float, goal: float | None = None, /) -> SimulationRun:
        del load, goal
        return cast("SimulationRun", (each, seed))

    simulations = Wanted()
    common = HalvingResult(1.0, [EntrantStanding(Candidate(choice), score, 6) for choice, score in standings], [])
    return tuned_by_model(SCENARIO, common, run_of, simulations), simulations.count


def test_each_model_gets_the_delay_that_is_good_for_it() -> None:
    found, runs = tune((triton(max_queue_delay_ms=2.0), 0.8), (triton(), 0.7))
    assert [each.entrant.choice for each in found.standings] == [
        triton(
            max_queue_delay_ms=2.0, models={"quick": {"max_queue_delay_ms": 0.0}, "slow": {"max_queue_delay_ms": 20.0}}
        ),
        triton(max_queue_delay_ms=2.0),
        triton(),
    ]
    assert found.standings[0].score > 0.89
    assert runs < 80


def test_what_no_seed_shows_to_be_better_is_not_taken() -> None:
    found, _ = tune((triton(models={"slow": {"max_queue_delay_ms": 20.0}}), 0.9))
    assert len(found.standings) == 1


def test_every_block_is_one_that_triton_reads() -> None:
    """`alone` has no batcher, and no size is preferred that is larger than the largest batch."""
    tuned = triton(
        max_queue_delay_ms=2.0,
        preferred_batch_size=[8],
        models={"slow": {"max_queue_delay_ms": 10.0, "default_timeout_ms": 50.0, "preferred_batch_size": [16]}},
    )
    sections = sections_of(SCENARIO, tuned)
    assert list(sections) == ["quick", "slow", "small"]
    assert sections["small"] == {"max_queue_delay_microseconds": 2000}
    text = dynamic_batching(SCENARIO, Candidate(tuned))
    blocks = dict(zip(("quick", "slow", "small"), text.split("# ")[1:], strict=True))
    assert [block.split("\n", 1)[0] for block in blocks.values()] == ["quick", "slow", "small"]
    read = text_format.Parse(blocks["slow"].split("\n", 1)[1], ModelConfig()).dynamic_batching
    assert list(read.preferred_batch_size) == [16]
    assert read.max_queue_delay_microseconds == 10_000
    assert read.default_queue_policy.default_timeout_microseconds == 50_000
    assert settings(Candidate(tuned)) == "with a delay of 2 ms and preferred sizes 8, 1 model otherwise"


def test_models_that_are_batched_alike_are_told_once() -> None:
    assert dynamic_batching(SCENARIO, Candidate(triton(max_queue_delay_ms=2.0))).startswith("dynamic_batching {")


def test_every_setting_of_the_grid_says_something_else() -> None:
    choices = triton_choices(SCENARIO)
    assert all(choice not in choices[:number] for number, choice in enumerate(choices))
