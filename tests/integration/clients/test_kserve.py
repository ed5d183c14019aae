"""The KServe Python client, unmodified, sees no difference.

It wants newer libraries than the embedded Triton, and so an environment of its own, which is made here.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KSERVE = "kserve==0.21.0"
CALLS = Path(__file__).with_name("kserve_calls.py")
INSTALL_WITHIN_S = 240


@pytest.fixture(scope="module")
def kserve_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has it."""
    folder = tmp_path_factory.mktemp("kserve") / "venv"
    uv = Path(sys.executable).with_name("uv")
    try:
        for command in (
            [uv, "venv", "--quiet", "--python", sys.executable, folder],
            [uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", KSERVE],
        ):
            subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=INSTALL_WITHIN_S)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"{KSERVE} cannot be installed here: {getattr(error, 'stderr', b'') or error!r}")
    return folder / "bin" / "python"


def seen_by(python: Path, server: Any, model: str) -> dict[str, Any]:
    command = [str(python), str(CALLS), server.http_address, server.grpc_address, model]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.slow
def test_the_kserve_client(kserve_python: Path, echo_triton: Any, start_frontend: Callable[..., Any]) -> None:
    through = seen_by(kserve_python, start_frontend(echo_triton), "echo")
    assert through == seen_by(kserve_python, echo_triton, "echo")
    assert through["rest model"] is through["grpc live"] is through["grpc ready"] is through["grpc model"] is True
    right = {"id": "42", "model": "echo", "name": "Y", "data": [[1, 2], [3, 4.5]]}
    assert [through[way] for way in ("rest", "rest binary", "grpc", "grpc binary")] == [right] * 4
    assert "nope" in through["rest error"]
    assert "nope" in through["grpc error"]
