"""Configuration of the proxy in front of the workers, for `tidegate serve --config`."""

import json
from collections.abc import Mapping

from tidegate.schemas import LAYOUT_FILE
from tidegate_repo_generator.deploying.places import WorkerPlacement


def proxy_config(places: Mapping[str, WorkerPlacement], policy: str) -> str:
    """Return the text of the YAML file. Strings are quoted as in JSON, which YAML reads."""
    lines = [
        "# Written by `tidegate generate`; `tidegate check --schema` prints every field.",
        "version: 1",
        f"layout: {LAYOUT_FILE}",
        f"policy: {json.dumps(policy)}",
        'listen: {grpc: "0.0.0.0:8101", http: "0.0.0.0:8100", metrics: "0.0.0.0:8102"}',
        "startup_timeout_s: 60",
        "tritons:",
    ]
    for name, place in places.items():
        ports = {"grpc": place.grpc_port, "http": place.http_port, "metrics": place.metrics_port}
        addresses = ", ".join(f'{service}: "{place.host}:{port}"' for service, port in ports.items())
        lines.append(f"  - {{worker: {json.dumps(name)}, {addresses}}}")
    return "\n".join([*lines, ""])
