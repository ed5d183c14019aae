"""Request sizes of a scenario: how many requests have how many rows."""

from collections import Counter, defaultdict

from tidegate.workload.scenario import ModelSpec, Scenario

DISTRIBUTION_POINTS = 10_000
"""Number of evenly spaced quantiles at which a distribution of rows is evaluated."""


def sizes_of(scenario: Scenario) -> dict[str, dict[int, float]]:
    """Return {model: {rows: fraction of the model's requests}}, the distribution from which `draw_requests` draws."""
    return {model.name: _shares(model) for model in scenario.models}


def _shares(model: ModelSpec) -> dict[int, float]:
    apps = [(app.weight, app.rows or model.rows) for app in model.apps] or [(1.0, model.rows)]
    total = sum(weight for weight, _ in apps)
    shares: defaultdict[int, float] = defaultdict(float)
    for weight, rows in apps:
        counts = Counter(
            min(max(round(rows.quantile((number + 0.5) / DISTRIBUTION_POINTS)), 1), model.max_rows)
            for number in range(DISTRIBUTION_POINTS)
        )
        for size, count in counts.items():
            shares[size] += weight / total * count / DISTRIBUTION_POINTS
    return {size: shares[size] for size in sorted(shares) if shares[size] > 0}
