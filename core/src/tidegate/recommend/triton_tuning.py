"""Settings of Triton's own batcher to try: the baseline is Triton tuned as well as possible.

Source: Triton's user guide on tuning (no delay, then longer ones; preferred sizes; queue policies). First all models
have the same settings, then each its own (`by_model`).
"""

from itertools import product
from typing import Any

from tidegate.api import ms_to_ns
from tidegate.schemas import dynamic_batching_of, options_of_model
from tidegate.workload import PolicyChoice, Scenario, layout_of

TRITON_POLICY = "triton"
"""Name of the policy that is Triton's own batcher."""
BY_MODEL = "triton, by model"
"""Label of Triton with settings for each model."""
DELAY_SLO_FRACTIONS = (0.0, 0.05, 0.1, 0.2, 0.4)
"""Queue delays to try, as fractions of the shortest SLO."""
TIMEOUT_SLO_FRACTIONS = (0.0, 0.25, 0.5, 0.75)
"""Queue timeouts to try, as fractions of the shortest SLO; 0: none."""
PREFERRED_BATCH_SIZES = ((), (8,), (32,))
"""Preferred batch sizes to try, in rows."""
TIME_OPTIONS = ("max_queue_delay_ms", "default_timeout_ms")
"""Names of the options that are durations."""
Own = dict[str, dict[str, Any]]
"""Settings of single models that differ from the common ones, by name."""
SOLO_DELAY_SLO_FRACTION = 0.1
"""Queue delay as a fraction of a model's SLO, tried together with a preferred size if the model has no delay."""


def triton_choices(scenario: Scenario) -> list[PolicyChoice]:
    """Return every combination of delay, timeout and preferred sizes that differs in effect."""
    slo_ms = min(_slos_ms(scenario).values())
    largest = max(model.max_rows for model in scenario.models)
    sizes = [size for size in PREFERRED_BATCH_SIZES if not size or max(size) < largest]
    choices = []
    for delay, timeout, preferred in product(DELAY_SLO_FRACTIONS, TIMEOUT_SLO_FRACTIONS, sizes):
        if preferred and not delay:
            continue  # nothing waits to be of a preferred size
        options = {
            **({"max_queue_delay_ms": _rounded(delay * slo_ms)} if delay else {}),
            **({"default_timeout_ms": _rounded(timeout * slo_ms)} if timeout else {}),
            **({"preferred_batch_size": list(preferred)} if preferred else {}),
        }
        choices.append(PolicyChoice(name=TRITON_POLICY, options=options))
    return choices


def nearby(choice: PolicyChoice) -> list[PolicyChoice]:
    """Return these settings and small changes of each, since the grid is coarse."""
    options = choice.options
    own: Own = options.get("models", {})
    sizes = options.get("preferred_batch_size")
    around = [choice]
    for name, factor in product(TIME_OPTIONS, (0.6, 1.5)):
        if options.get(name):
            scaled = {
                model: {**own_options, name: _rounded(own_options[name] * factor)}
                for model, own_options in own.items()
                if name in own_options
            }
            around.append(_written({**options, name: _rounded(options[name] * factor)}, own | scaled))
    if sizes:
        around += [_written({**options, "preferred_batch_size": [size]}, own) for size in (sizes[0] // 2, 2 * sizes[0])]
    return around


def in_proportion(scenario: Scenario, choice: PolicyChoice) -> PolicyChoice:
    """Return these settings with each model's delay and timeout scaled to its SLO."""
    options, slos_ms = choice.options, _slos_ms(scenario)
    shortest_ms = min(slos_ms.values())
    times = {name: options[name] for name in TIME_OPTIONS if name in options}
    own = {
        model: {name: _rounded(value_ms * slo_ms / shortest_ms) for name, value_ms in times.items()}
        for model, slo_ms in slos_ms.items()
    }
    return _written(options, own)


def choices_of(scenario: Scenario, choice: PolicyChoice, name: str) -> list[PolicyChoice]:
    """Return these settings with another delay, timeout or preferred size of the model `name`."""
    slo_ms = _slos_ms(scenario)[name]
    now = options_of_model(choice.options, name)
    waiting = {"max_queue_delay_ms": now.get("max_queue_delay_ms") or _rounded(SOLO_DELAY_SLO_FRACTION * slo_ms)}
    changes: list[dict[str, Any]] = [
        *({"max_queue_delay_ms": _rounded(share * slo_ms)} for share in DELAY_SLO_FRACTIONS),
        *({"default_timeout_ms": _rounded(share * slo_ms)} for share in TIMEOUT_SLO_FRACTIONS),
        {"preferred_batch_size": []},
        *({**waiting, "preferred_batch_size": [size]} for size in _sizes_of(scenario, name, slo_ms)),
    ]
    given: Own = choice.options.get("models", {})
    found = [_written(choice.options, {**given, name: given.get(name, {}) | change}) for change in changes]
    return [each for number, each in enumerate(found) if each not in [choice, *found[:number]]]


def sections_of(scenario: Scenario, choice: PolicyChoice) -> dict[str, dict[str, Any]]:
    """Return the section `dynamic_batching` of each model that Triton batches."""
    return {
        model.name: dynamic_batching_of(options_of_model(choice.options, model.name), model.max_rows)
        for model in scenario.models
        if model.name in batched(scenario)
    }


def batched(scenario: Scenario) -> list[str]:
    """Return the models that Triton batches."""
    return [model.name for model in scenario.models if model.scheduling == "batched"]


def _sizes_of(scenario: Scenario, name: str, slo_ms: float) -> list[int]:
    """The largest batch that may wait as long as it runs, wherever it runs, and half of it."""
    _, _, profiles, _ = layout_of(scenario).contract()
    half_ns = ms_to_ns(slo_ms / 2)
    largest = [
        sum(profile.expected_ns(rows) <= half_ns for rows in profile.every_size)
        for profile in profiles
        if profile.partition == name
    ]
    most = min(largest, default=0)
    return [size for size in (most // 2, most) if size > 1]


def _written(options: dict[str, Any], own: Own) -> PolicyChoice:
    """Settings of all, and of single models what is otherwise, none said twice."""
    common = {name: value for name, value in options.items() if name != "models"}
    for_all: dict[str, Any] = {**dict.fromkeys(TIME_OPTIONS, 0.0), "preferred_batch_size": [], **common}
    models = {
        model: changed
        for model, changes in sorted(own.items())
        if (changed := {name: value for name, value in changes.items() if value != for_all[name]})
    }
    if not models:
        return PolicyChoice(name=TRITON_POLICY, options=common)
    return PolicyChoice(name=TRITON_POLICY, options={**common, "models": models}, label=BY_MODEL)


def _slos_ms(scenario: Scenario) -> dict[str, float]:
    """Each model's SLO; the longest for those that have none."""
    longest = max((model.slo_ms for model in scenario.models if model.slo_ms is not None), default=100.0)
    return {model.name: model.slo_ms or longest for model in scenario.models}


def _rounded(value_ms: float) -> float:
    """To three digits: settings that a person would write."""
    return float(f"{value_ms:.3g}")
