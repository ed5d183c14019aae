"""`tidegate top` before a Tidegate that serves."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from tidegate_proxy.tritons.embedded import EmbeddedTriton

Make = Callable[..., Any]
ROW = np.array([[1.0, 2.0]], np.float32)


def _top(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", "top", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def metrics(triton: EmbeddedTriton, start_tidegate: Make, call: Make, request_of: Make) -> str:
    """The metrics page of one that has answered a request."""
    tidegate = start_tidegate([triton], listen_metrics="127.0.0.1:0")
    assert call(tidegate, "ModelInfer", request_of("echo", {"X": ROW}))[0] is grpc.StatusCode.OK
    found = re.search(r"metrics +(\S+)/metrics\n", tidegate.output)
    assert found, tidegate.output
    return found[1]


def test_one_interval_for_people_and_for_machines(metrics: str) -> None:
    shown = _top(metrics, "--every", "0.1")
    assert shown.returncode == 0, shown.stderr
    assert "policy fifs" in shown.stdout
    assert "echo" in shown.stdout
    told = json.loads(_top(metrics, "--json", "--every", "0.1").stdout)
    assert told["policy"] == "fifs"
    assert "echo" in [model["name"] for model in told["models"]]
    assert all(worker["is_up"] for worker in told["workers"])


def test_where_nobody_listens_a_line_says_so() -> None:
    failed = _top("127.0.0.1:1", "--once")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: http://127.0.0.1:1/metrics: does a Tidegate run")
    assert len(failed.stderr.splitlines()) == 1


def test_another_servers_page_is_told(triton: EmbeddedTriton) -> None:
    failed = _top(str(triton.metrics_address), "--once")
    assert failed.returncode == 1
    assert "no metrics page of Tidegate's" in failed.stderr
