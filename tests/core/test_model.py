"""The vocabulary: digests of meaning, fingerprints that show nothing, rows refused if they cannot be ours."""

from __future__ import annotations

import json

import pytest

from mcp_client_guard.core.model import (
    DIGEST_SIZE,
    JSON,
    Evidence,
    Generation,
    Grade,
    Seen,
    SessionOpened,
    assert_never,
    digest_of,
    fingerprint,
)


def test_a_digest_is_of_the_json_and_not_of_its_spelling() -> None:
    assert digest_of(b'{"a": 1, "b": [2]}') == digest_of(b'{"b":[2],"a":1}')


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1.0", "1"),
        ("-0.0", "0"),
        ("1e3", "1000"),
        ("0.10", "0.1"),
        ("2.5E-3", "0.0025"),
        ('{"a": [1.0, {"b": 2.0}]}', '{"a": [1, {"b": 2}]}'),
    ],
)
def test_a_number_is_the_same_however_it_is_written(one: str, other: str) -> None:
    assert digest_of(one.encode()) == digest_of(other.encode())


@pytest.mark.parametrize(
    ("one", "other"), [("1.5", "1"), ("1", "true"), ("1.0", '"1.0"'), ("1e999", "1"), ("0", "null")]
)
def test_another_value_has_another_digest(one: str, other: str) -> None:
    assert digest_of(one.encode()) != digest_of(other.encode())


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("member", ["params", "result", "error"])
def test_a_member_of_the_protocol_that_is_null_is_not_there(member: str, batch: bool) -> None:
    def digest(message: JSON) -> bytes:
        message = {"jsonrpc": "2.0", **message}
        return digest_of(json.dumps([message] if batch else message).encode())

    assert digest({member: {"a": 1, "b": None}, "id": None}) == digest({member: {"a": 1}})
    assert digest({member: None, "id": 1}) == digest({"id": 1})
    assert digest({member: {"data": {"b": None}}}) != digest({member: {"data": {}}}), "null may be a value"
    assert digest({member: {"data": [None]}}) != digest({member: {"data": []}})


@pytest.mark.parametrize("other", [b'{"a": 2}', b'{"a": "1"}', b'{"a": 1, "b": null}', b"", b"{", b"[" * 100_000])
def test_another_message_has_another_digest(other: bytes) -> None:
    assert digest_of(b'{"a": 1}') != digest_of(other)
    assert len(digest_of(other)) == DIGEST_SIZE


def test_a_fingerprint_is_short_keyed_and_not_the_secret() -> None:
    assert fingerprint("secret", "a") != fingerprint("secret", "b")
    assert fingerprint("secret", "a") == fingerprint("secret", "a")
    assert len(fingerprint("\ud800" * 10_000, "k" * 200)) == 8
    assert fingerprint(None) == "-"


def test_a_row_from_storage_comes_back_as_it_was() -> None:
    digest = digest_of(b"x")
    assert Seen.from_row("e1", digest) == Seen("e1", digest)
    assert Seen.from_row(None, digest) == Seen(None, digest)


@pytest.mark.parametrize(
    ("event_id", "digest", "says"),
    [
        (7, b"x" * 16, "event ID must be text or NULL, not int"),
        ("e1", "x" * 16, "16 bytes"),
        ("e1", b"x", "16 bytes"),
    ],
)
def test_a_row_that_cannot_be_ours_is_refused_by_name(event_id: object, digest: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Seen.from_row(event_id, digest)


def test_the_session_id_stays_out_of_the_record_s_text() -> None:
    record = SessionOpened(1, Generation.STREAMABLE_HTTP, "top-secret", None, {"k": "token"}, {})
    assert "top-secret" not in repr(record)
    assert "token" not in repr(record)


def test_evidence_reads_as_the_design_writes_it() -> None:
    assert str(Evidence(Grade.UNVERIFIED, "no witness")) == "UNVERIFIED(no witness)"


def test_an_input_nobody_knows_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError, match="not expected: 7"):
        assert_never(7)  # type: ignore[arg-type]
