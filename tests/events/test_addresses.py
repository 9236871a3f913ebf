"""Addresses in messages hold no names, passwords or tokens."""

from __future__ import annotations

import pytest

from events.addresses import is_loopback, joined, shown, split


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("nats://10.0.0.1:4222", "nats://10.0.0.1:4222"),
        ("nats://ann:hunter2@host:4222", "nats://***@host:4222"),
        ("tls://token@host,nats://a:b@other:1", "tls://***@host,nats://***@other:1"),
        ("ann:hunter2@host", "***@host"),
        ("nats://ann:p@ss/w@host", "nats://***@host"),
        ("https://[::1]:80/path", "https://[::1]:80/path"),
        ("", ""),
    ],
)
def test_credentials_in_urls_are_hidden(address: str, wanted: str) -> None:
    assert shown(address) == wanted


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:4222", "10.0.0.1", 4222),
        ("[::1]:4222", "::1", 4222),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
        ("[::1]", "::1", None),
        ("::1", "::1", None),
        ("host", "host", None),
        (":4280", "", 4280),
        ("host:0", "host", 0),
    ],
)
def test_host_and_port(text: str, host: str, port: int | None) -> None:
    assert split(text) == (host, port)
    if host and port is not None:
        assert joined(host, port) == text


@pytest.mark.parametrize(
    "text",
    ["host:", "host:x", "host:65536", "[::1", "[::1]x:1", "[host]:1", "h]:1", "[::1]:", "host:٣", "h:9" + "9" * 5000],
)
def test_no_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        split(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.1.1", True),
        ("::1", True),
        ("LOCALHOST", True),
        ("10.0.0.1", False),
        ("fd00::1", False),
        ("127.example", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected
