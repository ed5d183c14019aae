"""What the doctor says of models that take turns on the same workers."""

from dataclasses import replace

import pytest

from tests.proxy.app.doctor.made_up import config_of, facts_of, profiles_of, said
from tidegate.api import Model
from tidegate.schemas import ProfileFile
from tidegate_proxy.app.doctor.facts import DoctorFacts
from tidegate_proxy.app.doctor.latency import in_turn_on_processors, waits_behind_longer_ones

ON_CPU = "max_batch_size: 8 dynamic_batching {} instance_group { kind: KIND_CPU count: 1 }"


def _in_turn(facts: DoctorFacts) -> DoctorFacts:
    """The same, where all models are on the same workers."""
    beside = {name: tuple(sorted(facts.services.keys() - {name})) for name in facts.services}
    services = {name: replace(service, beside=beside[name]) for name, service in facts.services.items()}
    return replace(facts, services=services)


@pytest.mark.parametrize(("slow_ms", "expected"), [(30, [("warning", "slo-shorter-than-serialized-wait")]), (5, [])])
def test_who_has_no_time_to_wait_for_another_model_of_its_workers_is_told_so(
    slow_ms: float, expected: list[tuple[str, str]]
) -> None:
    profiles = [profiles_of(name, median_ms=ms, p95_ms=ms).profiles[0] for name, ms in (("fast", 5), ("slow", slow_ms))]
    facts = facts_of(config_of("fast"), config_of("slow"), slo_ms=20, measured=ProfileFile(profiles=profiles))
    slow = replace(facts.services["slow"], model=Model("slow", 8, None))
    facts = replace(facts, services={**facts.services, "slow": slow})
    assert said(waits_behind_longer_ones(facts)) == [], "each has its own"
    assert said(waits_behind_longer_ones(_in_turn(facts))) == expected


def test_models_on_processors_that_take_turns_by_configuration_are_told_so_but_no_emulated_gpus() -> None:
    told = {"tritons": [{"grpc": "t:1", "serialize_models": True}]}
    on_cpu = config_of("a", ON_CPU), config_of("b", ON_CPU), config_of("c")
    assert said(in_turn_on_processors(_in_turn(facts_of(*on_cpu)))) == [], "their Triton has a rate limiter"
    facts = _in_turn(facts_of(*on_cpu, config=told))
    assert [finding.where for finding in in_turn_on_processors(facts)] == ["model a", "model b"]
    emulated = config_of("a", ON_CPU + ' parameters { key: "alpha_ms" value: { string_value: "1" } }')
    emulated.backend = "python"
    assert said(in_turn_on_processors(_in_turn(facts_of(emulated, config_of("b", ON_CPU), config=told)))) == []
