"""Which addresses a deliverer connects to: public ones, and networks that its own operator allows.

A user who may configure webhooks could otherwise have the deliverer send requests inside its own network.  The check is made
on the addresses that are connected to, not on names: a name that resolves to a public address when it is checked and to a
private one when it is used is refused.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from aiohttp.abc import AbstractResolver
from aiohttp.resolver import ThreadedResolver

from events.errors import DormError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence

    from aiohttp.abc import ResolveResult

    Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
    Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class NetworkError(DormError, ValueError):
    """The text is not a network."""

    code = "webhook.network.malformed"


class NotAllowedError(OSError):
    """An address is not public, and its network is not allowed."""


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse `10.0.0.0/8`, or single addresses; `loopback` and `private` stand for the usual ones.  Raises NetworkError."""
    found: list[Network] = []
    for text in texts:
        try:
            found += [ipaddress.ip_network(one, strict=False) for one in _WORDS.get(text, (text,))]
        except ValueError:
            raise NetworkError(
                f"{text[:80]!r} is not a network; write one such as 10.1.0.0/16, or loopback or private"
            ) from None
    return tuple(found)


_WORDS = {
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
}


def permitted(address: str, allowed: Sequence[Network]) -> bool:
    """Return whether an address may be connected to: it is public, even if it carries an IPv4 address within, or
    allowed."""
    try:
        one = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    return all(_public(each) or _within(each, allowed) for each in _meanings(one))


def _meanings(one: Ip) -> list[Ip]:
    """Return the address that packets reach: an IPv4 address inside an IPv6 address counts."""
    if isinstance(one, ipaddress.IPv4Address):
        return [one]
    if one.ipv4_mapped is not None:
        return [one.ipv4_mapped]
    inner: list[Ip] = [one.sixtofour] if one.sixtofour is not None else []
    if one.teredo is not None:
        inner += one.teredo
    if one in _NAT64:
        inner.append(ipaddress.IPv4Address(int(one) & 0xFFFFFFFF))
    return [one, *inner]


def _public(one: Ip) -> bool:
    return one.is_global and not one.is_multicast


def _within(one: Ip, allowed: Sequence[Network]) -> bool:
    return any(one.version == network.version and one in network for network in allowed)


class GuardedResolver(AbstractResolver):
    """Resolves names, and returns only permitted addresses; aiohttp connects to exactly these."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed
        self._inner = ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily | int = 0) -> list[ResolveResult]:
        """Raises NotAllowedError, and OSError for an unknown name."""
        found = await self._inner.resolve(host, port, family)  # type: ignore[arg-type]  # 0 stands for any family
        usable = [one for one in found if permitted(one["host"], self._allowed)]
        if not usable:
            raise NotAllowedError(f"{host} is {', '.join(sorted({one['host'] for one in found}))}, which is not public")
        return usable

    async def close(self) -> None:
        await self._inner.close()
