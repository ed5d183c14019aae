"""Tab of Locust's web page with SLO attainment and lateness, by model."""

import json

from flask import Response, request
from locust.web import WebUI

from tidegate_loadtest.locust.coordinator import Coordinator
from tidegate_loadtest.locust.outcome import by_model

TAB_KEY = "slo-attainment"
TABLE_COLUMNS = {
    "name": "Model",
    "slo_ms": "SLO (ms)",
    "requests": "# Requests",
    "attainment": "Attainment",
    "goodput": "Goodput (/s)",
    "failed": "Not answered",
    "p50": "50%ile from schedule (ms)",
    "p99": "99%ile from schedule (ms)",
    "late": "Generator late: 50, 99%ile (ms)",
    "verdict": "Generator",
}


def add_tab(page: WebUI, conductor: Coordinator) -> None:
    """Add the tab, which the page refreshes together with its own statistics."""
    page.template_args["extended_tabs"] = [{"title": "SLO attainment", "key": TAB_KEY}]
    structure = [{"key": key, "title": title} for key, title in TABLE_COLUMNS.items()]
    page.template_args["extended_tables"] = [{"key": TAB_KEY, "structure": structure}]

    def with_attainment(response: Response) -> Response:
        if request.path.endswith("/stats/requests") and response.is_json:
            table = {"key": TAB_KEY, "data": by_model(conductor)}
            response.set_data(json.dumps({**response.get_json(), "extended_stats": [table]}))
        return response

    page.app.after_request(with_attainment)
