"""Rendering the chart with Helm itself, out of the helm-python-sdk wheel."""

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "deploy/helm/tidegate"
# In a process of its own: Helm is written in Go, whose runtime would stay and take signals from the tests.
RENDER = """
import json, sys
import helm_python
chart, values = sys.argv[1], json.loads(sys.argv[2])
try:
    with helm_python.Chart.load(chart) as loaded:
        loaded.validate_schema(values)
        print(json.dumps(loaded.render(values, name="tidegate", namespace="default")))
except helm_python.HelmError as error:
    sys.exit(str(error))
"""
LINT = """
import json, sys
import helm_python
print(json.dumps(helm_python.lint(sys.argv[1])))
"""


class HelmRefuses(Exception):
    """The chart cannot be rendered with these values; the message is Helm's."""


@cache
def _helm(program: str, *arguments: str) -> str:
    if importlib.util.find_spec("helm_python") is None:
        pytest.skip("needs helm-python-sdk")
    done = subprocess.run(
        [sys.executable, "-c", program, str(CHART), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise HelmRefuses(done.stderr.strip())
    return done.stdout


def render(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """What Helm would send to Kubernetes, in no particular order: `render({"triton": {"replicas": 2}})`."""
    files = json.loads(_helm(RENDER, json.dumps(values or {})))
    return [
        document
        for name, text in files.items()
        if name.endswith(".yaml")
        for document in yaml.load_all(text, yaml.CSafeLoader)  # as the other one loads, ten times as fast
        if document
    ]


def lint() -> dict[str, Any]:
    """What `helm lint` says."""
    found: dict[str, Any] = json.loads(_helm(LINT))
    return found
