"""Where messages are posted: never to another origin, however it is written."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.endpoint import endpoint_of, shown_origin

BASE = "https://h.example/api/sse?x=1"


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("messages?session=1", "https://h.example/api/messages?session=1"),
        ("/messages/?session=1", "https://h.example/messages/?session=1"),
        ("?session=1", "https://h.example/api/sse?session=1"),
        ("https://h.example/m?session=1", "https://h.example/m?session=1"),
        ("https://H.EXAMPLE:443/m", "https://h.example/m"),
        ("https://h.example", "https://h.example/"),
        ("//h.example/m", "https://h.example/m"),
        ("../m#part", "https://h.example/m"),
        (" /m ", "https://h.example/m"),
        ("/mé", "https://h.example/mé"),
        ("https://other:secret@h.example/m", "https://h.example/m"),
    ],
)
def test_what_is_of_the_same_origin_is_resolved(reference: str, url: str) -> None:
    assert endpoint_of(BASE, reference.encode()) == url


@pytest.mark.parametrize(
    "reference",
    [
        "http://h.example/m",
        "https://h.example:8443/m",
        "https://evil.example/m",
        "//evil.example/m",
        "https://h.example.evil.example/m",
        "https://h.example@evil.example/m",
        "https://h.example./m",
        "/\\evil.example/m",
        "\\\\evil.example/m",
        "https:\\\\evil.example",
        "javascript:alert(1)",
        "ftp://h.example/m",
        "https://[bad/m",
        "https://h.example:port/m",
        "https://h.example:99999/m",
        "",
        "  ",
        "/a b",
        "/a\nb",
        "/a\tb",
        "/a\x7f",
        "/" + "a" * 9000,
    ],
)
def test_anything_else_is_refused(reference: str) -> None:
    assert endpoint_of(BASE, reference.encode()) is None


def test_bytes_that_are_no_text_are_refused() -> None:
    assert endpoint_of(BASE, b"/m\xff") is None
    assert shown_origin(BASE, b"/m\xff") == "no URL that can be used"


@pytest.mark.parametrize("base", ["", "nothing", "https:///sse", "ftp://h.example/sse"])
def test_without_an_origin_of_our_own_nothing_is_resolved(base: str) -> None:
    assert endpoint_of(base, b"/m") is None


def test_a_password_in_our_own_url_stays_with_it() -> None:
    assert endpoint_of("http://me:pw@h/sse", b"http://h/m") == "http://me:pw@h/m"


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        ("https://me:pw@evil.example/m?session=secret", "https://evil.example:443"),
        ("//evil.example:81/m", "https://evil.example:81"),
        ("javascript:alert(1)", "no URL that can be used"),
        ("https://[bad/m", "no URL that can be used"),
        ("https://h:99999/", "no URL that can be used"),
    ],
)
def test_of_where_it_led_only_the_origin_is_shown(reference: str, shown: str) -> None:
    assert shown_origin(BASE, reference.encode()) == shown
