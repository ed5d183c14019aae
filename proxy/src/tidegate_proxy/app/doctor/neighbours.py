"""Models that run in turn on the workers of one Triton: it, or the configuration, says so."""

from collections.abc import Iterator

from tritonclient.grpc import model_config_pb2

from tidegate.engine.estimates.lateness import LARGEST_SHARE
from tidegate_proxy.app.doctor.facts import Facts, Service
from tidegate_proxy.app.doctor.finding import Finding
from tidegate_proxy.app.doctor.hardware import is_emulated
from tidegate_proxy.app.doctor.one_row import one_row

IN_TURN = "they take turns, as they need the same resource of its rate limiter, or as `in_turn` says"
REMEDY = "serve one of them from a Triton of its own, or let them run side by side: without that resource, or `in_turn`"


def waits_behind_longer_ones(facts: Facts) -> Iterator[Finding]:
    """SLOs that a model cannot keep behind one batch of another that shares all its workers."""
    if facts.has_layout:
        return
    for service in facts.services.values():
        own = one_row(facts, service)
        if service.slo_ms is None or not own:
            continue
        left_ms = service.slo_ms * (1 - LARGEST_SHARE) - max(row.planned_ms for row in own)
        longer = {
            name: max(row.expected_ms for row in rows)
            for name in service.beside
            if (rows := one_row(facts, facts.services[name]))
        }
        behind = {name: took_ms for name, took_ms in longer.items() if took_ms > left_ms > 0}
        if behind:
            worst = max(behind, key=lambda name: behind[name])
            yield Finding(
                "warning",
                "waits-behind",
                f"models.{service.name}.slo_ms",
                f"{service.slo_ms:g} ms are too short to wait for one row of {worst!r}, which takes "
                f"{behind[worst]:.3g} ms: {IN_TURN}",
                REMEDY,
            )


def in_turn_on_processors(facts: Facts) -> Iterator[Finding]:
    """Models that run on processors, and in turn: where there are cores for both, one of them idles."""
    if facts.has_layout or not any(triton.in_turn is True for triton in facts.config.tritons):
        return
    for service in facts.services.values():
        others = [name for name in service.beside if _on_processors(facts.services[name])]
        if others and _on_processors(service):
            yield Finding(
                "advice",
                "in-turn",
                f"model {service.name}",
                f"it runs on processors, as does {', '.join(others)}, and they take turns, as `in_turn` says: side by "
                "side is quicker where there are cores for both",
                "leave `tritons.N.in_turn` out, or let it be `learned`, if they do not call each other",
            )


def _on_processors(service: Service) -> bool:
    cpu = model_config_pb2.ModelInstanceGroup.KIND_CPU
    groups = [group.kind for group in service.config.instance_group]
    return bool(groups) and all(kind == cpu for kind in groups) and not is_emulated(service.config)
