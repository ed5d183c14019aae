"""MPS shares for real, where a GPU and MPS are: what `tidegate up` tells the processes of workers, first and later."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo_generator.deploying.test_shares_on_gpu import QUARTER, THIRD, WHY_NOT, environment
from tidegate.schemas import LayoutWorker
from tidegate_proxy.deployed.folder import DeploymentError
from tidegate_proxy.deployed.tritons import environment_of

__all__ = ["environment"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


def units(tmp_path: Path, variables: dict[str, str], worker: LayoutWorker) -> int:
    """The multiprocessors that a CUDA program has with what `tidegate up` tells it."""
    command = [sys.executable, str(tmp_path / "client.py")]
    told = {**variables, **environment_of(worker)}
    said = json.loads(subprocess.run(command, env=told, check=True, capture_output=True, timeout=60).stdout)
    return int(said["units"])


def test_a_process_has_the_share_that_it_was_told(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_MPS", environment["TIDEGATE_MPS"])
    quarter, third = (units(tmp_path, environment, worker) for worker in (QUARTER, THIRD))
    assert 0 < quarter < third
    assert quarter / third == pytest.approx(25 / 37, rel=0.1)


def test_where_no_daemon_answers_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_MPS", str(tmp_path))
    with pytest.raises(DeploymentError, match="no MPS daemon answers"):
        environment_of(QUARTER)
