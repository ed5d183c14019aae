"""The settings of Triton's own batcher that are tried: the baseline is Triton tuned as well as it can be.

Sources: Triton's user guide on tuning (first no delay, then longer ones; preferred sizes; queue policies).
"""

from itertools import product

from tidegate.workload import PolicyChoice, Scenario

TRITON = "triton"
"""The policy that is Triton's own batcher."""
DELAYS = (0.0, 0.05, 0.1, 0.2, 0.4)
"""As shares of the shortest SLO: how long a batch waits for more."""
TIMEOUTS = (0.0, 0.25, 0.5, 0.75)
"""As shares of the shortest SLO: when a request that waits is refused; 0: never."""
SIZES = ((), (8,), (32,))
"""Preferred batch sizes."""


def triton_choices(scenario: Scenario) -> list[PolicyChoice]:
    """Every combination of delay, timeout and preferred sizes that says something else than another one."""
    slo_ms = min((model.slo_ms for model in scenario.models if model.slo_ms is not None), default=100.0)
    largest = max(model.max_rows for model in scenario.models)
    sizes = [size for size in SIZES if not size or max(size) < largest]
    choices = []
    for delay, timeout, preferred in product(DELAYS, TIMEOUTS, sizes):
        if preferred and not delay:
            continue  # nothing waits to be of a preferred size
        options = {
            **({"max_queue_delay_ms": _rounded(delay * slo_ms)} if delay else {}),
            **({"default_timeout_ms": _rounded(timeout * slo_ms)} if timeout else {}),
            **({"preferred_batch_size": list(preferred)} if preferred else {}),
        }
        choices.append(PolicyChoice(name=TRITON, options=options))
    return choices


def nearby(choice: PolicyChoice) -> list[PolicyChoice]:
    """These settings, and each changed a little: the grid that they are the best of is coarse."""
    options = choice.options
    delay_ms, timeout_ms = options.get("max_queue_delay_ms"), options.get("default_timeout_ms")
    sizes = options.get("preferred_batch_size")
    around = [options]
    for factor in (0.6, 1.5):
        if delay_ms:
            around.append({**options, "max_queue_delay_ms": _rounded(delay_ms * factor)})
        if timeout_ms:
            around.append({**options, "default_timeout_ms": _rounded(timeout_ms * factor)})
    if sizes:
        around += [{**options, "preferred_batch_size": [size]} for size in (sizes[0] // 2, 2 * sizes[0])]
    return [PolicyChoice(name=TRITON, options=each) for each in around]


def _rounded(value_ms: float) -> float:
    """To three digits: settings that a person would write."""
    return float(f"{value_ms:.3g}")
