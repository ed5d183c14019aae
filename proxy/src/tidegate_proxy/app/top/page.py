"""What a metrics page of Tidegate's said at an instant, as far as `tidegate top` shows it."""

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from prometheus_client.parser import text_string_to_metric_families


class NotTidegate(Exception):
    """The page is of something else, or of a Tidegate that says it does not live."""


@dataclass
class ModelCounts:
    """The counts of one model since its Tidegate started, but for `waiting`."""

    outcomes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Requests by how they ended; `refused`: they were not even queued."""
    waiting: float = 0.0
    """Requests that wait now."""
    latency: dict[float, float] = field(default_factory=dict)
    """Requests answered within so many seconds, by the upper bounds of the histogram's buckets."""
    rows: float = 0.0
    """Rows of all batches."""
    batches: float = 0.0


@dataclass
class WorkerCounts:
    """What is said of one worker."""

    busy_s: float = 0.0
    """The time that it ran batches since its Tidegate started."""
    is_up: bool = True


@dataclass
class Page:
    """One reading."""

    at_s: float
    """When it was read, by a clock that runs on."""
    policy: str = ""
    version: str = ""
    models: dict[str, ModelCounts] = field(default_factory=lambda: defaultdict(ModelCounts))
    workers: dict[str, WorkerCounts] = field(default_factory=lambda: defaultdict(WorkerCounts))
    connections: float = 0.0
    advised: dict[str, float] = field(default_factory=dict)
    """Workers that the policy wants, by `add` and `release`."""


def page_of(text: str, at_s: float) -> Page:
    """A reading of Prometheus' text. Raises NotTidegate, in words."""
    page = Page(at_s)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                _take(page, sample.name, sample.labels, sample.value)
    except ValueError as error:
        raise NotTidegate(f"it is no metrics page: {error}") from error
    if not page.policy:
        live = "tidegate_live 0" in text
        raise NotTidegate(
            "it says that it does not live: its log tells why" if live else "it is no metrics page of Tidegate's"
        )
    return page


def _take(page: Page, name: str, labels: dict[str, str], value: float) -> None:
    model, worker = labels.get("model", ""), labels.get("worker", "")
    match name:
        case "tidegate_build_info":
            page.policy, page.version = labels["policy"], labels["version"]
        case "tidegate_requests_total":
            page.models[model].outcomes[labels["outcome"]] += value
        case "tidegate_refused_total":
            page.models[model].outcomes["refused"] += value
        case "tidegate_queue_length":
            page.models[model].waiting = value
        case "tidegate_latency_seconds_bucket":
            bound = labels["le"]
            page.models[model].latency[inf if bound == "+Inf" else float(bound)] = value
        case "tidegate_batch_rows_sum":
            page.models[model].rows = value
        case "tidegate_batch_rows_count":
            page.models[model].batches = value
        case "tidegate_worker_busy_seconds_total":
            page.workers[worker].busy_s = value
        case "tidegate_worker_up":
            page.workers[worker].is_up = bool(value)
        case "tidegate_connections":
            page.connections += value * (labels["protocol"] != "metrics")
        case "tidegate_workers_advised":
            page.advised[labels["advice"]] = value
