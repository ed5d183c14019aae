"""Requests of one row, timed, for models whose SLO nothing else can be held against."""

import time
from statistics import median
from typing import Final

from tidegate_proxy.app.actuation.warming import request_of_zeros
from tidegate_proxy.app.doctor.facts import Facts, Timed
from tidegate_proxy.transport import CallFailed
from tidegate_proxy.tritons.backend import INFER, Backend
from tidegate_proxy.tritons.catalog import Catalog

WARM_UPS: Final = 2
REQUESTS: Final = 5
WITHIN_S: Final = 60.0
LONG_S: Final = 2.0
"""A model that takes so long is asked once."""


async def time_requests(facts: Facts, catalog: Catalog) -> dict[str, Timed]:
    """What one row of zeros takes, by model, of all that have an SLO and no profile. One after the other."""
    timed = {}
    for service in facts.services.values():
        if service.slo_ms is None or service.model is None or service.model.pipelines:
            continue
        if any(profile.model == service.name for profile in facts.measured.profiles):
            continue
        timed[service.name] = await _timed(service.name, catalog.hosts[service.name][0], catalog)
    return timed


async def _timed(name: str, backend: Backend, catalog: Catalog) -> Timed:
    config = next(model.config for model in catalog.loaded[backend] if model.config.name == name)
    is_open = any(-1 in tensor.dims for tensor in config.input)
    message = request_of_zeros(config).SerializeToString()
    took_s: list[float] = []
    try:
        for number in range(WARM_UPS + REQUESTS):
            start_s = time.perf_counter()
            await backend.ask(INFER, message, timeout_s=WITHIN_S)
            lasted_s = time.perf_counter() - start_s
            if number >= WARM_UPS or lasted_s > LONG_S:
                took_s.append(lasted_s)
            if lasted_s > LONG_S:
                break
    except CallFailed as error:
        return Timed(None, " ".join(error.details.split()), is_open)
    return Timed(1e3 * median(took_s), open_dimensions=is_open)
