"""Triton's routes and their APIs, on paths in their normal form."""

import pytest

from tidegate_proxy.servers.http.routes import Route, match


@pytest.mark.parametrize(
    ("path", "route"),
    [
        (b"/v2", Route("/v2", "metadata")),
        (b"/v2/health/ready", Route("/v2/health/ready", "health")),
        (b"/v2/models/stats", Route("/v2/models/stats", "statistics")),
        (b"/v2/models/a", Route("/v2/models/{model}", "metadata", "a")),
        (b"/v2/models/a/infer", Route("/v2/models/{model}/infer", "inference", "a")),
        (b"/v2/models/a/versions/07/infer", Route("/v2/models/{model}/infer", "inference", "a", "07")),
        (b"/v2/models/a%2Fb/infer", Route("/v2/models/{model}/infer", "inference", "a%2Fb")),
        (b"/v2/models/caf\xc3\xa9/config", Route("/v2/models/{model}/config", "model-config", "caf\u00e9")),
        (b"/v2/models/versions/versions/1", Route("/v2/models/{model}", "metadata", "versions", "1")),
        (b"/v2/models/a/trace/setting", Route("/v2/models/{model}/trace/setting", "trace", "a")),
        (b"/v2/models/a/generate_stream", Route("/v2/models/{model}/generate_stream", "inference", "a")),
        (b"/v2/repository/index", Route("/v2/repository/index", "model-repository")),
        (b"/v2/repository/r/index", Route("/v2/repository/index", "model-repository", repository="r")),
        (b"/v2/repository/models/a/load", Route("/v2/repository/models/{model}/load", "model-repository", "a")),
        (
            b"/v2/repository/r/models/a/unload",
            Route("/v2/repository/models/{model}/unload", "model-repository", "a", repository="r"),
        ),
        (b"/v2/systemsharedmemory/status", Route("/v2/systemsharedmemory/status", "shared-memory")),
        (
            b"/v2/cudasharedmemory/region/r/register",
            Route("/v2/cudasharedmemory/register", "shared-memory", region="r"),
        ),
        (b"/v2/trace/setting", Route("/v2/trace/setting", "trace")),
        (b"/v2/logging", Route("/v2/logging", "logging")),
    ],
)
def test_routes(path: bytes, route: Route) -> None:
    assert match(path) == route


@pytest.mark.parametrize(
    "path",
    [
        *(b"", b"/", b"/v2/", b"//v2", b"/v2/health", b"/v2/health/live/", b"/v2/health%2Flive", b"/V2", b"/v2\n"),
        *(b"/v2/models", b"/v2/models/", b"/v2/models//infer", b"/v2/models/a/b/infer", b"/v2/models/a/infer/x"),
        *(b"/v2/models/a/versions/x/infer", b"/v2/models/a/versions/1/trace/setting", b"/v2/models/a/infer\n"),
        *(b"/v2/repository/index/", b"/v2/sharedmemory/status", b"/v2/systemsharedmemory/region//status"),
    ],
)
def test_paths_that_are_no_routes(path: bytes) -> None:
    assert match(path) is None
