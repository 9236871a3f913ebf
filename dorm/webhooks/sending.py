"""One request to an endpoint: limited in time and size, to a permitted address, without redirects; and a deliverer's counts
of them.

A deliverer connects to public addresses, and to networks that its own operator allows: a user who may configure webhooks
could otherwise have it send requests inside its own network.  The check is made on the addresses that are connected to,
not on names: a name that resolves to a public address when it is checked and to a private one when it is used is refused.

The metrics count by outcome, never by webhook, so that their number is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.resolver import ThreadedResolver

from dorm.metrics.cluster import counter, gauge, histogram
from dorm.metrics.families import WEBHOOK_OUTCOMES, WEBHOOK_STATES
from dorm.metrics.tally import Histogram
from events.errors import DormError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence

    from aiohttp.abc import ResolveResult

    Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
    Network = ipaddress.IPv4Network | ipaddress.IPv6Network
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from prometheus_client import Metric

    from dorm.webhooks.endpoints import Endpoint


# --- permitted addresses ----------------------------------------------------------------------------------------------

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class NetworkError(DormError, ValueError):
    """The text is not a network."""

    code = "webhook.network.malformed"


class NotAllowedError(OSError):
    """An address is not public, and its network is not allowed."""


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse `10.0.0.0/8`, or single addresses; `loopback` and `private` stand for the usual ones.  Raises NetworkError."""
    networks: list[Network] = []
    for text in texts:
        try:
            networks += [ipaddress.ip_network(network, strict=False) for network in _WORDS.get(text, (text,))]
        except ValueError:
            raise NetworkError(
                f"{text[:80]!r} is not a network; write one such as 10.1.0.0/16, or loopback or private"
            ) from None
    return tuple(networks)


_WORDS = {
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
}


def permitted(address: str, allowed: Sequence[Network]) -> bool:
    """Return whether an address may be connected to: it is public, even if it carries an IPv4 address within, or
    allowed."""
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    return all(_public(each) or _within(each, allowed) for each in _meanings(ip))


def _meanings(ip: Ip) -> list[Ip]:
    """Return the address that packets reach: an IPv4 address inside an IPv6 address counts."""
    if isinstance(ip, ipaddress.IPv4Address):
        return [ip]
    if ip.ipv4_mapped is not None:
        return [ip.ipv4_mapped]
    inner: list[Ip] = [ip.sixtofour] if ip.sixtofour is not None else []
    if ip.teredo is not None:
        inner += ip.teredo
    if ip in _NAT64:
        inner.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    return [ip, *inner]


def _public(ip: Ip) -> bool:
    return ip.is_global and not ip.is_multicast


def _within(ip: Ip, allowed: Sequence[Network]) -> bool:
    return any(ip.version == network.version and ip in network for network in allowed)


class GuardedResolver(AbstractResolver):
    """Resolves names, and returns only permitted addresses; aiohttp connects to exactly these."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed
        self._inner = ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily | int = 0) -> list[ResolveResult]:
        """Raises NotAllowedError, and OSError for an unknown name."""
        resolved = await self._inner.resolve(host, port, family)  # type: ignore[arg-type]  # 0 stands for any family
        usable = [each for each in resolved if permitted(each["host"], self._allowed)]
        if not usable:
            raise NotAllowedError(
                f"{host} is {', '.join(sorted({each['host'] for each in resolved}))}, which is not public"
            )
        return usable

    async def close(self) -> None:
        await self._inner.close()


# --- one request ------------------------------------------------------------------------------------------------------

TIMEOUT_S = 15.0
_CONNECT_S = 5.0
_BODY_S = 1.0
_MOST_READ = 4096
"""Bytes of an answer that are read; its content does not matter."""
_LONGEST_PAUSE_S = 86_400.0


class Outcome(NamedTuple):
    """The outcome of one request."""

    status: int
    """0 for no answer."""
    reason: str
    """Reason of the failure, in one line; "" if it was delivered."""
    retry_after_s: float = 0.0
    """Seconds for which the endpoint asks Dorm to wait."""

    @property
    def delivered(self) -> bool:
        return not self.reason

    @property
    def gone(self) -> bool:
        """Whether the endpoint wants nothing more."""
        return self.status == 410


class Sender:
    """Use as an async context manager.  `allowed` are networks in addition to the public ones."""

    def __init__(self, allowed: Sequence[Network], *, timeout_s: float = TIMEOUT_S) -> None:
        self._allowed = allowed
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(timeout_s, _CONNECT_S))
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Sender:
        self._session = aiohttp.ClientSession(
            # Each webhook has a bounded number of requests at a time, so their number bounds the connections.
            connector=aiohttp.TCPConnector(
                resolver=GuardedResolver(self._allowed), use_dns_cache=False, limit=0, keepalive_timeout=30
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            auto_decompress=False,
            trust_env=False,
            max_line_size=8190,
            max_field_size=8190,
        )
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        """Post.  Never raises: every failure is an outcome."""
        if refused := self._refused(url):
            return Outcome(0, refused)
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                outcome = _outcome(answer)
                # The status decides; a body that is slow or broken costs a connection and nothing else.
                with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                    async with asyncio.timeout(_BODY_S):
                        await answer.content.read(_MOST_READ)
                return outcome
        except TimeoutError:
            return Outcome(0, f"no answer within {self._timeout.total:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Outcome(0, _words(error))

    def _refused(self, url: str) -> str:
        """Return why an address is refused; a name is checked when it is resolved."""
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return "the URL is malformed"
        if parts.scheme not in ("http", "https") or not host:
            return "the URL is not one of HTTP"
        # The connection has to go to the checked address: aiohttp accepts digits of other alphabets, and treats
        # text that looks like an address as one, even in forms that no parser here accepts.
        if not host.isascii() or ("%" in host and ":" not in host):
            return f"the host {host[:100]!r} holds other characters than a host's; write a foreign name as xn--..."
        if ":" not in host and not host.replace(".", "").isdigit():
            return ""
        try:
            ipaddress.ip_address(host.split("%")[0])
        except ValueError:
            return f"the host {host[:100]!r} is not an address, and no name has digits alone"
        return (
            ""
            if permitted(host, self._allowed)
            else f"the address {host} is not public; the deliverer's --allow permits it"
        )


def _outcome(answer: aiohttp.ClientResponse) -> Outcome:
    if 200 <= answer.status < 300:
        return Outcome(answer.status, "")
    if 300 <= answer.status < 400:
        return Outcome(answer.status, f"it answers {answer.status}: redirects are not followed; change the URL")
    pause = answer.headers.get("Retry-After", "")
    wait_s = min(float(pause), _LONGEST_PAUSE_S) if pause.isascii() and pause.isdigit() and len(pause) < 10 else 0.0
    return Outcome(answer.status, f"it answers {answer.status}", wait_s)


def _words(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, NotAllowedError):
            return f"{cause}; the deliverer's --allow permits it"
        cause = cause.__cause__ or cause.__context__
    text = " ".join(str(error).split())[:300]
    return text or type(error).__name__


# --- counts -----------------------------------------------------------------------------------------------------------

_REQUEST_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0)
"""Seconds, up to the time limit of a request."""
_DELIVERY_BOUNDS = (0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 43_200.0, 259_200.0)
"""Seconds, up to the whole schedule of attempts."""


def outcome_of(outcome: Outcome) -> str:
    """Return one of `families.WEBHOOK_OUTCOMES`."""
    if outcome.delivered:
        return "delivered"
    if outcome.gone:
        return "gone"
    if not outcome.status:
        return "no_answer"
    return "failed" if outcome.status >= 500 else "refused"


class Measured:
    """Of one deliverer."""

    def __init__(self) -> None:
        self.attempts = dict.fromkeys(WEBHOOK_OUTCOMES, 0)
        self.given_up = 0
        self.requests = Histogram.empty(_REQUEST_BOUNDS)
        self.deliveries = Histogram.empty(_DELIVERY_BOUNDS)

    def attempted(self, outcome: Outcome, took_s: float, since_s: float) -> None:
        """Count a request with its duration; `since_s`: since its event was stored on the log."""
        self.attempts[outcome_of(outcome)] += 1
        self.requests.observe(took_s)
        if outcome.delivered:
            self.deliveries.observe(since_s)

    def metrics(self, webhooks: Iterable[Endpoint]) -> Iterator[Metric]:
        states = dict.fromkeys(WEBHOOK_STATES, 0)
        for webhook in webhooks:
            states[webhook.state] += 1
        yield gauge("dorm_webhooks", states)
        yield counter("dorm_webhook_attempts_total", self.attempts)
        yield counter("dorm_webhook_events_given_up_total", self.given_up)
        yield histogram("dorm_webhook_request_seconds", {(): self.requests})
        yield histogram("dorm_webhook_delivery_seconds", {(): self.deliveries})
