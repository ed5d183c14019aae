"""Triton's `dynamic_batching`: the section of config.pbtxt, and the same as options of the policy `triton`.

Options use milliseconds and names of their own; the section is a dict as in protobuf's JSON form with field names of
the `.proto` file, because the core has no protobuf.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

Section = dict[str, Any]
DELAY, SIZES, QUEUE = "max_queue_delay_microseconds", "preferred_batch_size", "default_queue_policy"
TIMEOUT, ACTION, OVERRIDE, LIMIT = (
    "default_timeout_microseconds",
    "timeout_action",
    "allow_timeout_override",
    "max_queue_size",
)

TUNED_DELAYS = (0.0, 0.05, 0.1, 0.2)
"""Queue delays that a Triton expert tries, as fractions of a model's SLO."""
TUNED_TIMEOUTS = (0.0, 0.25, 0.5, 0.75)
"""Queue timeouts that a Triton expert tries, as fractions of a model's SLO; 0: none."""


def tuned_settings(slos_ms: Mapping[str, float]) -> dict[str, Section]:
    """Return settings of Triton's batcher as experts tune it, by label: the baseline of every comparison with Triton.

    Each has a queue delay and a queue timeout for every model in `slos_ms`, as a fraction of the model's SLO in ms.
    "Triton's best" is the best of these sixteen, chosen afterwards.
    """
    return {
        f"delay {delay:.0%}, timeout {f'{timeout:.0%}' if timeout else 'none'}": {
            "models": {
                model: {"max_queue_delay_ms": delay * slo_ms, "default_timeout_ms": timeout * slo_ms}
                for model, slo_ms in slos_ms.items()
            }
        }
        for delay, timeout in product(TUNED_DELAYS, TUNED_TIMEOUTS)
    }


def options_of_model(options: Section, model: str) -> Section:
    """Return the options of `triton` for one model: the common ones, overridden by its own."""
    common = {name: value for name, value in options.items() if name != "models"}
    return {**common, **options.get("models", {}).get(model, {})}


def dynamic_batching_of(options: Section, max_rows: int) -> Section:
    """Return the section `dynamic_batching` for the options of one model, without Triton's defaults.

    `max_rows`: the model's largest batch; Triton does not load a model that prefers a larger one.
    """
    sizes = [size for size in options.get("preferred_batch_size", ()) if size <= max_rows]
    delay_us = round(1000 * options.get("max_queue_delay_ms", 0.0))
    timeout_us = round(1000 * options.get("default_timeout_ms", 0.0))
    action = options.get("timeout_action", "reject").upper()
    queue = {
        **({ACTION: action} if timeout_us or action != "REJECT" else {}),
        **({TIMEOUT: timeout_us} if timeout_us else {}),
        **({OVERRIDE: True} if options.get(OVERRIDE) else {}),
        **({LIMIT: options[LIMIT]} if options.get(LIMIT) else {}),
    }
    return {
        **({SIZES: sizes} if sizes else {}),
        **({DELAY: delay_us} if delay_us else {}),
        **({QUEUE: queue} if queue else {}),
    }


def options_of(section: Section) -> Section:
    """Return the options of one model for a section `dynamic_batching`, defaults included.

    Numbers may be text, as protobuf's JSON form has for long ones.
    """
    queue = section.get(QUEUE, {})
    return {
        "preferred_batch_size": tuple(section.get(SIZES, ())),
        "max_queue_delay_ms": int(section.get(DELAY, 0)) / 1000,
        "max_queue_size": int(queue.get(LIMIT, 0)),
        "default_timeout_ms": int(queue.get(TIMEOUT, 0)) / 1000,
        "timeout_action": queue.get(ACTION, "REJECT").lower(),
        "allow_timeout_override": queue.get(OVERRIDE, False),
    }


def section_text(section: Section) -> str:
    """Return a section `dynamic_batching` as text of config.pbtxt."""
    return "\n".join(["dynamic_batching {", *_lines(section, "  "), "}"]) + "\n"


def _lines(section: Section, indent: str) -> list[str]:
    lines = []
    for name, value in section.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name} {{", *_lines(value, f"{indent}  "), f"{indent}}}"]
        else:
            lines.append(f"{indent}{name}: {str(value).lower() if isinstance(value, bool) else value}")
    return lines
