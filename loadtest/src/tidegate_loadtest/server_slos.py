"""SLOs that a Tidegate goes by, from `/models` at its metrics port, beside those of a scenario."""

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Final
from urllib.request import ProxyHandler, build_opener

from tidegate.workload import Scenario

_TIMEOUT_S: Final = 1.0


def slo_warnings(target: str, scenario: Scenario) -> list[str]:
    """Return a warning for each model whose SLO at the server is not the scenario's.

    `target`: HOST:PORT of its gRPC service; its metrics port is the next one, as by default. Where no Tidegate answers
    there, nothing is known, and nothing returned.
    """
    slos_ms = _server_slos_ms(target)
    found = []
    for model in scenario.models:
        if model.name not in slos_ms or slos_ms[model.name] == model.slo_ms:
            continue
        own_ms = slos_ms[model.name]
        found.append(
            f"{model.name}: the server goes by {_shown(own_ms)}, the scenario by {_shown(model.slo_ms)}: the server "
            f"schedules for another SLO than the one that is judged (serve with --slo {model.name}={model.slo_ms:g})"
            if model.slo_ms is not None
            else f"{model.name}: the server goes by {_shown(own_ms)} and may reject requests, the scenario has no SLO"
        )
    return found


def _server_slos_ms(target: str) -> Mapping[str, float | None]:
    """Return the SLO of each model that the server schedules; empty if unknown."""
    host, _, port = target.rpartition(":")
    try:
        with build_opener(ProxyHandler({})).open(f"http://{host}:{int(port) + 1}/models", timeout=_TIMEOUT_S) as answer:
            models = json.load(answer)
        return {model["name"]: model["slo_ms"] for model in models if model["scheduling"] != "bypass"}
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return {}


def _shown(slo_ms: float | None) -> str:
    return "no SLO" if slo_ms is None else f"an SLO of {slo_ms:g} ms"
