"""The configuration that is kept for who is started again: all of it, secrets included, and readable by nobody else."""

import json
from pathlib import Path
from typing import Any

from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.reload import KeptConfig

RESTRICTED = [{"apis": ["statistics"], "header": {"name": "admin-key", "value": "s3cret"}}]


def _config(**fields: Any) -> ServeConfig:
    first = {"tritons": [{"grpc": "localhost:8001"}], "listen": {"grpc": "127.0.0.1:0"}, **fields}
    return ServeConfig.model_validate_json(json.dumps(first))


def test_what_was_taken_up_is_in_force_with_its_secrets(tmp_path: Path) -> None:
    first = _config()
    taken_up = _config(restricted=RESTRICTED, shadow=True)
    kept = KeptConfig(tmp_path / "kept", first)
    assert kept.read() == first
    kept.keep(taken_up)
    again = KeptConfig(tmp_path / "kept", first).read()
    assert again == taken_up
    header = again.restricted[0].header
    assert header is not None
    assert header.value is not None
    assert header.value.get_secret_value() == "s3cret"
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_read_is_no_reason_not_to_start(tmp_path: Path) -> None:
    first = _config()
    (tmp_path / "kept").write_bytes(b"torn")
    assert KeptConfig(tmp_path / "kept", first).read() == first
