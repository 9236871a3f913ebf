"""Addresses of NATS servers as they may be printed: a password in one is used to connect, and never shown."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from events.log.records import LogRefused

_USER_INFO = re.compile(r"(?<=//).*@|^(?!.*//).*@")


def servers_of(url: str) -> list[str]:
    """Return the addresses of a list with commas between."""
    return [part.strip() for part in url.split(",")]


def printable(url: str) -> str:
    """Return one or several addresses without users and passwords."""
    return ",".join(_USER_INFO.sub("", part) for part in servers_of(url))


def has_password(url: str) -> bool:
    """Return whether an address holds a user, a password or a token."""
    return "@" in url


def check_address(url: str, *, encrypted: bool = False) -> None:
    """Raises LogRefused if this is no address of a server, or one without the encryption that is demanded."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        valid = parts.scheme in ("nats", "tls", "ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or " " in url:
        raise LogRefused(
            f"{printable(url)[:200]!r} is not the address of a NATS server; write nats://HOST:4222",
            code="server.address.malformed",
        )
    if encrypted and url.startswith("ws:"):
        raise LogRefused(
            f"{printable(url)} is not encrypted, which these credentials demand; use tls:// or wss://",
            code="log.server_not_trusted",
        )
