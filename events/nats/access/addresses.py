"""Addresses of NATS servers: one or several, checked before anything is sent."""

from __future__ import annotations

from urllib.parse import urlsplit

from events.addresses import shown
from events.log.records import LogRefused


def servers_of(url: str) -> list[str]:
    """Return the addresses of a list with commas between."""
    return [part.strip() for part in url.split(",")]


def check_address(url: str, *, encrypted: bool = False) -> None:
    """Raises LogRefused if this is not an address of a server, or one without the encryption that is demanded."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        valid = parts.scheme in ("nats", "tls", "ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or " " in url:
        raise LogRefused(
            f"{shown(url)[:200]!r} is not the address of a NATS server; write nats://HOST:4222",
            code="server.address.malformed",
        )
    if encrypted and url.startswith("ws:"):
        raise LogRefused(
            f"{shown(url)} is not encrypted, which these credentials demand; use tls:// or wss://",
            code="log.server_not_trusted",
        )
