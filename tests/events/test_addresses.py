"""Addresses in messages hold no names, passwords or tokens."""

from __future__ import annotations

import pytest

from events.addresses import shown


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
