"""Routes that concern every Triton, over two of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.servers.http.conftest import fetch
from tests.python_models import write_model
from tidegate_proxy.tritons.embedded import EmbeddedTriton

Fetch = Callable[..., Any]


@pytest.fixture(scope="session")
def second(start_triton: Callable[..., EmbeddedTriton], tmp_path_factory: pytest.TempPathFactory) -> EmbeddedTriton:
    """A Triton with two models, `echo`, which the first has too but which is not loaded here, and `own`."""
    repository = tmp_path_factory.mktemp("second")
    for name in ("echo", "own"):
        tensors = "".join(
            f'{way} {{ name: "{way}" data_type: TYPE_FP32 dims: [ 1 ] }}\n' for way in ("input", "output")
        )
        write_model(repository, name, "class TritonPythonModel:\n    pass\n", f'backend: "python"\n{tensors}')
    return start_triton([repository], options=["--model-control-mode=explicit", "--load-model=own"])


@pytest.fixture
def both(triton: EmbeddedTriton, second: EmbeddedTriton, start_http_server: Callable[..., Any]) -> Any:
    """A http_server before both."""
    return start_http_server([f"http://{triton.http_address}", f"http://{second.http_address}"], None, {}.get)


def test_one_that_is_ready_suffices(both: Any, triton: EmbeddedTriton) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/own/ready", "/v2/models/three/versions/1/ready"):
        assert fetch(both.http_address, "GET", path).status == 200
    path = "/v2/models/nope/ready"
    assert fetch(both.http_address, "GET", path) == fetch(triton.http_address, "GET", path)
    assert fetch(both.http_address, "POST", "/v2/health/live").status == 405


def test_dead_ones_are_not_asked(both: Any) -> None:
    both.tritons[0].alive = False
    assert fetch(both.http_address, "GET", "/v2/models/own/ready").status == 200
    assert fetch(both.http_address, "GET", "/v2/models/three/ready").status == 400
    both.tritons[1].alive = False
    assert fetch(both.http_address, "GET", "/v2/models/three/ready").status == 200, "the first may have come back"


def test_the_index_is_of_all(both: Any, triton: EmbeddedTriton, second: EmbeddedTriton) -> None:
    def index(server: Any, body: bytes | None = None) -> Any:
        return fetch(server.http_address, "POST", "/v2/repository/index", body)

    expected = {(row["name"], row.get("version")): row for row in json.loads(index(second).body)}
    expected |= {(row["name"], row.get("version")): row for row in json.loads(index(triton).body)}
    # What is loaded nowhere has no version: `echo` of the second is none, since the first one has it.
    loaded = {name for name, version in expected if version}
    expected = {key: row for key, row in expected.items() if key[1] or key[0] not in loaded}
    assert ("echo", "1") in expected
    answer = index(both)
    rows = json.loads(answer.body)
    assert {(row["name"], row.get("version")): row for row in rows} == expected
    assert [row["name"] for row in rows] == sorted(row["name"] for row in rows)
    assert answer.header("content-type") == "application/json"
    assert all(row["state"] == "READY" for row in json.loads(index(both, b'{"ready":true}').body))
    assert index(both, b"{") == index(triton, b"{")


def test_models_are_loaded_and_unloaded_everywhere(both: Any, triton: EmbeddedTriton, second: EmbeddedTriton) -> None:
    for action, ready in (("unload", 400), ("load", 200)):
        answer = fetch(both.http_address, "POST", f"/v2/repository/models/echo/{action}", b"{}")
        assert (answer.status, answer.body) == (200, b"")
        for server in (triton, second):
            assert fetch(server.http_address, "GET", "/v2/models/echo/ready").status == ready
    fetch(second.http_address, "POST", "/v2/repository/models/echo/unload")


def test_the_first_error_is_the_answer(both: Any, triton: EmbeddedTriton, second: EmbeddedTriton) -> None:
    path = "/v2/repository/models/{}/load"
    missing_in_second = fetch(both.http_address, "POST", path.format("three"))
    assert missing_in_second == fetch(second.http_address, "POST", path.format("three"))
    missing_in_both = fetch(both.http_address, "POST", path.format("nope"))
    assert missing_in_both == fetch(triton.http_address, "POST", path.format("nope"))
    assert missing_in_both.status == 500


def test_settings_are_changed_everywhere(both: Any, triton: EmbeddedTriton, second: EmbeddedTriton) -> None:
    def level(server: Any) -> int:
        return int(json.loads(fetch(server.http_address, "GET", "/v2/logging").body)["log_verbose_level"])

    for wanted in (1, 0):
        body = json.dumps({"log_verbose_level": wanted}).encode()
        assert fetch(both.http_address, "POST", "/v2/logging", body).status == 200
        assert [level(server) for server in (triton, second)] == [wanted, wanted]


def test_shared_memory_is_registered_everywhere(both: Any, triton: EmbeddedTriton, second: EmbeddedTriton) -> None:
    shared = Path(f"/dev/shm/test_tidegate_{second.pid}")
    shared.write_bytes(bytes(4))
    region = "/v2/systemsharedmemory/region/ours"
    try:
        for body, count in ((json.dumps({"key": f"/{shared.name}", "byte_size": 4}).encode(), 1), (None, 0)):
            action = "register" if body else "unregister"
            assert fetch(both.http_address, "POST", f"{region}/{action}", body).status == 200
            for server in (triton, second):
                status = fetch(server.http_address, "GET", "/v2/systemsharedmemory/status")
                assert len(json.loads(status.body)) == count
    finally:
        shared.unlink()


def test_one_that_cannot_be_reached_is_an_error(triton: EmbeddedTriton, start_http_server: Callable[..., Any]) -> None:
    http_server = start_http_server([f"http://{triton.http_address}", "http://127.0.0.1:1"], None, {}.get)
    assert fetch(http_server.http_address, "GET", "/v2/health/ready").status == 200
    answer = fetch(http_server.http_address, "POST", "/v2/repository/models/echo/load")
    assert answer.status == 503
    assert "http://127.0.0.1:1 cannot be reached" in json.loads(answer.body)["error"]
