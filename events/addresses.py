"""Addresses as text: host and port in one, and servers' addresses without the names, passwords and tokens in them.

An IPv6 address has colons itself, so it is in brackets before a port and in a URL (RFC 3986, section 3.2.2), and
nowhere else: `MASTER_ADDR`, `--address` and a socket take it bare.

`loopback` is the address by which this machine reaches itself.
"""

from __future__ import annotations

import ipaddress
import socket

# --- as text ----------------------------------------------------------------------------------------------------------

_LONGEST = 500
_HIDDEN = "***@"


def bracketed(host: str) -> str:
    """Return a host as it stands before a port and in a URL."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def joined(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    return f"{bracketed(host)}:{port}"


def split(text: str) -> tuple[str, int | None]:
    """Return the host, without brackets, and the port of `host:port`, `[address]:port`, or of one of these without port (then
    None); a bare IPv6 address has none.  Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if text.startswith("["):
        if not colon or text.endswith("]"):
            host, colon, port = text, "", ""
        if not host.endswith("]"):
            raise ValueError(f"{text!r} lacks a bracket")
        host = host[1:-1]
        ipaddress.IPv6Address(host.partition("%")[0])
    elif not colon or ":" in host:
        host, colon, port = text, "", ""
    if "[" in host or "]" in host:
        raise ValueError(f"{text!r} has a bracket in its host")
    if colon and not (port.isascii() and port.isdigit() and int(port[:6]) <= 65535):
        raise ValueError(f"{text!r} has no port between 0 and 65535")
    return host, int(port) if colon else None


def is_loopback(host: str) -> bool:
    """Return whether a host, as it is written, is this machine's own and no other's."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


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


# --- of this machine --------------------------------------------------------------------------------------------------


def loopback() -> str:
    """Return 127.0.0.1, or `::1` on a machine without IPv4, where nothing can listen on the former."""
    with socket.socket(socket.AF_INET) as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError:
            return "::1"
    return "127.0.0.1"


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
