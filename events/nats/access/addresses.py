"""Addresses of NATS servers as they may be printed: a password in one is used to connect, and never shown."""

from __future__ import annotations

import re

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
