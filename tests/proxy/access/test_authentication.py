"""Authentication: which credentials let a call through, and what those without are told."""

import hashlib
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_proxy.access.gate import Authenticator, CredentialFileError
from tidegate_proxy.configuration.access import AuthenticationConfig
from tidegate_proxy.configuration.apis import Api
from tidegate_proxy.transport.file_watcher import WatchedFiles
from tidegate_proxy.tritons.backend import INFER_METHOD, SERVICE_PREFIX

HASHED = "sha256:" + hashlib.sha256(b"tok-hashed").hexdigest()
TOKENS = f"# who may call\ntok-1   # the batch jobs\n\n{HASHED}\n"
REQUIRED = "Authentication required, expecting header"
FAILED = "Authentication failed, the credential is not known"
API: Api = "inference"


def _make(folder: Path, tokens: str | None = TOKENS, keys: str | None = None, **fields: Any) -> Authenticator:
    for name, text in (("tokens_file", tokens), ("api_keys_file", keys)):
        if text is not None:
            (folder / name).write_text(text)
            fields[name] = str(folder / name)
    return Authenticator(AuthenticationConfig.model_validate_json(json.dumps(fields)))


@pytest.mark.parametrize(
    ("header", "passes"),
    [
        ("Bearer tok-1", True),
        ("bearer tok-1", True),
        ("Bearer  tok-1 ", True),
        ("Bearer tok-hashed", True),
        ("Bearer tok-2", False),
        (f"Bearer {HASHED}", False),
        ("Bearer", False),
        ("Bearer ", False),
        ("tok-1", False),
        ("Basic tok-1", False),
        ("", False),
        ("Bearer tok-1\ud800", False),
    ],
)
def test_bearer_tokens(tmp_path: Path, header: str, passes: bool) -> None:
    authenticator = _make(tmp_path)
    refusal = authenticator.refusal(INFER_METHOD, [("user-agent", "x"), ("authorization", header)])
    assert refusal == (None if passes else (grpc.StatusCode.UNAUTHENTICATED, FAILED))
    assert (authenticator.http_refusal(API, {"authorization": header}) is None) == passes


def test_who_brings_nothing_is_told_what_to_bring(tmp_path: Path) -> None:
    refusal = _make(tmp_path, keys="key-1").refusal(INFER_METHOD, [])
    assert refusal == (
        grpc.StatusCode.UNAUTHENTICATED,
        f"{REQUIRED} 'authorization: Bearer TOKEN' or 'x-api-key: KEY'",
    )
    over_http = _make(tmp_path).http_refusal(API, {})
    assert over_http is not None
    assert over_http.status == 401
    assert json.loads(over_http.body) == {"error": f"{REQUIRED} 'authorization: Bearer TOKEN'"}
    assert dict(over_http.headers)["www-authenticate"] == 'Bearer realm="tidegate"'
    wrong = _make(tmp_path).http_refusal(API, {"authorization": "Bearer nope"})
    assert wrong is not None
    assert dict(wrong.headers)["www-authenticate"] == 'Bearer realm="tidegate", error="invalid_token"'


def test_api_keys_have_a_header_of_their_own(tmp_path: Path) -> None:
    authenticator = _make(tmp_path, tokens=None, keys="key-1\nkey-2", header="X-Customer")
    assert authenticator.headers == {"authorization", "x-customer"}
    for key, passes in (("key-1", True), ("key-2", True), ("key-3", False)):
        assert (authenticator.refusal(INFER_METHOD, [("x-customer", key)]) is None) == passes
        assert (authenticator.http_refusal(API, {"x-customer": key}) is None) == passes
    assert authenticator.refusal(INFER_METHOD, [("authorization", "Bearer key-1")]) is not None
    refused = authenticator.http_refusal(API, {})
    assert refused is not None
    assert dict(refused.headers)["www-authenticate"] == 'ApiKey realm="tidegate"'


def test_a_token_is_no_api_key_and_either_will_do(tmp_path: Path) -> None:
    authenticator = _make(tmp_path, keys="key-1")
    assert authenticator.refusal(INFER_METHOD, [("x-api-key", "tok-1")]) is not None
    assert authenticator.refusal(INFER_METHOD, [("authorization", "Bearer key-1")]) is not None
    assert authenticator.refusal(INFER_METHOD, [("authorization", "Bearer nope"), ("x-api-key", "key-1")]) is None
    assert authenticator.refusal(INFER_METHOD, [("authorization", "Bearer tok-1"), ("x-api-key", "nope")]) is None


def test_health_is_open_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    usual, strict = _make(tmp_path), _make(tmp_path, open=[])
    for method in (SERVICE_PREFIX + "ServerLive", SERVICE_PREFIX + "ModelReady", "/grpc.health.v1.Health/Check"):
        assert (usual.refusal(method, []) is None, strict.refusal(method, []) is None) == (True, False)
    assert (usual.http_refusal("health", {}) is None, strict.http_refusal("health", {}) is None) == (True, False)
    others: tuple[Api | None, ...] = ("metadata", "inference", None)
    for api in others:
        assert usual.http_refusal(api, {}) is not None, api
    assert usual.refusal("/no.Such/Method", []) is not None


@given(guess=st.text(max_size=30) | st.binary(max_size=30))
def test_nothing_else_gets_in(tmp_path_factory: pytest.TempPathFactory, guess: str | bytes) -> None:
    authenticator = _make(tmp_path_factory.getbasetemp(), tokens="only-this", keys="only-that")
    assert authenticator.refusal(INFER_METHOD, [("x-api-key", guess)]) is not None
    header = b"Bearer " + guess if isinstance(guess, bytes) else "Bearer " + guess
    assert authenticator.refusal(INFER_METHOD, [("authorization", header)]) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no credential, so that no client could call"),
        ("# nobody\n\n", "it has no credential"),
        ("ok\nhush me\n", "line 2: a credential is one word of ASCII without"),
        ("hüsh\n", "line 1: a credential is one word of ASCII"),
        ("sha256:hush\n", "line 1: after sha256: there must be 64 hexadecimal digits"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CredentialFileError) as caught:
        _make(tmp_path, tokens=text)
    assert f"{tmp_path / 'tokens_file'}" in str(caught.value)
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    config = AuthenticationConfig(tokens_file=tmp_path / "nope")
    with pytest.raises(CredentialFileError, match="nope: No such file or directory; it must hold one token"):
        Authenticator(config)


def test_files_that_change_are_noticed_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("a")
    watched = WatchedFiles([path, None])
    assert not watched.changed()
    path.write_text("ab")
    assert [watched.changed(), watched.changed()] == [True, False]
    path.unlink()
    assert [watched.changed(), watched.changed()] == [True, False]
    # As Kubernetes does it: a link that comes to lead elsewhere.
    (tmp_path / "first").write_text("x")
    path.symlink_to(tmp_path / "first")
    assert watched.changed()
    (tmp_path / "second").write_text("x")
    path.unlink()
    path.symlink_to(tmp_path / "second")
    assert watched.changed()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("abc#def", "without quotes, commas or '#'"),
        ('"abc"', "without quotes"),
        ("'abc'", "without quotes"),
        ("abc,", "without quotes"),
        ("\ufeffabc", "one word of ASCII"),
        ("abc\x07", "one word of ASCII"),
        ("token: abc", "one word of ASCII"),
        ("Bearer abc", "one word of ASCII"),
        ("SHA256:" + "0" * 64, "sha256: and 64 hexadecimal digits"),
        ("sha512:" + "0" * 128, "sha256: and 64 hexadecimal digits"),
        ("$2b$12$abcdefghijklmnopqrstuv", "sha256: and 64 hexadecimal digits"),
        ("sha256:abc", "64 hexadecimal digits"),
    ],
)
def test_a_line_that_could_mean_something_else_is_an_error(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(CredentialFileError, match=f"tokens_file, line 2: .*{said}"):
        _make(tmp_path, tokens=f"# tokens\n{line}\n")


def test_a_comment_begins_after_a_blank(tmp_path: Path) -> None:
    authenticator = _make(tmp_path, tokens="#one\ntok-1 #two\ntok:2/+=\t# three\n")
    for token, passes in (("tok-1", True), ("tok:2/+=", True), ("#one", False), ("tok-1 #two", False)):
        assert (authenticator.refusal(INFER_METHOD, [("authorization", f"Bearer {token}")]) is None) == passes
