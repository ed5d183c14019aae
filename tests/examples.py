"""How many examples hypothesis tries: a few, always the same; in `make test-all` many, and new ones every time."""

from hypothesis import HealthCheck, settings

# A busy machine is neither too slow an example nor too slow a strategy.
settings.register_profile(
    "quick",
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", max_examples=200, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")


def examples(share: float) -> int:
    """The number of examples for a test whose examples cost 1 / `share` times as much as usual."""
    return max(1, round(settings().max_examples * share))
