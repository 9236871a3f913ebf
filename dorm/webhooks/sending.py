"""One request to an endpoint: limited in time and size, to a permitted address, without redirects."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from dorm.webhooks.addresses import GuardedResolver, NotAllowedError, permitted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from dorm.webhooks.addresses import Network

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
    """Why it failed, in one line; "" if it was delivered."""
    retry_after_s: float = 0.0
    """How long the endpoint asks us to wait."""

    @property
    def delivered(self) -> bool:
        return not self.reason

    @property
    def gone(self) -> bool:
        """Whether the endpoint wants nothing more."""
        return self.status == 410


class Sender:
    """Use as an async context manager.  `allowed` are networks beside the public ones."""

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
