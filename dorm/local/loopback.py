"""The address by which this machine reaches itself."""

from __future__ import annotations

import socket


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
