"""The address at which other nodes reach this one.

It is the one from which this machine reaches the NATS servers, because other nodes reach these as well: a machine may have
several networks, only IPv6, or no default route.  A host name says nothing here: Debian gives it 127.0.1.1.  A loopback
address is announced only if the machine has no other one and the server is on it, and then that is said.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from agents.config import ConfigError
from events.addresses import is_loopback

_NATS = 4222
_ANYWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses of documentation (RFC 5737, RFC 3849), for the route to everywhere: nothing is sent."""
_ADDRESS_PREFERENCES, _PREFER_PUBLIC = 72, 2
"""IPV6_ADDR_PREFERENCES and IPV6_PREFER_SRC_PUBLIC of <linux/in6.h> (RFC 5014): a temporary address (RFC 8981) is gone after a
day."""


class OwnAddress(NamedTuple):
    """An address, and how it was found."""

    address: str
    text: str


def detect_address(servers: str) -> OwnAddress:
    """Return this machine's address, given the addresses of the NATS servers.  Blocks while their names are looked up.  Raises
    ConfigError if it has none that others could reach."""
    local = ""
    for url in servers.split(","):
        host, port = _place(url)
        for found in _ways_to(host, port):
            if not is_loopback(found):
                return OwnAddress(found, f"from which it reaches {host}")
            local = found
    for anywhere in _ANYWHERE:
        for found in _ways_to(anywhere, 9):
            if not is_loopback(found):
                return OwnAddress(found, "of its default route")
    if local:
        return OwnAddress(local, "only this machine reaches it: there is no other network; name one with --address")
    raise ConfigError(
        "this machine has no route to the NATS servers, so the address at which other nodes reach it is not known; "
        "connect it to their network, or name its address with --address",
        code="config.address.unknown",
    )


def _place(url: str) -> tuple[str, int]:
    with contextlib.suppress(ValueError):
        parts = urlsplit(url.strip() if "://" in url else f"nats://{url.strip()}")
        return parts.hostname or "", parts.port or _NATS
    return "", _NATS


def _ways_to(host: str, port: int) -> list[str]:
    """Return the own addresses from which packets to this host would come, by the kernel's routes."""
    found = []
    with contextlib.suppress(OSError, UnicodeError):
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                if family == socket.AF_INET6:
                    with contextlib.suppress(OSError):
                        probe.setsockopt(socket.IPPROTO_IPV6, _ADDRESS_PREFERENCES, _PREFER_PUBLIC)
                probe.connect(place)
                own = str(probe.getsockname()[0]).partition("%")[0]
                if not ipaddress.ip_address(own).is_link_local:  # Which interface it means, only this machine knows.
                    found.append(own)
    return found
