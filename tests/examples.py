"""How many examples hypothesis tries: a few, always the same; in `make test-all` many, and new ones every time."""

from hypothesis import HealthCheck, settings

# How long an example takes, and how long drawing it does, says nothing on a busy machine.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.register_profile("quick", _PATIENT, max_examples=30, derandomize=True, database=None)
settings.register_profile("thorough", _PATIENT, max_examples=200, print_blob=True)
settings.load_profile("quick")


def examples(share: float) -> int:
    """The number of examples for a test whose examples cost 1 / `share` times as much as usual."""
    return max(1, round(settings().max_examples * share))
