"""What a request says of itself for those who learn how long requests take: its shape, its application."""

import http.client
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tests.proxy.fixtures.calls import request_of
from tests.proxy.fixtures.fake_answers import echo
from tidegate.api import RequestArrived
from tidegate.observation import read_log
from tidegate_proxy.base.labels import MAX_LABEL_CHARACTERS, OTHER_LABEL, FrequentLabels, digest, label
from tidegate_proxy.configuration.clients import AppConfig, FeatureConfig
from tidegate_proxy.messages.merging import merged_header
from tidegate_proxy.messages.model_signature import ModelSignature, TensorSpec
from tidegate_proxy.messages.request import MAX_APPLICATIONS, ApplicationTags, HeaderCache, open_known, shape_of

Make = Callable[..., Any]
SIGNATURE = ModelSignature(
    "m",
    {
        "image": TensorSpec("FP32", (3, -1, -1)),
        "fixed": TensorSpec("FP32", (7,)),
        "WORDS": TensorSpec("BYTES", (-1,)),
    },
    frozenset({"Y"}),
    max_rows=4,
)


@pytest.mark.parametrize(
    ("inputs", "shape"),
    [
        ({"image": (2, 3, 48, 320), "fixed": (2, 7)}, "image:3,48,320"),
        ({"image": (1, 3, 48, 320), "WORDS": (1, 5)}, "WORDS:5;image:3,48,320"),
        ({"fixed": (2, 7)}, ""),
        ({}, ""),
    ],
)
def test_a_shape_says_what_the_config_leaves_open(inputs: dict[str, tuple[int, ...]], shape: str) -> None:
    assert shape_of(inputs.items(), SIGNATURE) == shape
    assert shape_of(reversed(inputs.items()), SIGNATURE) == shape, "in whichever order they come"


@given(st.lists(st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=2), min_size=2, max_size=2, unique_by=tuple))
def test_shapes_are_short_and_differ_where_the_sizes_do(sizes: list[list[int]]) -> None:
    name = "n" * 80
    signature = ModelSignature("m", {name: TensorSpec("FP32", (-1, -1))}, frozenset(), 1)
    first, second = (shape_of([(name, (1, *size))], signature) for size in sizes)
    assert first != second
    assert max(len(first), len(second)) <= MAX_LABEL_CHARACTERS


def test_a_label_that_is_cut_keeps_its_beginning_and_says_which_it_was() -> None:
    assert label("short") == "short"
    long = label("a" * 200)
    assert len(long) == MAX_LABEL_CHARACTERS
    assert long.startswith("aaa")
    assert long != label("a" * 201)


def test_the_frequent_labels_are_kept_apart() -> None:
    labels = FrequentLabels(2)
    asked = "abcadbaabb"
    assert [labels.of(text, 1.0) for text in asked] == [text if text in "ab" else OTHER_LABEL for text in asked]
    assert [labels.of("c", 1.0) for _ in range(8)][-1] == "c", "it comes more often than one of the others"


def test_labels_that_came_once_each_make_room() -> None:
    labels = FrequentLabels(100)
    for number in range(110):
        labels.of(f"made up {number}", 1.0)
    known = [labels.of(text, 1.0) for _ in range(20) for text in ("quick", "slow")]
    assert known.count("quick") == known.count("slow") == 19


def test_labels_that_fade_make_room_but_not_many_an_hour() -> None:
    labels = FrequentLabels(4)
    for _ in range(1000):
        assert labels.of("old", 1.0) == "old"
    places = {labels.of(f"new {number}", 1.0) for number in range(50) for _ in range(3)} - {OTHER_LABEL}
    assert len(places) <= 1 + 3 + 4, "what is learned of each is kept"
    assert labels.of("old", 1.0) == "old"
    later = {labels.of(f"later {number}", 4000.0) for number in range(50) for _ in range(20)} - {OTHER_LABEL}
    assert 1 <= len(later) <= 4


def test_a_header_that_may_be_secret_is_a_digest() -> None:
    heading: Any = None
    for header in ("authorization", "x-api-key", "Session-Token"):
        applications = ApplicationTags(AppConfig(header=header.lower()))
        assert applications.of(heading, ((header.lower(), "Bearer hush"),)) == digest("Bearer hush")


def test_applications_are_bounded_however_many_clients_name() -> None:
    applications = ApplicationTags(AppConfig(header="x-app"))
    heading: Any = None  # of no meaning where a header tells
    named = {
        applications.of(heading, (("other", "-"), ("x-app", f"app {number}")))
        for number in range(MAX_APPLICATIONS + 50)
    }
    assert len(named) == MAX_APPLICATIONS + 1
    assert applications.of(heading, (("x-app", "app 0"),)) == "app 0"
    assert applications.of(heading, ()) == ""
    assert len(applications.of(heading, (("x-app", "a" * 1000),))) <= MAX_LABEL_CHARACTERS
    assert ApplicationTags(AppConfig()).of(open_known(_message(), HeaderCache(_XS)).heading, (("x-app", "a"),)) == ""


_XS = ModelSignature("echo", {"X": TensorSpec("FP32", (-1,))}, frozenset({"Y"}), 4)


def _message(columns: int = 3, **parameters: Any) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="echo")
    message.inputs.add(name="X", datatype="FP32", shape=[1, columns])
    message.raw_input_contents.append(bytes(4 * columns))
    for name, value in parameters.items():
        kind = {str: "string_param", bool: "bool_param", int: "int64_param", float: "double_param"}[type(value)]
        message.parameters[name].MergeFrom(service_pb2.InferParameter(**{kind: value}))
    return bytes(message.SerializeToString())


def test_the_parameter_that_tells_the_application_hinders_no_merge_and_is_not_of_the_batch() -> None:
    headings = HeaderCache(_XS, "app")
    one, other, none = (open_known(_message(**said), headings) for said in ({"app": "ocr"}, {"app": 7}, {}))
    assert [each.heading.app for each in (one, other, none)] == ["ocr", "7", ""]
    assert one.merge_key == other.merge_key == none.merge_key
    assert dict(merged_header([one, other]).parameters) == {}
    assert merged_header([one]).parameters["app"].string_param == "ocr", "alone it goes as it came"
    apart = [open_known(_message(app=app), HeaderCache(_XS)) for app in ("ocr", "asr")]
    assert len({each.merge_key for each in apart}) == 2, "unless the configuration names it"


def test_the_parameter_with_a_feature_hinders_no_merge_and_is_not_of_the_batch() -> None:
    headings = HeaderCache(_XS, feature=FeatureConfig(parameter="tokens"))
    one, other, text, none, wrong, negative = (
        open_known(_message(**said), headings)
        for said in ({"tokens": 7}, {"tokens": 2.5}, {"tokens": "40"}, {}, {"tokens": "many"}, {"tokens": -3})
    )
    assert [each.feature for each in (one, other, text, none, wrong, negative)] == [7.0, 2.5, 40.0, 0.0, 0.0, 0.0]
    assert len({each.merge_key for each in (one, other, text, none)}) == 1
    assert dict(merged_header([one, other]).parameters) == {}
    assert merged_header([one]).parameters["tokens"].int64_param == 7, "alone it goes as it came"


def test_the_size_of_a_request_is_a_feature() -> None:
    by_bytes, by_rows = (HeaderCache(_XS, feature=FeatureConfig(size=size)) for size in ("bytes", "rows"))
    assert [open_known(_message(columns), by_bytes).feature for columns in (3, 5, 3)] == [12.0, 20.0, 12.0]
    assert open_known(_message(5), by_rows).feature == 1.0
    assert open_known(_message(5), HeaderCache(_XS)).feature == 0.0


def test_requests_that_are_written_alike_have_their_shape_from_the_first() -> None:
    headings = HeaderCache(_XS)
    for columns in (3, 5):
        read = [open_known(_message(columns), headings).heading for _ in range(4)]
        assert read[0] is read[-1]
        assert read[0].shape == f"X:{columns}"


def test_what_clients_say_reaches_policy_recording_metrics_and_page(
    start_fake: Make, fake_http: str, serve_here: Make, call: Make, open_stream: Make, tmp_path: Path
) -> None:
    proxy = serve_here(
        [],
        tritons=[{"grpc": start_fake(echo).address, "http": fake_http}],
        listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0", "metrics": "127.0.0.1:0"},
        app={"parameter": "app"},
        feature={"parameter": "tokens"},
        event_log=tmp_path / "log",
    )
    for columns, app in ((3, "ocr"), (3, "asr"), (48, "ocr")):
        message = request_of("echo", {"X": np.ones((1, columns), np.float32)})
        message.parameters["app"].string_param = app
        message.parameters["tokens"].int64_param = 10 * columns
        assert call(proxy, "ModelInfer", message)[0] is grpc.StatusCode.OK
    body = {
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}],
        "parameters": {"app": "web", "tokens": 5},
    }
    connection = http.client.HTTPConnection(proxy.serving.http_address, timeout=60)
    connection.request("POST", "/v2/models/echo/infer", json.dumps(body))
    assert connection.getresponse().status == 200
    connection.close()
    message = request_of("echo", {"X": np.ones((2, 2), np.float32)})
    assert list(open_stream(proxy, [message]))
    page = f"http://{proxy.serving.metrics_address}"
    with urllib.request.urlopen(f"{page}/metrics", timeout=60) as answer:
        counts = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in answer.read().decode().splitlines()
            if line.startswith("tidegate_shape_request_duration_seconds_count")
        }
    series = 'tidegate_shape_request_duration_seconds_count{model="echo",shape="X:%d"}'
    assert counts == {series % 3: 2, series % 48: 1, series % 2: 2}
    with urllib.request.urlopen(f"{page}/models", timeout=60) as answer:
        (model,) = json.load(answer)
    assert {shape: told["requests"] for shape, told in model["shapes"].items()} == {"X:3": 2, "X:48": 1, "X:2": 2}
    assert all(told["mean_ms"] > 0 for told in model["shapes"].values())
    assert model["rows"] == {"1": 4, "2": 1}
    proxy.stop()
    with (tmp_path / "log").open("rb") as lines:
        requests = [entry.event.request for entry in read_log(lines)[1] if isinstance(entry.event, RequestArrived)]
    said = [(request.shape, request.app, request.feature) for request in requests]
    assert said == [
        ("X:3", "ocr", 30),
        ("X:3", "asr", 30),
        ("X:48", "ocr", 480),
        ("X:2", "web", 5),
        ("X:2", "", 0),
    ]


def test_a_header_tells_the_application_over_both_protocols(
    start_fake: Make, fake_http: str, serve_here: Make, call: Make, tmp_path: Path
) -> None:
    proxy = serve_here(
        [],
        tritons=[{"grpc": start_fake(echo).address, "http": fake_http}],
        listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"},
        app={"header": "X-App"},
        event_log=tmp_path / "log",
    )
    message = request_of("echo", {"X": np.ones((1, 3), np.float32)})
    assert call(proxy, "ModelInfer", message, metadata=(("x-app", "ocr"),))[0] is grpc.StatusCode.OK
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]})
    connection = http.client.HTTPConnection(proxy.serving.http_address, timeout=60)
    connection.request("POST", "/v2/models/echo/infer", body, {"X-App": "web"})
    assert connection.getresponse().status == 200
    connection.close()
    proxy.stop()
    with (tmp_path / "log").open("rb") as lines:
        entries = list(read_log(lines)[1])
    assert [entry.event.request.app for entry in entries if isinstance(entry.event, RequestArrived)] == ["ocr", "web"]
