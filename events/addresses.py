"""Addresses of servers as messages show them: without the names, passwords and tokens that they may hold."""

from __future__ import annotations

_LONGEST = 500
_HIDDEN = "***@"


def shown(address: str) -> str:
    """Return an address, or several separated by commas, with `***` for everything before the last `@` of each.

    It never raises, and hides too much rather than too little if the text is not an address: people mistype passwords too."""
    return ",".join(map(_shown, address[:_LONGEST].split(",")))


def _shown(address: str) -> str:
    before, at, host = address.rpartition("@")
    if not at:
        return address
    scheme, separator, _ = before.partition("://")
    return f"{scheme}{separator}{_HIDDEN}{host}" if separator else f"{_HIDDEN}{host}"
